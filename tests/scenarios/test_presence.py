"""Devices that are there or not: do wills and retained messages together tell the truth?"""

from __future__ import annotations

from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Disconnect, Will
from penstock.mqtt.properties import Properties
from penstock.mqtt.reasons import Reason
from tests.doors.hosted import Hosted
from tests.scenarios.actors import BOTH, Actor


def device(broker: Hosted, name: str, at: int, version: int, **asked: int) -> Actor:
    """It says `online` when it comes, and its will says `offline`."""
    will = Will(f"{name}/{at}", b"offline", 1, True)
    actor = Actor(broker, f"{name}{at}", version, will=will, **asked)
    actor.publish(f"{name}/{at}", b"online", 1, retain=True)
    return actor


@BOTH
def test_board_shows_who_is_there(broker: Hosted, name: str, version: int) -> None:
    """Devices leave, crash, break rules and are replaced: does the board agree in the end?"""
    devices = [device(broker, name, at, version) for at in range(5)]
    with Actor(broker, name + "b", version) as board:
        board.subscribe(f"{name}/+", qos=1)
        devices[0].close()
        devices[1].send_bytes(b"\x00\x00")
        devices[2].publish(f"{name}/2", b"sleeping", 1, retain=True)
        devices[2].disconnect()
        replaced = device(broker, name, 3, version)
        broker.wait_idle()
        board.heard()
        with Actor(broker, name + "late", version) as late:
            late.subscribe(f"{name}/+", qos=1)
            shown = {}
            for _ in range(5):
                value = late.receive()
                shown[value.name[-1]] = value.payload
        assert shown == {
            "0": b"offline",
            "1": b"offline",
            "2": b"sleeping",
            "3": b"online",
            "4": b"online",
        }
        for one in (*devices, replaced):
            one.close()


@BOTH
def test_flapping_device_is_told_in_its_order(broker: Hosted, name: str, version: int) -> None:
    """Online and offline in turns, ten times: does the board see the turns, and end with online?"""
    with Actor(broker, name + "b", version) as board:
        board.subscribe(f"{name}/+", qos=1)
        for _ in range(10):
            device(broker, name, 0, version).close()
        last = device(broker, name, 0, version)
        told = board.receive_all(21)
        assert told == [b"online", b"offline"] * 10 + [b"online"]
        last.disconnect()


@BOTH
def test_board_that_was_away_hears_who_was_lost(broker: Hosted, name: str, version: int) -> None:
    """Is a will a message like any other: kept for a session whose client is away?"""
    board = Actor(broker, name + "b", version, stays=True)
    board.subscribe(f"{name}/+", qos=1)
    board.close()
    for at in range(3):
        device(broker, name, at, version).close()
    broker.wait_idle()
    board = Actor(broker, name + "b", version, stays=True)
    told = [board.receive() for _ in range(6)]
    assert sorted(one.name[-1] for one in told if one.payload == b"offline") == ["0", "1", "2"]
    board.close()


def test_short_break_is_nobodys_business(broker: Hosted, name: str) -> None:
    """With a will delay, is a device that is back in time never shown as offline?"""
    will = Will(f"{name}/0", b"offline", 1, properties=Properties(will_delay_interval=2))
    with Actor(broker, name + "b", MQTT_5) as board:
        board.subscribe(f"{name}/+", qos=1)
        for _ in range(4):
            Actor(broker, name, MQTT_5, stays=True, will=will).close()
        back = Actor(broker, name, MQTT_5, stays=True, will=will)
        broker.wait_past_us(3_000_000)
        assert board.heard() == []
        back.close()
        assert board.receive().payload == b"offline"


def test_device_that_leaves_on_bad_terms_says_so(broker: Hosted, name: str) -> None:
    """Does DISCONNECT with 0x04 have the will published, and 0x00 not?"""
    with Actor(broker, name + "b", MQTT_5) as board:
        board.subscribe(f"{name}/+", qos=1)
        first = device(broker, name, 0, MQTT_5)
        first.send(Disconnect(Reason.DISCONNECT_WITH_WILL))
        assert board.receive_all(2) == [b"online", b"offline"]
        second = device(broker, name, 0, MQTT_5)
        second.disconnect()
        broker.wait_idle()
        assert board.heard() == [b"online"]
