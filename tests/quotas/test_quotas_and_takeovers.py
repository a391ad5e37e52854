"""Two clients with one new client id, at once, where a quota has room for one: is one let in?

The other one is taken over: it needs no place of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.doors.mqtt.connection import Connection
from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import Connack, Connect, Disconnect, Packet, Will
from penstock.mqtt.reasons import Reason
from tests.doors.hosted import Hosted
from tests.doors.users import add_users
from tests.doors.wire import Wire, kept
from tests.waiting import WAIT_S, wait_until


@contextmanager
def slow_catalog(broker: Hosted) -> Iterator[None]:
    """What asks the catalog inside this block is answered at its end."""
    gate = threading.Event()
    runner = broker.exchange.store._catalog._runner
    held: list[asyncio.Task[bool]] = []
    work = runner.run
    broker.call(lambda: held.append(asyncio.ensure_future(work(lambda _: gate.wait(WAIT_S)))))
    try:
        yield
    finally:
        gate.set()


def connect_of(client_id: str, version: int, user: str | None = None, *, will: bool) -> Connect:
    return Connect(
        client_id,
        False,
        0,
        Will("gone", b"", 1) if will else None,
        user,
        None if user is None else user.encode(),
        version,
        kept() if version == MQTT_5 else Connect(client_id).properties,
    )


def heard_by(wire: Wire) -> list[Packet]:
    """All that it is told until it is closed."""
    heard: list[Packet] = []
    while True:
        try:
            heard.append(wire.next())
        except (EOFError, ConnectionError):
            return heard


def send_together(broker: Hosted, packets: list[Connect]) -> list[Wire]:
    """These CONNECTs are all there before one of them is decided."""
    before = broker.call(lambda: broker.exchange.engine.metrics.traffic.connects)
    wires = [Wire(broker.port, one.client_id, one.version) for one in packets]
    with slow_catalog(broker):
        for count, (wire, packet) in enumerate(zip(wires, packets, strict=True), 1):
            wire.send(packet)
            wait_until(
                lambda until=before + count: (
                    broker.call(lambda: broker.exchange.engine.metrics.traffic.connects) == until
                )
            )
    return wires


def has_place(broker: Hosted, version: int, *, will: bool) -> bool:
    """Whether one more client, with an id of its own, is let in."""
    with Wire(broker.port, "another", version) as wire:
        wire.send(connect_of("another", version, will=will))
        return wire.expect(Connack).reason == Reason.SUCCESS


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
@pytest.mark.parametrize("section", ["quotas", "quotas.user"])
@pytest.mark.parametrize("kind", ["connections", "sessions", "wills"])
def test_of_connects_with_one_new_client_id_the_last_one_is_let_in_where_a_quota_has_one_place(
    tmp_path: Path, kind: str, section: str, version: int
) -> None:
    config = tmp_path / "penstock.toml"
    config.write_text(f"[{section}]\n{kind} = 2\n")
    with Hosted(tmp_path / "data", config=config) as broker:
        first = Wire(broker.port, "first", version)
        first.send(connect_of("first", version, will=True))
        assert first.expect(Connack).reason == Reason.SUCCESS
        wires = send_together(broker, [connect_of("new", version, will=True)] * 3)
        assert wires[-1].expect(Connack).reason == Reason.SUCCESS
        for wire in wires[:-1]:
            for packet in heard_by(wire):  # let in and taken over, or closed before
                if isinstance(packet, Connack):
                    assert packet.reason == Reason.SUCCESS
                else:
                    assert isinstance(packet, Disconnect)
                    assert packet.reason == Reason.SESSION_TAKEN_OVER
        wires[-1].publish("alive", b"", 1)
        first.publish("alive", b"", 1)
        assert not has_place(broker, version, will=True)
        broker.wait_idle()
        assert broker.call(lambda: set(broker.exchange.sessions.connected)) == {"first", "new"}
        assert broker.call(lambda: broker.exchange.engine.quotas._connection_count) == 2
        for wire in (first, wires[-1]):
            wire.close()


def test_of_two_users_who_come_with_one_new_client_id_the_first_one_has_it(tmp_path: Path) -> None:
    add_users(tmp_path, alice="alice", bob="bob")
    with Hosted(tmp_path) as broker:
        for user in ("alice", "bob"):  # their passwords are known now
            with Wire(broker.port, user, MQTT_5) as wire:
                wire.send(connect_of(user, MQTT_5, user, will=False))
                assert wire.expect(Connack).reason == Reason.SUCCESS
        broker.wait_idle()
        packets = [connect_of("new", MQTT_5, user, will=False) for user in ("alice", "bob")]
        alice, bob = send_together(broker, packets)
        assert alice.expect(Connack).reason == Reason.SUCCESS
        assert bob.expect(Connack).reason == Reason.NOT_AUTHORIZED
        assert bob.is_closed()
        alice.publish("alive", b"", 1)
        alice.close()


def test_who_connects_while_the_one_before_has_its_turn_is_the_last_one(tmp_path: Path) -> None:
    held: list[tuple[Connection, Coroutine[Any, Any, None]]] = []
    with Hosted(tmp_path) as broker:
        arrivals = broker.door._arrivals
        spawn = arrivals._spawn

        def hold(connection: Connection, work: Coroutine[Any, Any, None]) -> None:
            if work.__name__ == "_admit_behind":
                held.append((connection, work))
            else:
                spawn(connection, work)

        def go_on() -> None:
            arrivals._spawn = spawn
            for connection, work in held:
                spawn(connection, work)

        arrivals._spawn = hold
        packet = connect_of("new", MQTT_5, will=False)
        older = send_together(broker, [packet] * 2)
        wait_until(lambda: held)
        (newest,) = send_together(broker, [packet])
        broker.call(go_on)
        assert newest.expect(Connack).reason == Reason.SUCCESS
        for wire in older:
            heard_by(wire)
        broker.wait_idle()
        newest.publish("alive", b"", 1)
        newest.close()
