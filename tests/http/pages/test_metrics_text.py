"""`/metrics`: is it what Prometheus reads, is every metric explained, and do the gauges tell?"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import pytest

from penstock import __version__
from penstock.app.server import Server
from penstock.broker.figures import gauges
from penstock.broker.figures.metrics import FAMILIES
from penstock.doors.http import status
from penstock.model.record import TenantId
from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Publish
from tests.doors.hosted import Hosted
from tests.doors.wire import Wire, connect_kept
from tests.http.access.test_http_access import basic
from tests.http.asking import Asking

OPERATIONS = Path(__file__).parents[3] / "docs" / "OPERATIONS.md"
NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\"n])*"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (\S+)")
UNITS = (
    *("bytes", "seconds", "records", "messages", "packets", "chunks", "fds", "info"),
    *("clients", "connections", "publishes", "readers", "sessions", "subscriptions", "topics"),
    *("dropped", "failures", "refused", "violations"),  # pinned: penstock_dropped_total
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
    """Of each series: those of a tenant, or the only one."""
    for sample, series in [key for key in family.samples if key[0] == f"{name}_count"]:
        begin = f"{series},le=" if series else "le="
        buckets = [
            (float(labels.removeprefix(begin)[1:-1]), value)
            for (sample, labels), value in family.samples.items()
            if sample == f"{name}_bucket" and labels.startswith(begin)
        ]
        assert buckets == sorted(buckets), name
        assert [value for _, value in buckets] == sorted(value for _, value in buckets), name
        assert buckets[-1] == (float("inf"), family.samples[sample, series])
        assert (f"{name}_sum", series) in family.samples


def ask(broker: Hosted) -> dict[str, Family]:
    with Asking(broker.ports["http"]) as client:
        answer = client.ask("GET", "/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return parse(answer.body.decode())


def value(broker: Hosted, name: str, labels: str = "") -> float:
    return ask(broker)[name].samples[name, labels]


def test_every_metric_has_help_and_type_and_parses(broker: Hosted) -> None:
    found = ask(broker)
    named = ("penstock_bridge_", "penstock_topic_")  # come with the first bridge or topic
    assert {name for name in found if not name.startswith(named)} == {
        name for name in FAMILIES if not name.startswith(named)
    }
    for name, family in found.items():
        assert (family.kind, family.says) == FAMILIES[name]
        assert len(family.says) > 10 and family.says.endswith("."), name


def test_names_are_noun_and_unit_and_only_counters_end_in_total(broker: Hosted) -> None:
    for name, family in ask(broker).items():
        base = name.removesuffix("_total")
        assert (base != name) is (family.kind == "counter"), name
        assert re.fullmatch(r"(penstock|process)(_[a-z0-9]+)+", base), name
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
    assert value(broker, "process_cpu_seconds_total") > 0.1
    assert value(broker, "process_resident_memory_bytes") > 1e6
    assert 3 < value(broker, "process_open_fds") < value(broker, "process_max_fds")
    assert value(broker, "process_start_time_seconds") > 1.7e9
    assert value(broker, "penstock_loop_lag_seconds") >= 0
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


def test_the_number_of_lines_does_not_grow_with_topics_or_readers(
    fresh: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gauges, "TOPICS_MAX", 3)
    with fresh as broker, Asking(broker.ports["http"]) as client:
        for number in range(4):
            client.ask("PUT", f"/v1/topics/t{number}")
        before = sum(len(one.samples) for one in ask(broker).values())
        for number in range(20):
            client.ask("PUT", f"/v1/topics/t{number}")
            client.ask("PUT", f"/v1/topics/t{number}/consumers/c{number}", {})
        assert sum(len(one.samples) for one in ask(broker).values()) == before


def test_the_largest_topics_are_told_by_name_and_the_others_together(
    fresh: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gauges, "TOPICS_MAX", 2)
    with fresh as broker, Asking(broker.ports["http"]) as client:
        for name, count in (("small", 1), ('a "b" \\', 2), ("large", 3), ("empty", 0)):
            path = f"/v1/topics/{quote(name)}"
            client.ask("PUT", path)
            rows = [{"payload": "x" * 1000}] * count
            assert not count or client.ask("POST", f"{path}/records", rows).status == 200
        broker.run(lambda server: server.broker.engine.upkeep.look_after_all())
        found = ask(broker)["penstock_topic_records"].samples
        assert {labels: count for (_, labels), count in found.items()} == {
            r'topic="a \"b\" \\"': 2,
            'topic="large"': 3,
            'topic="(others)"': 1,
        }
        assert value(broker, "penstock_topic_bytes", 'topic="large"') > 3000


def test_nobody_is_told_of_topics_that_they_may_not_see(tmp_path: Path) -> None:
    async def add(server: Server) -> None:
        access = server.broker.engine.access
        await access.add_user("boss", b"secret", ["admin"])
        await access.add_user("ann", b"secret", ["sensor"])

    with Hosted(tmp_path) as broker, Asking(broker.ports["http"]) as client:
        client.ask("PUT", "/v1/topics/hidden")
        role = {"rules": ["allow publish sensors/#"]}
        assert client.ask("PUT", "/v1/roles/sensor", role).status in (200, 201)
        broker.run(add)
        told = {
            user: client.ask("GET", "/metrics", Authorization=basic(user, "secret")).body.decode()
            for user in ("boss", "ann")
        }
    assert 'topic="hidden"' in told["boss"]
    assert "hidden" not in told["ann"] and "penstock_topic_" not in told["ann"]


def test_how_long_publishers_and_readers_waited_is_told_once_for_each_commit(fresh: Hosted) -> None:
    acks, deliveries = "penstock_publish_ack_seconds", "penstock_publish_deliver_seconds"

    def counts(broker: Hosted) -> tuple[float, float]:
        found = ask(broker)
        return tuple(found[name].samples[f"{name}_count", ""] for name in (acks, deliveries))

    with fresh as broker, Wire(broker.port, "one", MQTT_5) as wire:
        wire.connect()
        wire.publish("a", b"nobody reads it", 1)
        assert counts(broker) == (1, 0)
        wire.subscribe("a", qos=1)
        wire.publish("a", b"read", 1)
        assert wire.pick(Publish).payload == b"read"
        assert counts(broker) == (2, 1)
        wire.publish("b", b"nobody waits for it", 0)
        wire.publish("c", b"", 1)
        assert counts(broker) == (3, 1)
        assert 0 < ask(broker)[acks].samples[f"{acks}_sum", ""] < 60


def tenants_of(text: str) -> dict[str, dict[str, float]]:
    """Published records by tenant; '' for a value without that label."""
    found: dict[str, dict[str, float]] = {}
    for family in parse(text).values():
        for (name, labels), value in family.samples.items():
            tenant = re.search(r'tenant="([^"]*)"', labels)
            found.setdefault(tenant[1] if tenant else "", {})[name] = value
    return found


def test_an_operator_sees_all_tenants_by_name_and_everybody_else_only_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = "penstock_published_records_total"
    logins = {
        "op": basic("op", "secret"),
        "": basic("ann", "secret"),
        "acme": basic("acme/ann", "secret"),
    }

    async def add(server: Server) -> None:
        access = server.broker.engine.access
        await access.add_user("op", b"secret", ["operator"])
        await access.add_user("ann", b"secret", ["admin"])

    async def add_tenant(server: Server, tenant: TenantId) -> None:
        await server.broker.tenants.add(tenant)
        await server.broker.engine.access.add_user("ann", b"secret", ["admin"], tenant)

    with Hosted(tmp_path) as broker, Asking(broker.ports["http"]) as client:

        def metrics(who: str, **headers: str) -> str:
            login = {"Authorization": logins[who]} | headers
            return client.ask("GET", "/metrics", **login).body.decode()

        broker.run(add)
        assert set(tenants_of(metrics("op"))) == {""}, "with one tenant there is no label"
        for tenant in map(TenantId, ("acme", "globex", "hooli")):
            broker.run(lambda server, one=tenant: add_tenant(server, one))
        for who, count in (("", 1), ("acme", 2)):
            login = {"Authorization": logins[who]}
            client.ask("PUT", "/v1/topics/t", {}, **login)
            for _ in range(count):
                client.ask("POST", "/v1/topics/t/records", {"payload": 1}, **login)
        for who, count in (("", 1), ("acme", 2)):
            own = tenants_of(metrics(who))
            assert set(own) == {""} and own[""][published] == count + 1  # and the audit
        asked = tenants_of(metrics("op", Penstock_Tenant="acme"))
        assert set(asked) == {""} and asked[""][published] == 3
        every = tenants_of(metrics("op"))
        assert {name: values.get(published) for name, values in every.items()} == {
            "": None,
            "default": 2,
            "acme": 3,
            "globex": 0,
            "hooli": 0,
        }
        assert {"penstock_process_resident_bytes", "penstock_open_connections"} <= every[""].keys()
        monkeypatch.setattr(status, "TENANTS_MAX", 1)
        bounded = tenants_of(metrics("op"))
        assert set(bounded) == {"", "default", "(others)"}
        assert bounded["(others)"][published] == 3
