"""Does everything that is measured in durations last as long as it should when clocks are set?

A real broker under a preloaded library that sets its clocks (faked_clock.c): somebody sets the wall
clock while it runs and while it is away, on the same run of the machine and across a boot.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Puback, Publish, Will
from penstock.mqtt.properties import Properties
from tests.doors.wire import SentAt, Wire, kept
from tests.http.asking import Answer, Asking
from tests.peers.faked import DAY_S, JUMPS, Faked, compile_faked_clock
from tests.waiting import wait_until

EXPIRY_S = 7200
HOURS = 3600

jumps = pytest.mark.parametrize("jump_s", JUMPS.values(), ids=JUMPS)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_faked_clock(tmp_path_factory.mktemp("shim"))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Iterator[Faked]:
    """One broker that lives through all jumps of this file."""
    faked = Faked(tmp_path_factory.mktemp("running"), library)
    with faked.broker:
        yield faked


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return "".join(char if char.isalnum() else "-" for char in request.node.name)


def store(client: Asking, topic: str, payload: Any = "x", **headers: str) -> int:
    """The offset at which it lies, now or from before."""
    answer = client.ask("POST", f"/v1/topics/{topic}/records", {"payload": payload}, **headers)
    assert answer.status == 200, answer
    return int(answer.json["results"][0]["offset"])


def records(client: Asking, topic: str, start: int | str = "earliest") -> list[Any]:
    answer = client.ask("GET", f"/v1/topics/{topic}/records?from={start}")
    assert answer.status == 200, answer
    return list(answer.json["records"])


def stamp(client: Asking) -> int:
    (record,) = records(client, "probe", store(client, "probe"))
    return int(record["timestamp"])


def jump(faked: Faked, by_s: int) -> None:
    """Set the wall clock and wait until stamps have followed, as far as they can."""
    faked.jump(by_s)
    with faked.ask() as client:
        client.ask("PUT", "/v1/topics/probe")

        def has_followed() -> bool:
            first_us = stamp(client)
            time.sleep(0.05)
            newest_us = stamp(client)
            ahead_us = newest_us - faked.wall_us
            is_waiting = ahead_us > 0 and newest_us - first_us < 10_000
            return is_waiting or abs(ahead_us) < 500_000

        wait_until(has_followed)


@pytest.fixture
def faked(running: Faked) -> Faked:
    """The running broker, with stamps at the wall clock again after a test that set it back."""
    with running.ask() as client:
        client.ask("PUT", "/v1/topics/probe")
        behind_us = stamp(client) - running.wall_us
    if behind_us > 0:
        jump(running, behind_us // 10**6 + 1)
    return running


def fetch(client: Asking, topic: str) -> Answer:
    return client.ask("POST", f"/v1/topics/{topic}/groups/g/fetch", {"limit": 1})


# While the broker runs


@jumps
def test_a_lease_ends_after_its_time_and_not_before(faked: Faked, name: str, jump_s: int) -> None:
    with faked.ask() as client:
        client.ask("PUT", f"/v1/topics/{name}")
        store(client, name)
        assert len(fetch(client, name).json["records"]) == 1
        jump(faked, jump_s)
        assert fetch(client, name).json["records"] == []
        (pending,) = client.ask("GET", f"/v1/topics/{name}/groups/g").json["pending"]
        assert pending["state"] == "leased"
        assert 0 < pending["expires_at"] - faked.wall_us <= 30_000_000
        faked.pass_time(31)
        (again,) = fetch(client, name).json["records"]
        assert again["deliveries"] == 2


@jumps
def test_a_record_given_back_waits_for_its_delay(faked: Faked, name: str, jump_s: int) -> None:
    with faked.ask() as client:
        client.ask("PUT", f"/v1/topics/{name}")
        store(client, name)
        receipt = fetch(client, name).json["receipt"]
        back = {"receipt": receipt, "delay": 600}
        assert client.ask("POST", f"/v1/topics/{name}/groups/g/nack", back).status == 200
        jump(faked, jump_s)
        faked.pass_time(590)
        assert fetch(client, name).json["records"] == []
        faked.pass_time(10)
        assert len(fetch(client, name).json["records"]) == 1


def leave(faked: Faked, client_id: str, expiry_s: int, filter: str = "nothing") -> None:
    """Connect a session and go."""
    with Wire(faked.broker.port, client_id, MQTT_5) as wire:
        wire.connect(clean=False, properties=kept(expiry_s))
        wire.subscribe(filter, qos=1)
        wire.disconnect()


def is_there(client: Asking, client_id: str) -> bool:
    return client.ask("GET", f"/v1/sessions/{client_id}").status == 200


def wait_for_expiry(faked: Faked, client: Asking, name: str) -> None:
    """Until the broker has looked once more for sessions whose time is over."""
    leave(faked, f"{name}-short", 1)
    faked.pass_time(2)
    wait_until(lambda: not is_there(client, f"{name}-short"))


@jumps
@pytest.mark.parametrize("expiry_s", [60, 10 * HOURS])
def test_a_session_expires_after_its_time_and_not_before(
    faked: Faked, name: str, expiry_s: int, jump_s: int
) -> None:
    leave(faked, name, expiry_s)
    with faked.ask() as client:
        jump(faked, jump_s)
        wait_for_expiry(faked, client, name)
        assert is_there(client, name)
        faked.pass_time(expiry_s - 30)
        wait_for_expiry(faked, client, name)
        assert is_there(client, name)
        faked.pass_time(30)
        wait_until(lambda: not is_there(client, name))


@jumps
def test_an_idempotency_key_counts_for_a_day(faked: Faked, name: str, jump_s: int) -> None:
    with faked.ask() as client:
        client.ask("PUT", f"/v1/topics/{name}")
        assert store(client, name, Idempotency_Key="k") == 0
        jump(faked, jump_s)
        assert store(client, name, Idempotency_Key="k") == 0
        faked.pass_time(DAY_S - 60)
        assert store(client, name, Idempotency_Key="k") == 0
        faked.pass_time(60)
        assert store(client, name, Idempotency_Key="k") == 1


@jumps
def test_a_will_is_published_after_its_delay(faked: Faked, name: str, jump_s: int) -> None:
    properties = Properties(will_delay_interval=2)
    with Wire(faked.broker.port, name + "r", MQTT_5) as reader:
        reader.connect()
        reader.subscribe(name, qos=1)
        lost = Wire(faked.broker.port, name, MQTT_5)
        lost.connect(
            clean=False, properties=kept(), will=Will(name, b"gone", 1, properties=properties)
        )
        lost.close()
        lost_s = time.monotonic()
        faked.jump(jump_s)
        assert reader.receive().payload == b"gone"
        assert time.monotonic() - lost_s > 1.5


def publish(port: int, name: str, expiry_s: int = EXPIRY_S, *, retain: bool = False) -> SentAt:
    with Wire(port, "", MQTT_5) as writer:
        writer.connect()
        properties = Properties(message_expiry_interval=expiry_s)
        sent = SentAt()
        writer.send(Publish(name, b"x", 1, retain, packet_id=1, properties=properties))
        writer.expect(Puback)
        return sent


def told(message: Publish) -> int | None:
    return message.properties.message_expiry_interval


@jumps
def test_a_connected_subscriber_is_told_the_expiry_as_published(
    faked: Faked, name: str, jump_s: int
) -> None:
    with Wire(faked.broker.port, name, MQTT_5) as reader:
        reader.connect()
        reader.subscribe(name, qos=1)
        faked.jump(jump_s)  # and the broker has not looked at its wall clock since
        publish(faked.broker.port, name).check_left(told(reader.receive()), EXPIRY_S)
        jump(faked, 0)
        publish(faked.broker.port, name).check_left(told(reader.receive()), EXPIRY_S)


@jumps
@pytest.mark.parametrize("is_before", [True, False], ids=["before", "after"])
def test_a_subscriber_that_comes_later_is_told_what_is_left_of_the_expiry(
    faked: Faked, name: str, jump_s: int, is_before: bool
) -> None:
    """A session that was away, one that reads history, and one that is given what is retained."""
    port = faked.broker.port
    with Wire(port, name, MQTT_5) as away:
        away.connect(clean=False, properties=kept(DAY_S))
        away.subscribe(name, qos=1)
        away.disconnect()
    if not is_before:
        jump(faked, jump_s)
    sent = publish(port, name, retain=True)
    if is_before:
        jump(faked, jump_s)
    faked.pass_time(1000)
    with Wire(port, name, MQTT_5) as away, Wire(port, name + "h", MQTT_5) as late:
        away.connect(clean=False, properties=kept(DAY_S))
        sent.check_left(told(away.expect(Publish)), EXPIRY_S - 1000)
        late.connect()
        late.subscribe(name, qos=1)
        sent.check_left(told(late.receive()), EXPIRY_S - 1000)
        late.subscribe_feed(name + "/#", qos=1, from_="earliest")
        sent.check_left(told(late.receive()), EXPIRY_S - 1000)
        away.close()  # without having acknowledged it: it comes again
        with Wire(port, name, MQTT_5) as again:
            again.connect(clean=False, properties=kept(DAY_S))
            sent.check_left(told(again.receive()), EXPIRY_S - 1000)
    faked.pass_time(EXPIRY_S - 1000)
    with Wire(port, name + "g", MQTT_5) as late:
        late.connect()
        late.subscribe(name, qos=1)
        late.subscribe_feed(name + "/#", qos=1, from_="earliest")
        assert late.settle() == []


def test_stamps_never_fall(faked: Faked, name: str) -> None:
    with faked.ask() as client:
        client.ask("PUT", f"/v1/topics/{name}")
        for by_s in (*JUMPS.values(), *reversed(JUMPS.values())):
            store(client, name)
            faked.jump(by_s)
            store(client, name)
            jump(faked, 0)
            store(client, name)
        stamps = [one["timestamp"] for one in records(client, name)]
        assert stamps == sorted(stamps)


@jumps
def test_retention_takes_what_is_old_and_nothing_else(faked: Faked, name: str, jump_s: int) -> None:
    with faked.ask() as client:
        client.ask("PUT", f"/v1/topics/{name}", {"retention_age": 2 * HOURS})
        store(client, name, "before")
        jump(faked, jump_s)
        faked.pass_time(HOURS)
        store(client, name, "after")
        wait_for_upkeep(client, name)
        assert [one["payload"] for one in records(client, name)] == ["before", "after"]
        faked.pass_time(HOURS + 1)
        wait_for_upkeep(client, name)
        assert records(client, name)[-1]["payload"] == "after"
        faked.pass_time(HOURS)
        wait_until(lambda: not records(client, name))


def wait_for_upkeep(client: Asking, name: str) -> None:
    """Until upkeep has gone through all topics once more: this one is behind the others."""
    other = f"/v1/topics/{name}-full"
    client.ask("DELETE", other)
    client.ask("PUT", other, {"retention_age": 0.001})
    store(client, f"{name}-full")
    wait_until(lambda: not records(client, f"{name}-full"))


# Across a restart


def passed_s(jump_s: int, is_booted: bool, away_s: int) -> int:
    """How much of the time that the broker was away it counts."""
    return min(max(away_s + jump_s, 0), DAY_S) if is_booted else away_s


class Life:
    """A broker's life before a restart: what it leaves behind, and when."""

    def __init__(self, faked: Faked) -> None:
        port = faked.broker.port
        leave(faked, "short", 10 * HOURS)
        leave(faked, "long", 2 * DAY_S, "away/#")
        delayed = Properties(will_delay_interval=10 * HOURS)
        with Wire(port, "patient", MQTT_5) as lost:
            will = Will("wills/x", b"patient", 1, properties=delayed)
            lost.connect(clean=False, properties=kept(2 * DAY_S), will=will)
        self.connected = Wire(port, "eager", MQTT_5)  # until the broker ends
        self.connected.connect(will=Will("wills/x", b"eager", 1))
        with faked.ask() as client:
            shown = "/v1/sessions/patient"
            wait_until(lambda: not client.ask("GET", shown).json["is_connected"])
            client.ask("PUT", "/v1/topics/t")  # behind what is saved of those who went
            self.offset = store(client, "t", Idempotency_Key="k")
        self.sent = publish(port, "away/x", 2 * DAY_S, retain=True)


@pytest.mark.slow
@jumps
@pytest.mark.parametrize("is_booted", [False, True], ids=["same boot", "other boot"])
@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
def test_time_goes_on_where_it_was_after_a_restart(
    tmp_path: Path, library: Path, jump_s: int, is_booted: bool, is_killed: bool
) -> None:
    faked = Faked(tmp_path, library)
    begun_s = time.monotonic()
    broker = faked.broker.start()
    life = Life(faked)
    broker.kill() if is_killed else broker.stop()
    life.connected.close()
    lived_s = int(time.monotonic() - begun_s) + 1
    faked.pass_time(600)
    faked.jump(jump_s)
    if is_booted:
        faked.reboot()
    broker.start()
    away_s = passed_s(jump_s, is_booted, 600)
    with faked.ask() as client:
        wait_for_expiry(faked, client, "canary")
        assert is_there(client, "long")
        assert is_there(client, "short") == (away_s < 10 * HOURS)
        is_known = store(client, "t", Idempotency_Key="k") == life.offset
        assert is_known == (away_s < DAY_S)
        stamps = [one["timestamp"] for one in records(client, "t")]
        assert stamps == sorted(stamps)
    with Wire(broker.port, "long", MQTT_5) as away, Wire(broker.port, "late", MQTT_5) as late:
        away.connect(clean=False, properties=kept())
        late.connect()
        late.subscribe("away/#", qos=1)
        for reader in (away, late):
            left_s = told(reader.receive())
            assert left_s is not None
            # What an unclean end lost of the first life may be given back, and no more.
            assert 2 * DAY_S - away_s - lived_s - 5 <= left_s <= 2 * DAY_S - away_s + lived_s
        late.subscribe_feed("wills/#", from_="earliest")
        wills = list(iter(lambda: late.receive().payload, b"eager"))  # due with the grace
        assert wills == ([b"patient"] if away_s >= 10 * HOURS else [])
    broker.stop()
