"""Does a client read why its connection ended, whatever it was doing at that moment?"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.doors.mqtt.receive.publishing import RECEIVE_MAX
from penstock.mqtt.encode import encode
from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Puback,
    Publish,
    Pubrec,
    Pubrel,
)
from penstock.mqtt.reasons import Reason
from tests.doors.users import add_users
from tests.doors.ways import WAYS, Reachable
from tests.doors.wire import WAIT_S, Wire

MIB = 1 << 20
BROKEN = b"\xff\xff"  # no packet begins like this


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reachable]:
    with Reachable(tmp_path_factory.mktemp("broker")) as reachable:
        yield reachable


def read_to_the_end(wire: Wire) -> list[Packet]:
    """Every packet up to the end of the connection, which must not be a reset."""
    packets = []
    try:
        while True:
            packets.append(wire.next())
    except EOFError:
        return packets


@WAYS
def test_client_that_answers_while_it_reads_hears_that_it_sent_too_much(
    broker: Reachable, name: str, way: str
) -> None:
    """One QoS 2 message too many; each PUBREC is answered at once: does 0x93 come behind them?"""
    with broker.reach(way, name) as wire:
        wire.connect()
        wire.send(*(Publish(name, b"x", 2, packet_id=at) for at in range(1, RECEIVE_MAX + 2)))
        while isinstance(packet := wire.next(), Pubrec):
            wire.send(Pubrel(packet.packet_id))
        assert isinstance(packet, Disconnect)
        assert packet.reason == Reason.RECEIVE_MAXIMUM_EXCEEDED


@WAYS
def test_client_that_goes_on_sending_can_send_and_read_to_the_end(
    broker: Reachable, name: str, way: str
) -> None:
    """Much behind a packet that breaks the rules: is all of it taken, and the reason read?"""
    with broker.reach(way, name) as wire:
        wire.connect()
        wire.send_bytes(BROKEN)
        for _ in range(64):
            wire.send_bytes(b"x" * 65_536)
        said = read_to_the_end(wire)
        assert [type(one) for one in said] == [Disconnect]


@WAYS
def test_what_was_acknowledged_before_a_broken_packet_is_read_in_older_versions_too(
    broker: Reachable, name: str, way: str
) -> None:
    with broker.reach(way, name, MQTT_3_1_1) as wire:
        wire.connect()
        wire.send(Publish(name, b"x", 1, packet_id=7))
        wire.pick(Puback, 7)
        wire.send(Pingreq(), Pingreq())
        wire.send_bytes(BROKEN + b"x" * 65_536)
        assert len(read_to_the_end(wire)) == 2


@WAYS
def test_earlier_messages_are_sent_before_the_reason(
    broker: Reachable, name: str, way: str
) -> None:
    """A client that has much to read is taken over: does it get all of it, and then 0x8E?"""
    slow = broker.reach(way, name)
    slow.connect()
    slow.subscribe(name)
    with broker.reach("tcp", f"{name}-writer") as writer:
        writer.connect()
        for _ in range(24):
            writer.publish(name, b"x" * MIB)
        writer.publish(name, b"x", 1)
        with broker.reach("tcp", name) as newer:
            newer.connect()
            messages = 0
            while isinstance(packet := slow.next(), Publish):
                messages += 1
            assert isinstance(packet, Disconnect)
            assert packet.reason == Reason.SESSION_TAKEN_OVER
            assert messages > 6  # more than the sockets hold
    slow.close()


@WAYS
def test_refused_client_that_sent_more_reads_why(tmp_path: Path, way: str) -> None:
    """Much behind a CONNECT with a wrong password: is the CONNACK read, and then the end?"""
    add_users(tmp_path / "data", alice="wonder")
    with Reachable(tmp_path) as broker:
        connect = Connect("x", version=MQTT_5, username="alice", password=b"wrong")
        more = Publish("a", b"x" * 1000)
        with broker.reach(way, "x") as wire:
            wire.send(connect, *([more] * 300))
            wire.send(*([more] * 300))
            answer, *rest = read_to_the_end(wire)
            assert isinstance(answer, Connack) and rest == []
            assert answer.reason == Reason.BAD_USER_NAME_OR_PASSWORD


@WAYS
def test_silent_client_reads_why_when_it_comes_back_to_its_socket(
    broker: Reachable, name: str, way: str
) -> None:
    with broker.reach(way, name) as wire:
        wire.connect(keep_alive_s=1)
        assert wire.expect(Disconnect).reason == Reason.KEEP_ALIVE_TIMEOUT
        wire.send(Pingreq(), Pingreq())
        assert read_to_the_end(wire) == []


@WAYS
def test_clients_that_send_read_that_the_broker_stops(tmp_path: Path, way: str) -> None:
    wires = []
    with Reachable(tmp_path) as broker:
        for number in range(3):
            wire = broker.reach(way, f"c{number}")
            wire.connect()
            wires.append(wire)
    for wire in wires:
        assert wire.expect(Disconnect).reason == Reason.SERVER_SHUTTING_DOWN
        wire.close()


# Bounds


@WAYS
def test_client_that_sends_for_ever_is_cut_after_a_number_of_bytes(
    tmp_path: Path, way: str
) -> None:
    with (
        Reachable(tmp_path, linger_s_max=600.0, linger_bytes_max=MIB) as broker,
        broker.reach(way, "x") as wire,
    ):
        wire.connect()
        wire.send_bytes(BROKEN)
        with pytest.raises((OSError, EOFError)):
            for _ in range(10_000):
                wire.send_bytes(b"x" * 65_536)
            raise AssertionError("it is read for ever")
        assert not broker.call(lambda: len(broker.door._lingering))


@WAYS
def test_client_that_trickles_for_ever_is_cut_after_a_time(tmp_path: Path, way: str) -> None:
    with (
        Reachable(tmp_path, linger_s_max=1.0) as broker,
        broker.reach(way, "x") as wire,
    ):
        wire.connect()
        wire.send_bytes(BROKEN)
        wire.expect(Disconnect)
        with pytest.raises((OSError, EOFError)):
            trickle(wire)


def trickle(wire: Wire) -> None:
    """A byte at a time, until the broker has had enough."""
    pause = socket.socketpair()  # nothing ever comes here
    pause[0].settimeout(0.05)
    for _ in range(int(WAIT_S / 0.05)):
        wire.send_bytes(b"x")
        with pytest.raises(TimeoutError):
            pause[0].recv(1)
    raise AssertionError("it is read for ever")


@WAYS
def test_client_that_never_reads_is_cut_after_a_time(tmp_path: Path, way: str) -> None:
    """Its messages do not fit the sockets, and it takes none: is its connection gone in time?"""
    with Reachable(tmp_path, linger_s_max=1.0) as broker:
        slow = broker.reach(way, "slow")
        slow.connect()
        slow.subscribe("a")
        with broker.reach("tcp", "writer") as writer:
            writer.connect()
            for _ in range(24):
                writer.publish("a", b"x" * MIB)
            writer.publish("a", b"x", 1)
            before = held(broker)
            with broker.reach("tcp", "slow") as newer:
                newer.connect()
                while held(broker) > before:
                    writer.publish("b", b"x", 1)
                assert held(broker) <= before
        slow.close()


def held(broker: Reachable) -> int:
    """Connections and what is left of them, in every way."""
    return broker.call(
        lambda: (
            len(broker.door._lingering)
            + len(broker.door._connections)
            + len(broker.http._connections)
        )
    )


def test_connections_that_linger_count_as_connections(tmp_path: Path) -> None:
    """A client that ends one connection after another, and closes none: is it refused in time?"""
    with Reachable(tmp_path, connections_max=3, linger_s_max=600.0) as broker:
        lingering = []
        for number in range(3):
            wire = broker.reach("tcp", f"c{number}")
            wire.connect()
            wire.send_bytes(BROKEN)
            wire.expect(Disconnect)
            lingering.append(wire)
        with socket.create_connection(("127.0.0.1", broker.port), WAIT_S) as one_more:
            one_more.sendall(encode(Connect("x", version=MQTT_5), MQTT_5))
            assert not received(one_more)
        lingering.pop().close()
        while True:
            with socket.create_connection(("127.0.0.1", broker.port), WAIT_S) as later:
                later.sendall(encode(Connect("x", version=MQTT_5), MQTT_5))
                if received(later):
                    break
        for wire in lingering:
            wire.close()


def received(sock: socket.socket) -> bytes:
    try:
        return sock.recv(1)
    except ConnectionError:
        return b""
