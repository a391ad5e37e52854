"""A hundred clients come with one client id at once: does the broker keep exactly one of them?"""

from __future__ import annotations

import select
import threading
import time

import pytest
from websockets.exceptions import ConnectionClosed

from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import Connack, Connect, Disconnect, Packet, Puback, Publish
from penstock.mqtt.properties import Properties
from penstock.mqtt.reasons import Reason
from tests.doors.hosted import Hosted
from tests.doors.wire import WAIT_S, Wire
from tests.http.framed import Framed

CLIENTS = 100


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
@pytest.mark.parametrize("is_kept", [False, True])
def test_of_a_hundred_simultaneous_connects_one_connection_is_left(
    broker: Hosted, name: str, version: int, is_kept: bool
) -> None:
    expiry = Properties(session_expiry_interval=60 if is_kept and version == MQTT_5 else None)
    packet = Connect(name, not is_kept, 0, None, None, None, version, expiry)
    wires = [Wire(broker.port, name, version) for _ in range(CLIENTS)]
    for wire in wires:
        wire.send(packet)
    open_wires, answers = _read_all(wires)
    assert len(open_wires) == 1, "and all the others were closed"
    (left,) = open_wires
    assert [type(one) for one in answers[left]] == [Connack]
    for one in wires:
        if one is not left:
            _check_loser(answers[one], version)
    broker.wait_idle()
    connected = broker.call(lambda: broker.exchange.sessions.connected.get(name))
    assert connected is not None and broker.call(lambda: broker.door.connection_count) == 1
    left.publish(f"{name}/alive", b"1", 1)
    left.close()


@pytest.mark.slow
def test_of_a_hundred_connects_in_every_version_and_in_websockets_one_is_left(
    broker: Hosted, name: str
) -> None:
    wires = [way_in(broker, name, number) for number in range(CLIENTS)]
    heard: list[list[Packet]] = [[] for _ in wires]
    gate = threading.Barrier(CLIENTS)
    ended = threading.Semaphore(0)

    def connect(number: int) -> None:
        wire = wires[number]
        gate.wait()
        try:
            wire.send(Connect(name, version=wire.version))
            while True:
                heard[number] += wire.take()
        except (EOFError, OSError, ConnectionClosed):
            ended.release()

    threads = [threading.Thread(target=connect, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for _ in range(CLIENTS - 1):
        assert ended.acquire(timeout=WAIT_S), "all but one are closed"
    (left,) = [number for number, thread in enumerate(threads) if thread.is_alive()]
    while not heard[left]:
        threads[left].join(0.01)
    assert [type(one) for one in heard[left]] == [Connack]
    for number, packets in enumerate(heard):
        if number != left:
            _check_loser(packets, wires[number].version)
    wires[left].send(Publish(f"{name}/alive", b"1", 1, packet_id=1))
    while len(heard[left]) < 2:
        threads[left].join(0.01)
    assert [type(one) for one in heard[left]] == [Connack, Puback]
    broker.wait_idle()
    assert broker.call(lambda: broker.door.connection_count) == 1
    wires[left].send(Disconnect())  # so that the broker closes, and the last thread ends
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    for wire in wires:
        wire.close()


def way_in(broker: Hosted, name: str, number: int) -> Wire:
    """Versions and transports in turn."""
    version = (MQTT_3_1_1, MQTT_5)[number % 2]
    if number % 4 > 1:
        return Wire(0, name, version, Framed(broker.ports["http"]))  # type: ignore[arg-type]
    return Wire(broker.port, name, version)


def _check_loser(packets: list[Packet], version: int) -> None:
    """It heard nothing, or was let in and taken over; a success has no other end."""
    for one in packets:
        if isinstance(one, Connack):
            assert one.reason == Reason.SUCCESS
        else:
            assert version == MQTT_5 and isinstance(one, Disconnect)
            assert one.reason == Reason.SESSION_TAKEN_OVER


def _read_all(wires: list[Wire]) -> tuple[list[Wire], dict[Wire, list[Packet]]]:
    """What each heard, until all but one are closed."""
    heard: dict[Wire, list[Packet]] = {wire: [] for wire in wires}
    still_open = list(wires)
    until_s = time.monotonic() + WAIT_S
    while time.monotonic() < until_s and (len(still_open) > 1 or not heard[still_open[0]]):
        for wire in select.select(still_open, [], [], 1.0)[0]:
            try:
                heard[wire] += wire.take()
            except (EOFError, ConnectionError):
                still_open.remove(wire)
                wire.close()
    return still_open, heard
