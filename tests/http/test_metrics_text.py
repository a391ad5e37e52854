"""`/metrics`: is it what Prometheus reads, is every metric explained, and do the gauges tell?"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock import __version__
from penstock.broker.metrics import FAMILIES
from penstock.mqtt.kinds import MQTT_5
from tests.doors.hosted import Hosted
from tests.doors.wire import Wire, connect_kept
from tests.http.asking import Asking

OPERATIONS = Path(__file__).parents[2] / "docs" / "OPERATIONS.md"
NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\"n])*"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (\S+)")
UNITS = (
    *("bytes", "seconds", "records", "messages", "packets", "chunks", "fds", "info"),
    *("clients", "connections", "publishes", "readers", "sessions", "subscriptions", "topics"),
    *("dropped", "refused", "violations"),  # pinned: penstock_dropped_total
)


class Family(NamedTuple):
    """One metric as the text has it."""

    kind: str
    says: str
    samples: dict[tuple[str, str], float]  # by name and labels


def parse(text: str) -> dict[str, Family]:
    """The text format 0.0.4, strictly: HELP, TYPE, then the samples of one metric, each once."""
    assert text.endswith("\n") and "\n\n" not in text
    found: dict[str, Family] = {}
    lines = iter(text.splitlines())
    family, name, says = None, "", ""
    for line in lines:
        if line.startswith("# HELP "):
            _, _, name, says = line.split(" ", 3)
            kind = next(lines).split(" ")
            assert kind[:3] == ["#", "TYPE", name] and name not in found, line
            assert kind[3] in ("counter", "gauge", "histogram")
            family = found[name] = Family(kind[3], says, {})
            continue
        sample = SAMPLE.fullmatch(line)
        assert sample is not None and family is not None, line
        allowed = {name}
        if family.kind == "histogram":
            allowed = {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
        assert sample[1] in allowed, line
        labels = sample[2] or ""
        keys = re.findall(r'(\w+)="', labels)
        assert len(keys) == len(set(keys)), line
        assert (sample[1], labels) not in family.samples, f"{line} comes twice"
        family.samples[sample[1], labels] = float(sample[3])
    for name, one in found.items():
        assert one.samples, f"{name} has no sample"
        if one.kind == "histogram":
            check_buckets(name, one)
    return found


def check_buckets(name: str, family: Family) -> None:
    buckets = [
        (float(labels[len('le="') : -1]), value)
        for (sample, labels), value in family.samples.items()
        if sample == f"{name}_bucket"
    ]
    assert buckets == sorted(buckets), name
    assert [value for _, value in buckets] == sorted(value for _, value in buckets), name
    assert buckets[-1] == (float("inf"), family.samples[f"{name}_count", ""])
    assert (f"{name}_sum", "") in family.samples


def ask(broker: Hosted) -> dict[str, Family]:
    with Asking(broker.ports["http"]) as client:
        answer = client.ask("GET", "/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return parse(answer.body.decode())


def value(broker: Hosted, name: str, labels: str = "") -> float:
    return ask(broker)[name].samples[name, labels]


def test_every_metric_has_help_and_type_and_parses(broker: Hosted) -> None:
    found = ask(broker)
    assert set(found) == set(FAMILIES)
    for name, family in found.items():
        assert (family.kind, family.says) == FAMILIES[name]
        assert len(family.says) > 10 and family.says.endswith("."), name


def test_names_are_noun_and_unit_and_only_counters_end_in_total(broker: Hosted) -> None:
    for name, family in ask(broker).items():
        base = name.removesuffix("_total")
        assert (base != name) is (family.kind == "counter"), name
        assert re.fullmatch(r"penstock(_[a-z0-9]+)+", base), name
        assert base.rpartition("_")[2] in UNITS, name


def test_every_metric_is_explained_to_operators() -> None:
    text = OPERATIONS.read_text()
    for name in FAMILIES:
        assert re.search(rf"`{name}(\{{[^`]*)?`", text), name


def test_build_process_and_disk_are_told(broker: Hosted) -> None:
    found = ask(broker)
    ((_, labels),) = found["penstock_build_info"].samples
    assert f'version="{__version__}"' in labels and 'engine="' in labels
    assert value(broker, "penstock_process_resident_bytes") > 1e6
    assert value(broker, "penstock_process_open_fds") > 3
    assert value(broker, "penstock_process_start_time_seconds") > 1.7e9
    free = value(broker, "penstock_disk_free_bytes")
    assert 0 < free < value(broker, "penstock_disk_size_bytes")
    assert value(broker, "penstock_disk_refusing_publishes") == 0


@pytest.fixture
def fresh(tmp_path: Path) -> Hosted:
    return Hosted(tmp_path)


def test_clients_sessions_subscriptions_and_retained_messages_are_told(fresh: Hosted) -> None:
    with fresh as broker:
        kept, _ = connect_kept(broker.port, "kept", MQTT_5)
        kept.subscribe("a/#", qos=1)
        with Wire(broker.port, "other", MQTT_5) as other:
            other.connect()
            other.subscribe("b/#", "$share/g/c")
            other.publish("a/1", b"x", 1, retain=True)
            assert value(broker, "penstock_connected_clients") == 2
            assert value(broker, "penstock_open_connections", 'door="mqtt"') == 2
            assert value(broker, "penstock_open_connections", 'door="http"') >= 1
            assert value(broker, "penstock_mqtt_subscriptions", 'kind="plain"') == 2
            assert value(broker, "penstock_mqtt_subscriptions", 'kind="shared"') == 1
            assert value(broker, "penstock_retained_messages") == 1
            assert value(broker, "penstock_stored_records") == 1
            assert kept.receive().payload == b"x"
            kept.disconnect()
            broker.wait_idle()
            assert value(broker, "penstock_mqtt_sessions", 'state="connected"') == 1
            assert value(broker, "penstock_mqtt_sessions", 'state="away"') == 1


def test_the_lag_of_consumers_and_groups_is_told_by_kind(fresh: Hosted) -> None:
    with fresh as broker, Asking(broker.ports["http"]) as client:
        assert client.ask("PUT", "/v1/topics/jobs").status in (200, 201)
        for name in ("one", "two"):
            assert client.ask("PUT", f"/v1/topics/jobs/consumers/{name}", {}).status in (200, 201)
        client.ask("POST", "/v1/topics/jobs/groups/g/fetch", {"limit": 1, "wait": 0})
        rows = [{"payload": str(number)} for number in range(10)]
        assert client.ask("POST", "/v1/topics/jobs/records", rows).status == 200
        client.ask("POST", "/v1/topics/jobs/consumers/one/fetch", {"limit": 4})
        lag, longest = "penstock_lag_records", "penstock_longest_lag_records"
        assert value(broker, lag, 'reader="consumer"') == 16
        assert value(broker, longest, 'reader="consumer"') == 10
        assert value(broker, "penstock_lagging_readers", 'reader="consumer"') == 2
        assert value(broker, lag, 'reader="group"') == 10
        assert value(broker, lag, 'reader="session"') == 0


def test_the_number_of_lines_does_not_grow_with_topics_or_readers(fresh: Hosted) -> None:
    with fresh as broker, Asking(broker.ports["http"]) as client:
        before = sum(len(one.samples) for one in ask(broker).values())
        for number in range(20):
            client.ask("PUT", f"/v1/topics/t{number}")
            client.ask("PUT", f"/v1/topics/t{number}/consumers/c{number}", {})
        assert sum(len(one.samples) for one in ask(broker).values()) == before
