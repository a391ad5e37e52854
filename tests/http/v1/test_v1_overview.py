"""`/v1/overview`, `/v1/me`, `/v1/retained` and `/v1/pipelines`: what a page shows people."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.figures.metrics import Histogram
from penstock.broker.figures.overview import SAMPLES_MAX
from penstock.model.record import DEFAULT_TENANT
from penstock.mqtt.kinds import MQTT_5
from tests.doors.hosted import Hosted
from tests.doors.users import add_users
from tests.doors.wire import Wire, kept
from tests.http.asking import Asking


def login(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def store(client: Asking, topic: str, *messages: dict[str, Any]) -> None:
    assert client.ask("PUT", f"/v1/topics/{topic}", {}).status in (200, 201)
    assert client.ask("POST", f"/v1/topics/{topic}/records", list(messages)).status == 200


def sample(broker: Hosted) -> None:
    """As the timer does every few seconds."""
    broker.call(broker.http.tenants.get(DEFAULT_TENANT).world.samples.take)


def test_the_overview_counts_what_was_stored_and_read(tmp_path: Path) -> None:
    with Hosted(tmp_path) as broker, Asking(broker.ports["http"]) as client:
        sample(broker)
        store(client, "orders", *({"payload": number} for number in range(7)))
        assert client.ask("GET", "/v1/topics/orders/records").status == 200
        sample(broker)
        now = client.ask("GET", "/v1/overview").json
        values = now["series"]["values"]
        assert (now["topics"], now["records"], now["tenant"]) == (1, 7, "default")
        assert values["published"][-1] == values["http_in"][-1] == values["http_out"][-1] > 0
        assert values["mqtt_in"][-1] == 0
        assert values["commit_ms"][-1] > 0 and values["commit_p99_ms"][-1] > 0
        assert values["ack_ms"][-1] >= values["commit_ms"][-1] and values["ack_p99_ms"][-1] > 0
        assert len({len(one) for one in values.values()} | {len(now["series"]["at"])}) == 1


def test_the_overview_estimates_what_retention_removes_within_a_day(tmp_path: Path) -> None:
    with Hosted(tmp_path) as broker, Asking(broker.ports["http"]) as client:
        store(client, "long", *({"payload": number} for number in range(9)))
        client.ask("PUT", "/v1/topics/short", {"retention_age": "1h"})
        store(client, "short", *({"payload": number} for number in range(9)))
        disk = client.ask("GET", "/v1/overview").json["disk"]
        size = client.ask("GET", "/v1/topics/short").json["bytes"]
        assert disk["expiring_bytes"] == size > 0
        assert disk["used_bytes"] > size


def test_only_samples_behind_a_time_are_shown(tmp_path: Path) -> None:
    with Hosted(tmp_path) as broker, Asking(broker.ports["http"]) as client:
        for _ in range(3):
            sample(broker)
        times = client.ask("GET", "/v1/overview").json["series"]["at"]
        after = client.ask("GET", f"/v1/overview?after={times[-2]}").json["series"]
        assert after["at"] == times[-1:]
        assert all(len(one) == 1 for one in after["values"].values())
        assert client.ask("GET", "/v1/overview?after=soon").status == 400


def test_an_hour_is_kept_and_no_more(tmp_path: Path) -> None:
    with Hosted(tmp_path) as broker, Asking(broker.ports["http"]) as client:
        for _ in range(SAMPLES_MAX + 5):
            sample(broker)
        assert len(client.ask("GET", "/v1/overview").json["series"]["at"]) == SAMPLES_MAX


def test_the_slowest_reader_comes_first(tmp_path: Path) -> None:
    with Hosted(tmp_path) as broker, Asking(broker.ports["http"]) as client:
        store(client, "orders", *({"payload": number} for number in range(9)))
        for name, start in (("late", "earliest"), ("near", 7), ("level", "latest")):
            client.ask("PUT", f"/v1/topics/orders/consumers/{name}", {"from": start})
        client.ask("POST", "/v1/topics/orders/groups/workers/fetch", {"limit": 4})
        slowest = client.ask("GET", "/v1/overview").json["slowest"]
        assert [(one["kind"], one["reader"], one["lag"]) for one in slowest] == [
            ("consumer", "late", 9),
            ("group", "workers", 5),
            ("consumer", "near", 2),
        ]


def test_messages_that_wait_for_a_session_that_is_away_are_among_the_slowest(
    tmp_path: Path,
) -> None:
    with Hosted(tmp_path) as broker, Asking(broker.ports["http"]) as client:
        client.ask("PUT", "/v1/topics/orders", {})
        store(client, "other", {"payload": 1, "name": "other/1"})
        with Wire(broker.port, "archive", MQTT_5) as wire:
            wire.connect(properties=kept())
            wire.subscribe("orders/#", qos=1)
            wire.disconnect()
        store(client, "orders", *({"payload": number, "name": "orders/1"} for number in range(9)))
        store(client, "other", {"payload": 1, "name": "other/1"})
        (slowest,) = client.ask("GET", "/v1/overview").json["slowest"]
        waiting = {"kind": "session, away", "topic": "orders", "reader": "archive", "lag": 9}
        assert slowest == waiting


def test_subscriptions_count_shared_ones_too(tmp_path: Path) -> None:
    with (
        Hosted(tmp_path) as broker,
        Asking(broker.ports["http"]) as client,
        Wire(broker.port, "worker") as wire,
    ):
        wire.connect()
        wire.subscribe("orders/#", qos=1)
        wire.subscribe("$share/workers/jobs/#", qos=1)
        assert client.ask("GET", "/v1/overview").json["subscriptions"] == 2


@pytest.mark.parametrize(
    ("seen", "bound"), [([], 0.0), ([0.5], 1.0), ([0.5] * 99 + [50.0], 1.0), ([50.0] * 3, 100.0)]
)
def test_the_bound_of_a_share_is_the_first_bound_that_holds_it(
    seen: list[float], bound: float
) -> None:
    histogram = Histogram([1.0, 10.0, 100.0])
    for value in seen:
        histogram.observe(value)
    assert histogram.bound_of(histogram.counts, 0.99) == bound


def test_who_asks_is_told_who_it_is(tmp_path: Path) -> None:
    add_users(tmp_path, boss="first", worker="second")
    with Hosted(tmp_path) as broker, Asking(broker.ports["http"]) as client:
        boss = client.ask("GET", "/v1/me", **login("boss", "first")).json
        worker = client.ask("GET", "/v1/me", **login("worker", "second")).json
        assert (boss["user"], boss["tenant"], boss["is_admin"]) == ("boss", "default", True)
        assert (worker["user"], worker["is_admin"], worker["is_operator"]) == (
            "worker",
            False,
            False,
        )
        assert (boss["mqtt_port"], boss["mqtts_port"]) == (broker.port, None)
        assert client.ask("GET", "/v1/pipelines", **login("worker", "second")).status == 403


def test_retained_messages_are_listed_by_filter_and_only_those_one_may_read(
    tmp_path: Path,
) -> None:
    add_users(tmp_path, boss="first", worker="second")
    with Hosted(tmp_path) as broker, Asking(broker.ports["http"]) as client:
        boss, worker = login("boss", "first"), login("worker", "second")
        client.ask("PUT", "/v1/topics/site", {}, **boss)
        messages = [
            {"name": name, "payload": "on", "retain": True}
            for name in ("site/1/lamp", "site/2/lamp", "site/hr/pay")
        ]
        assert client.ask("POST", "/v1/topics/site/records", messages, **boss).status == 200
        rule = {"rules": ["deny read site/hr/#"], "user": "worker"}
        assert client.ask("POST", "/v1/rules", rule, **boss).status in (200, 201)

        def names(query: str, who: dict[str, str]) -> list[str]:
            answer = client.ask("GET", f"/v1/retained{query}", **who)
            return [one["name"] for one in answer.json["retained"]]

        assert names("", boss) == ["site/1/lamp", "site/2/lamp", "site/hr/pay"]
        assert names("", worker) == ["site/1/lamp", "site/2/lamp"]
        assert names("?names=site/%2B/lamp", boss) == ["site/1/lamp", "site/2/lamp"]
        shown = client.ask("GET", "/v1/retained?limit=1", **boss).json
        assert (len(shown["retained"]), shown["has_more"]) == (1, True)
        assert shown["retained"][0]["payload_bytes"] == 2
        assert client.ask("GET", "/v1/retained?names=a%23", **boss).status == 400
