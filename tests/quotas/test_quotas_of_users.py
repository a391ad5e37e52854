"""Quotas of each user: one who has all that a user may have leaves the others their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest

import penstock
from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import Connack, Connect, Puback, Publish
from penstock.mqtt.reasons import Reason
from tests.doors.hosted import Hosted
from tests.doors.users import add_users
from tests.doors.wire import Wire
from tests.http.access.test_http_access import basic
from tests.http.asking import Answer, Asking
from tests.waiting import wait_until

Start = Callable[..., "House"]
TOPICS = "/v1/topics"


class House:
    """A broker with two users, both of them admins."""

    def __init__(self, data: Path, config: Path) -> None:
        self.data = data
        self.broker = Hosted(data, config=config)

    def ask(self, user: str, method: str, path: str, body: Any = b"") -> Answer:
        with Asking(self.broker.ports["http"]) as client:
            return client.ask(method, path, body, Authorization=basic(user, user))

    def wire(self, user: str, version: int = MQTT_5) -> Wire:
        client_id = f"client-of-{user}"
        wire = Wire(self.broker.port, client_id, version)
        wire.send(Connect(client_id, version=version, username=user, password=user.encode()))
        assert wire.expect(Connack).reason == Reason.SUCCESS
        return wire

    def refused(self, kind: str) -> int:
        engine = self.broker.exchange.engine
        return self.broker.call(lambda: engine.metrics.refused[f"quota_{kind}"])


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a broker with these lines under [quotas.user]; again on the same directory."""
    data, config = tmp_path / "data", tmp_path / "penstock.toml"
    running: list[House] = []

    def start(quotas: str) -> House:
        if not data.exists():
            add_users(data, alice="alice", bob="bob")
        config.write_text(f"[log]\nupkeep_every = '100ms'\n[quotas.user]\n{quotas}\n")
        for before in running:
            before.broker.__exit__(None, None, None)
        running[:] = [House(data, config)]
        running[0].broker.__enter__()
        assert running[0].ask("alice", "PUT", "/v1/users/bob", {"roles": ["admin"]}).status == 200
        return running[0]

    yield start
    for one in running:
        one.broker.__exit__(None, None, None)


def test_a_topic_too_many_of_a_user_is_refused_also_after_a_restart(start: Start) -> None:
    for _ in range(2):
        house = start("topics = 2")
        assert house.ask("alice", "PUT", f"{TOPICS}/a", {}).status in (200, 201)
        assert house.ask("alice", "PUT", f"{TOPICS}/b", {}).status in (200, 201)
        refused = house.ask("alice", "PUT", f"{TOPICS}/c", {})
        assert refused.status == 429 and "a user may have 2 topics and has 2" in refused.detail
        assert "([quotas.user] topics)" in refused.detail
        assert int(refused.headers["retry-after"]) >= 1
        assert house.refused("topics") == 1
    assert house.ask("bob", "PUT", f"{TOPICS}/c", {}).status == 201
    assert house.ask("bob", "DELETE", f"{TOPICS}/b").status == 204
    assert house.ask("alice", "PUT", f"{TOPICS}/d", {}).status == 201


def test_consumers_and_groups_of_a_user_have_a_quota_also_after_a_restart(start: Start) -> None:
    for _ in range(2):
        house = start("consumers = 1\ngroups = 1")
        house.ask("alice", "PUT", f"{TOPICS}/t", {})
        assert house.ask("alice", "PUT", f"{TOPICS}/t/consumers/one", {}).status in (200, 201)
        assert house.ask("alice", "PUT", f"{TOPICS}/t/consumers/two", {}).status == 429
        seed = house.ask("alice", "POST", "/consumer/register", {"topic": "t"})
        assert seed.status == 429 and seed.json["status"] == "failure"
        assert int(seed.headers["retry-after"]) >= 1
        assert house.ask("alice", "POST", f"{TOPICS}/t/groups/one/fetch", {}).status == 200
        assert house.ask("alice", "POST", f"{TOPICS}/t/groups/two/fetch", {}).status == 429
        assert (house.refused("consumers"), house.refused("groups")) == (2, 1)
    assert house.ask("bob", "PUT", f"{TOPICS}/t/consumers/two", {}).status == 201
    assert house.ask("bob", "POST", f"{TOPICS}/t/groups/two/fetch", {}).status == 200
    assert house.ask("alice", "DELETE", f"{TOPICS}/t/consumers/one").status == 204
    assert house.ask("alice", "DELETE", f"{TOPICS}/t/groups/one").status == 204
    assert house.ask("alice", "POST", "/consumer/register", {"topic": "t"}).status == 200
    assert house.ask("alice", "POST", f"{TOPICS}/t/groups/three/fetch", {}).status == 200


def test_producers_of_a_user_have_a_quota_also_after_a_restart_until_their_topic_is_deleted(
    start: Start,
) -> None:
    def register(house: House, user: str, topic: str) -> Answer:
        return house.ask(user, "POST", "/producer/register", {"topic": topic})

    house = start("producers = 2")
    assert [register(house, "alice", topic).status for topic in "ab"] == [200, 200]
    for _ in range(2):
        refused = register(house, "alice", "a")
        assert refused.status == 429 and refused.json["status"] == "failure"
        assert "a user may have 2 producers and has 2" in refused.json["message"]
        assert int(refused.headers["retry-after"]) >= 1
        assert house.refused("producers") == 1
        house = start("producers = 2")
    assert register(house, "bob", "a").json["producer_id"].startswith("10")  # the second one
    assert house.ask("alice", "DELETE", f"{TOPICS}/a").status == 204
    assert register(house, "alice", "b").status == 200
    assert register(house, "alice", "b").status == 429
    assert [register(house, "bob", "b").status for _ in range(3)] == [200, 200, 429]


def test_a_user_with_too_many_idempotency_keys_loses_only_the_oldest_own_ones(
    start: Start,
) -> None:
    house = start("idempotency_keys = 3")
    assert house.ask("alice", "PUT", f"{TOPICS}/t", {}).status == 201

    def publish(user: str, key: str) -> Answer:
        with Asking(house.broker.ports["http"]) as client:
            return client.ask(
                "POST",
                f"{TOPICS}/t/records",
                {"payload": key},
                Authorization=basic(user, user),
                **{"Idempotency-Key": key},
            )

    def is_repeat(user: str, key: str) -> bool:
        return "idempotency-replayed" in publish(user, key).headers

    assert publish("bob", "first").status == 200
    assert [publish("alice", str(number)).status for number in range(9)] == [200] * 9
    wait_until(lambda: house.refused("idempotency_keys") == 6)
    assert is_repeat("bob", "first")
    assert [is_repeat("alice", str(number)) for number in (8, 7, 6)] == [True] * 3
    assert not is_repeat("alice", "0")


def test_retained_names_of_a_user_have_a_quota_also_after_a_restart(start: Start) -> None:
    for _ in range(2):
        house = start("retained = 2")
        with house.wire("alice") as alice, house.wire("bob") as bob:
            for name in ("a", "b", "a"):
                alice.publish(name, b"of alice", 1, retain=True)
            alice.send(Publish("c", b"1", 1, True, packet_id=77))
            assert alice.pick(Puback, 77).reason == Reason.QUOTA_EXCEEDED
            bob.publish("d", b"of bob", 1, retain=True)
            assert house.refused("retained") == 1
    with house.wire("alice") as alice, house.wire("bob") as bob:
        bob.publish("b", b"of bob", 1, retain=True)  # now it is one of bob's
        alice.publish("c", b"of alice", 1, retain=True)
        bob.send(Publish("e", b"1", 1, True, packet_id=78))
        assert bob.pick(Puback, 78).reason == Reason.QUOTA_EXCEEDED
        bob.publish("d", b"", 1, retain=True)
        bob.publish("e", b"of bob", 1, retain=True)
        record = {"payload": "x", "name": "f", "retain": True}
        assert house.ask("bob", "POST", f"{TOPICS}/default/records", record).status == 429
    with house.wire("alice", MQTT_3_1_1) as old:
        old.send(Publish("f", b"1", 1, True, packet_id=79))
        assert old.is_closed()


def test_retained_bytes_of_a_user_have_a_quota_and_what_is_replaced_makes_room(
    start: Start,
) -> None:
    house = start("retained_bytes = 1000")
    with house.wire("alice") as alice, house.wire("bob") as bob:
        alice.publish("a", bytes(900), 1, retain=True)
        alice.publish("a", bytes(950), 1, retain=True)
        alice.send(Publish("b", bytes(51), 1, True, packet_id=77))
        assert alice.pick(Puback, 77).reason == Reason.QUOTA_EXCEEDED
        bob.publish("b", bytes(1000), 1, retain=True)
    assert house.refused("retained_bytes") == 1


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
def test_topics_of_a_user_that_hold_too_much_take_nothing_until_something_is_deleted(
    start: Start, version: int
) -> None:
    house = start("stored_bytes = '64 KiB'")
    for topic in ("big", "small"):
        assert house.ask("alice", "PUT", f"{TOPICS}/{topic}", {}).status == 201
    assert house.ask("bob", "PUT", f"{TOPICS}/other", {}).status == 201

    def publish(topic: str, payload: str = "x") -> Answer:
        return house.ask("bob", "POST", f"{TOPICS}/{topic}/records", {"payload": payload})

    with house.wire("bob", version) as wire:
        wire.publish("small", b"before", 1)
        assert publish("big", token_hex(200_000)).status == 200
        wait_until(lambda: publish("small").status == 429)
        refused = publish("small")
        assert "the topics of user 'alice' hold" in refused.detail
        assert int(refused.headers["retry-after"]) >= 1
        assert house.refused("stored_bytes") > 0
        assert publish("other").status == 200
        wire.publish("other/1", b"not of alice", 1)
        wire.send(Publish("small/1", b"x", 1, packet_id=77))
        if version == MQTT_5:
            assert wire.pick(Puback, 77).reason == Reason.QUOTA_EXCEEDED
        else:
            assert wire.is_closed()
    assert house.ask("alice", "DELETE", f"{TOPICS}/big").status == 204
    wait_until(lambda: publish("small").status == 200)
    with house.wire("bob", version) as wire:
        wire.publish("small/1", b"after", 1)


def test_a_rate_of_bytes_is_told_and_counted_by_its_name(start: Start) -> None:
    house = start("publish_bytes_rate = 1000")
    assert house.ask("alice", "PUT", f"{TOPICS}/t", {}).status == 201
    body = {"payload": "x" * 5000}
    assert house.ask("alice", "POST", f"{TOPICS}/t/records", body).status == 200
    refused = house.ask("alice", "POST", f"{TOPICS}/t/records", body)
    assert refused.status == 429 and "[quotas] publish_bytes_rate" in refused.detail
    assert int(refused.headers["retry-after"]) >= 3
    assert (house.refused("publish_bytes_rate"), house.refused("publish_rate")) == (1, 0)
    assert house.ask("bob", "POST", f"{TOPICS}/t/records", body).status == 200


def test_what_a_command_on_the_directory_makes_counts_for_no_user(start: Start) -> None:
    house = start("topics = 1")
    with penstock.connect(f"unix://{house.data}/commands.sock") as directory:
        for topic in ("a", "b", "c"):
            directory.create_topic(topic)
    assert house.ask("alice", "PUT", f"{TOPICS}/d", {}).status == 201
