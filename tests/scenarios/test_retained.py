"""Boards that show the last value of everything: is it the last, at any moment, for everybody?"""

from __future__ import annotations

import threading
from pathlib import Path

from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Puback, Publish, Subscription
from penstock.mqtt.properties import Properties
from tests.doors.hosted import Hosted
from tests.scenarios.actors import BOTH, Actor


@BOTH
def test_board_that_opens_while_values_change(broker: Hosted, name: str, version: int) -> None:
    """Subscribing in the middle of updates: does it begin with a value and miss none after it?"""
    boards = [Actor(broker, f"{name}{at}", version) for at in range(8)]
    with Actor(broker, name + "p", version) as writer:

        def update() -> None:
            for number in range(300):
                writer.publish(f"{name}/{number % 3}", b"%d" % number, 1, retain=True)

        sensor = threading.Thread(target=update)
        sensor.start()
        for board in boards:
            board.subscribe(f"{name}/+", qos=1)
            board.pick(Publish)  # so that the next one comes a little later
        sensor.join()
    for board in boards:
        seen: dict[str, list[int]] = {}
        while {values[-1] for values in seen.values()} != {297, 298, 299}:
            message = board.receive()
            seen.setdefault(message.name, []).append(int(message.payload))
        for values in seen.values():
            assert values == list(range(values[0], values[-1] + 3, 3))
        assert board.settle() == []
        board.close()


@BOTH
def test_value_that_is_taken_back(broker: Hosted, name: str, version: int) -> None:
    """A value is cleared: do those who watch hear it, and those who come later see nothing?"""
    with Actor(broker, name + "p", version) as writer, Actor(broker, name, version) as board:
        for part in "abc":
            writer.publish(f"{name}/{part}", b"1", 1, retain=True)
        board.subscribe(f"{name}/#", qos=1)
        assert sorted(board.receive().name[-1] for _ in range(3)) == ["a", "b", "c"]
        writer.publish(f"{name}/b", b"", 1, retain=True)
        assert board.receive().payload == b""
        with Actor(broker, name + "2", version) as late:
            late.subscribe(f"{name}/#", qos=1)
            assert sorted(late.receive().name[-1] for _ in range(2)) == ["a", "c"]
            assert late.settle() == []
            writer.publish(f"{name}/b", b"2", 1, retain=True)
            assert late.receive().payload == b"2"


@BOTH
def test_board_that_comes_back_is_not_told_everything_again(
    broker: Hosted, name: str, version: int
) -> None:
    """Does a kept session get only what changed, unless it subscribes again?"""
    board = Actor(broker, name, version, stays=True)
    with Actor(broker, name + "p", version) as writer:
        for part in "abc":
            writer.publish(f"{name}/{part}", b"1", 1, retain=True)
        board.subscribe(f"{name}/#", qos=1)
        assert len(board.heard()) == 3
        board.close()
        writer.publish(f"{name}/b", b"2", 1, retain=True)
    board = Actor(broker, name, version, stays=True)
    changed = board.receive()
    assert (changed.name, changed.payload, changed.retain) == (f"{name}/b", b"2", False)
    assert board.settle() == []
    board.subscribe(f"{name}/#", qos=1)
    assert sorted(board.heard()) == [b"1", b"1", b"2"]
    board.close()


@BOTH
def test_values_outlive_the_broker(tmp_path: Path, version: int) -> None:
    """Are the last values there after a restart, each with its QoS, and cleared ones not?"""
    with Hosted(tmp_path) as broker, Actor(broker, "p", version) as writer:
        for qos in range(3):
            for turn in range(3):
                writer.publish(f"v/{qos}", b"%d" % turn, qos, retain=True)
            writer.publish(f"gone/{qos}", b"x", qos, retain=True)
            writer.publish(f"gone/{qos}", b"", qos, retain=True)
        writer.publish("end", b"", 1)
    with Hosted(tmp_path) as broker, Actor(broker, "r", version) as board:
        board.subscribe("#", qos=2)
        got = sorted((one.name, one.payload, one.qos) for one in _values(board, 3))
        assert got == [("v/0", b"2", 0), ("v/1", b"2", 1), ("v/2", b"2", 2)]
        assert board.settle() == []


def _values(board: Actor, count: int) -> list[Publish]:
    return [board.receive() for _ in range(count)]


def test_board_chooses_what_it_is_told_at_first(broker: Hosted, name: str) -> None:
    """One wants the last values always, one at first, one never: does each get its way?"""
    with Actor(broker, name + "p", MQTT_5) as writer:
        writer.publish(name, b"last", 1, retain=True)
        counts = []
        for handling in range(3):
            board = Actor(broker, f"{name}{handling}", MQTT_5, stays=True)
            told = []
            for _ in range(2):
                board.subscribe(Subscription(name, 1, retain_handling=handling))
                told.append(len(board.heard()))
                board.close()
                board = Actor(broker, f"{name}{handling}", MQTT_5, stays=True)
            counts.append(told)
            board.close()
        assert counts == [[1, 1], [1, 0], [0, 0]]


def test_value_with_a_best_before_date(broker: Hosted, name: str) -> None:
    """Is a retained value shown with the time it has left, and not at all when that is over?"""
    with Actor(broker, name + "p", MQTT_5) as writer:
        for part, expiry_s in (("short", 1), ("long", 600)):
            asked = Properties(message_expiry_interval=expiry_s, content_type="text")
            value = Publish(f"{name}/{part}", b"x", 1, True, packet_id=1, properties=asked)
            writer.send(value)
            writer.expect(Puback)
        broker.wait_past_us(1_200_000)
        with Actor(broker, name, MQTT_5) as board:
            board.subscribe(f"{name}/+", qos=1)
            value = board.receive()
            assert (value.name, value.properties.content_type) == (f"{name}/long", "text")
            assert 0 < (value.properties.message_expiry_interval or 0) < 600
            assert board.settle() == []
