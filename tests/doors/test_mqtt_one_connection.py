"""A hundred clients come with one client id at once: does the broker keep exactly one of them?"""

from __future__ import annotations

import select
import time

import pytest

from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import Connack, Connect, Disconnect, Packet
from penstock.mqtt.properties import Properties
from penstock.mqtt.reasons import Reason
from tests.doors.hosted import Hosted
from tests.doors.wire import WAIT_S, Wire

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
