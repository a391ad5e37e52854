"""Does a quota hold for all nodes together, whatever node a client asks?"""

from __future__ import annotations

import base64
import http.client
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from penstock.mqtt.properties import Properties
from penstock.mqtt.reasons import Reason
from tests.cluster.node_world import NodeWorld
from tests.doors.wire import Wire
from tests.kafka_server import KafkaServer
from tests.postgres_server import PostgresServer
from tests.waiting import wait_until

CONNECTIONS, SESSIONS, SUBSCRIPTIONS, WILLS, RATE, CONSUMERS = 4, 5, 3, 2, 200, 4
QUOTAS = f"""
[quotas.user]
connections = {CONNECTIONS}
sessions = {SESSIONS}
subscriptions = {SUBSCRIPTIONS}
wills = {WILLS}
publish_rate = {RATE}
consumers = {CONSUMERS}
groups = {CONSUMERS}
producers = {CONSUMERS}
"""


class Limited:
    """Two nodes with these quotas for each user; every test has a user of its own."""

    def __init__(self, world: NodeWorld) -> None:
        self.world = world
        self._count = 0

    def user(self) -> str:
        self._count += 1
        name = f"user{self._count}"
        self.world.ask(0, f"/v1/users/{name}", {"password": name, "roles": ["admin"]}, "PUT")
        wait_until(lambda: name in [one["user"] for one in self.world.ask(1, "/v1/users")["users"]])
        return name

    def connect(
        self,
        at: int,
        user: str,
        client_id: str,
        *,
        expiry_s: int = 0,
        will: Will | None = None,
    ) -> tuple[Wire, Connack]:
        wire = Wire(self.world[at].port, client_id, MQTT_5)
        wire.send(
            Connect(
                client_id,
                version=MQTT_5,
                clean_start=False,
                username=user,
                password=user.encode(),
                properties=Properties(session_expiry_interval=expiry_s),
                will=will,
            )
        )
        return wire, wire.expect(Connack)

    def enter(self, at: int, user: str, client_id: str, *, expiry_s: int = 0) -> Wire:
        wire, answer = self.connect(at, user, client_id, expiry_s=expiry_s)
        assert answer.reason == Reason.SUCCESS, answer
        return wire

    def wait_enters(self, at: int, user: str, client_id: str) -> Wire:
        """Once another client has gone."""
        found: list[Wire] = []

        def enters() -> bool:
            wire, answer = self.connect(at, user, client_id)
            if answer.reason == Reason.SUCCESS:
                found.append(wire)
            else:
                assert answer.reason == Reason.QUOTA_EXCEEDED
                wire.close()
            return bool(found)

        wait_until(enters)
        return found[0]

    def held(self, kind: str, user: str) -> int:
        ((found,),) = self.world.sql(
            "select coalesce(sum(amount), 0)::bigint from {}.holdings"
            " where kind = $1 and holder = $2",
            *(kind, f"user {user}"),
        )
        return int(found)


@pytest.fixture(scope="module")
def limited(
    kafka: KafkaServer, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Limited]:
    folder = tmp_path_factory.mktemp("quotas")
    config = folder / "quotas.toml"
    config.write_text(QUOTAS)
    with NodeWorld(kafka, postgres, folder, 2, 2, "--config", str(config)) as world:
        yield Limited(world)


def test_connections_at_two_nodes_are_one_count(limited: Limited) -> None:
    user = limited.user()
    wires = [limited.enter(at % 2, user, f"{user}-{at}") for at in range(CONNECTIONS)]
    for at in (0, 1):
        _, refused = limited.connect(at, user, f"{user}-more")
        assert refused.reason == Reason.QUOTA_EXCEEDED
        assert f"a user may have {CONNECTIONS} connections" in (
            refused.properties.reason_string or ""
        )
    wires[0].send_and_close(Disconnect())
    limited.wait_enters(1, user, f"{user}-more").close()


def test_a_stream_counts_at_the_other_node_too(limited: Limited) -> None:
    user = limited.user()
    limited.world.ask(0, "/v1/topics/streamed", {}, "PUT")
    wait_until(lambda: _stream(limited, 1, user)[0] == 200)
    wires = [limited.enter(at % 2, user, f"{user}-{at}") for at in range(CONNECTIONS - 1)]
    status, stream = _stream(limited, 1, user)
    assert status == 200
    assert limited.connect(0, user, f"{user}-more")[1].reason == Reason.QUOTA_EXCEEDED
    assert _stream(limited, 0, user)[0] == 429
    stream.close()
    limited.wait_enters(0, user, f"{user}-more")
    assert len(wires) == CONNECTIONS - 1


def _stream(limited: Limited, at: int, user: str) -> tuple[int, http.client.HTTPConnection]:
    target = http.client.HTTPConnection("127.0.0.1", limited.world[at].http_port, timeout=60)
    target.request("GET", "/v1/topics/streamed/stream", headers={"Authorization": _basic(user)})
    answer = target.getresponse()
    if answer.status != 200:
        target.close()
    return answer.status, target


def _basic(user: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{user}".encode()).decode()


def test_clients_that_race_for_the_last_connections_never_get_more_than_the_quota(
    limited: Limited,
) -> None:
    user = limited.user()

    def try_one(number: int) -> tuple[Wire, Connack]:
        return limited.connect(number % 2, user, f"{user}-{number}")

    for _ in range(3):
        with ThreadPoolExecutor(16) as pool:
            tried = list(pool.map(try_one, range(16)))
        admitted = [wire for wire, answer in tried if answer.reason == Reason.SUCCESS]
        assert len(admitted) <= CONNECTIONS
        for wire, _ in tried:
            wire.close()
        wait_until(lambda: limited.held("connections", user) == 0)
    wires = [limited.wait_enters(at % 2, user, f"{user}-{at}") for at in range(CONNECTIONS)]
    assert limited.connect(0, user, f"{user}-more")[1].reason == Reason.QUOTA_EXCEEDED
    assert len(wires) == CONNECTIONS


def test_stored_sessions_count_wherever_they_were_made_and_ended(limited: Limited) -> None:
    user = limited.user()
    for number in range(SESSIONS):
        wire = limited.enter(number % 2, user, f"{user}-{number}", expiry_s=3600)
        wire.send_and_close(Disconnect())
    for at in (0, 1):
        refused = limited.connect(at, user, f"{user}-more", expiry_s=3600)[1]
        assert refused.reason == Reason.QUOTA_EXCEEDED
        assert "persistent sessions" in (refused.properties.reason_string or "")
    back = limited.enter(1, user, f"{user}-0", expiry_s=3600)  # a session that is there may return
    back.send_and_close(Disconnect(properties=Properties(session_expiry_interval=0)))
    limited.wait_enters(0, user, f"{user}-more").close()


def test_wills_at_two_nodes_are_one_count(limited: Limited) -> None:
    user = limited.user()
    will = Will("last/words", b"gone")
    wires = []
    for at in range(WILLS):
        wire, answer = limited.connect(at % 2, user, f"{user}-{at}", will=will)
        assert answer.reason == Reason.SUCCESS
        wires.append(wire)
    for at in (0, 1):
        refused = limited.connect(at, user, f"{user}-more", will=will)[1]
        assert refused.reason == Reason.QUOTA_EXCEEDED
    wires[0].send_and_close(Disconnect())
    wait_until(lambda: limited.held("wills", user) < WILLS)
    assert limited.connect(1, user, f"{user}-more", will=will)[1].reason == Reason.SUCCESS


def test_subscriptions_at_two_nodes_are_one_count(limited: Limited) -> None:
    user = limited.user()
    wires = [limited.enter(at, user, f"{user}-{at}") for at in (0, 1)]

    def subscribe(at: int, *filters: str) -> list[int]:
        asked = tuple(Subscription(one, 1) for one in filters)
        wires[at].send(Subscribe(wires[at].take_id(), asked))
        return [int(one) for one in wires[at].expect(Suback).reasons]

    assert subscribe(0, "a", "b") == [1, 1]
    assert subscribe(1, "a") == [1]
    for at in (0, 1):
        assert subscribe(at, "c") == [Reason.QUOTA_EXCEEDED]
    assert subscribe(1, "a") == [1]  # again: it is no further one
    wires[0].send(Unsubscribe(wires[0].take_id(), ("b",)))
    wires[0].expect(Unsuback)
    wait_until(lambda: subscribe(1, "c") == [1])
    assert limited.held("subscriptions", user) == SUBSCRIPTIONS


def test_consumers_groups_and_producers_of_topics_at_two_nodes_are_one_count(
    limited: Limited,
) -> None:
    user = limited.user()
    topics = [f"{user}-{number}" for number in range(6)]  # surely in slots of both nodes

    def ask(method: str, path: str, body: dict[str, str]) -> int:
        at = len(path) % 2
        target = http.client.HTTPConnection("127.0.0.1", limited.world[at].http_port, timeout=60)
        told = {"Authorization": _basic(user), "content-type": "application/json"}
        target.request(method, path, json.dumps(body), told)
        status = target.getresponse().status
        target.close()
        return status

    for topic in topics:
        assert ask("PUT", f"/v1/topics/{topic}", {}) == 201
    for number, topic in enumerate(topics):
        wait_until(lambda topic=topic: limited.world.ask(0, f"/v1/topics/{topic}") is not None)
        wait_until(lambda topic=topic: limited.world.ask(1, f"/v1/topics/{topic}") is not None)
        expected = (201, 200, 200) if number < CONSUMERS else (429, 429, 429)
        assert ask("PUT", f"/v1/topics/{topic}/consumers/c", {}) == expected[0]
        assert ask("POST", f"/v1/topics/{topic}/groups/g/fetch", {}) == expected[1]
        assert ask("POST", "/producer/register", {"topic": topic}) == expected[2]
    assert ask("DELETE", f"/v1/topics/{topics[0]}/consumers/c", {}) == 204
    wait_until(lambda: ask("PUT", f"/v1/topics/{topics[-1]}/consumers/c", {}) == 201)


def test_a_rate_is_for_all_nodes_together_and_one_node_may_use_all_of_it(limited: Limited) -> None:
    user = limited.user()
    wires = [limited.enter(at, user, f"{user}-{at}") for at in (0, 1)]

    def publish(at: int, seconds: float) -> int:
        """How many messages a node took."""
        wire, count, until_s = wires[at], 0, time.monotonic() + seconds
        while time.monotonic() < until_s:
            wire.publish_all(f"rate/{user}", 10, 1)
            count += 10
        return count

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda at: publish(at, 3), (0, 1)))  # until the nodes know of each other
        both = sum(pool.map(lambda at: publish(at, 4), (0, 1)))
    assert both < 1.6 * RATE * 4, "a node of its own would have let pass twice the quota"
    publish(0, 3)
    assert publish(0, 4) > 0.7 * RATE * 4, "half of the quota is idle at the other node"


def test_what_a_killed_node_held_is_free_again(limited: Limited) -> None:
    user = limited.user()
    wires = [limited.enter(1, user, f"{user}-{number}") for number in range(CONNECTIONS)]
    assert limited.connect(0, user, f"{user}-more")[1].reason == Reason.QUOTA_EXCEEDED
    limited.world[1].kill()
    assert len(wires) == CONNECTIONS
    limited.wait_enters(0, user, f"{user}-more").close()
    limited.world[1].start()


def test_the_counts_are_those_of_the_tables(limited: Limited) -> None:
    """Whatever the tests before have done."""

    def counted(kind: str) -> list[tuple[str, int]]:
        rows = limited.world.sql(
            "select holder, sum(amount)::bigint from {}.holdings where kind = $1"
            " group by holder having sum(amount) <> 0",
            kind,
        )
        return sorted((str(holder), int(amount)) for holder, amount in rows)

    def stored(table: str) -> list[tuple[str, int]]:
        rows = limited.world.sql(
            f"with stored as (select owner from {{}}.{table})"
            " select 'user ' || owner, count(*) from stored group by owner"
            " union all select 'tenant', count(*) from stored having count(*) > 0"
        )
        return sorted((str(holder), int(amount)) for holder, amount in rows)

    for table in ("sessions", "wills"):
        wait_until(lambda table=table: counted(table) == stored(table))
