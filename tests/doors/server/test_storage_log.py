"""A disk that is full, slow or fails: is it logged once when it begins, and once when it ends?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Puback, Publish
from penstock.mqtt.reasons import Reason
from tests.doors.hosted import Hosted
from tests.doors.publish.test_mqtt_disk import BROKEN, FULL, failing
from tests.doors.wire import Wire


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level("INFO", "penstock"):
        yield caplog


def levels(log: pytest.LogCaptureFixture, event: str) -> list[str]:
    """The levels of all lines of an event."""
    return [
        record.levelname.lower()
        for record in log.records
        if isinstance(record.args, dict) and record.args["event"] == event
    ]


def publish(wire: Wire, payload: bytes) -> Reason:
    wire.send(Publish("a", payload, 1, packet_id=1))
    return wire.expect(Puback).reason


def test_writes_that_fail_are_logged_when_they_begin_and_when_they_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    with Hosted(tmp_path) as broker, Wire(broker.port, "new", MQTT_5) as wire:
        wire.connect()
        assert publish(wire, b"before") == Reason.SUCCESS
        with failing(monkeypatch, "write", FULL):
            for _ in range(3):
                assert publish(wire, b"a secret payload") == Reason.QUOTA_EXCEEDED
        assert levels(log, "write refusal begins") == ["error"]
        assert levels(log, "write refusal ends") == []
        assert publish(wire, b"after") == Reason.SUCCESS
        assert levels(log, "write refusal ends") == ["info"]
        assert "default/default-1: the disk is full" in log.text
        assert "a secret payload" not in log.text


def test_a_log_that_is_fenced_is_logged_as_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    with Hosted(tmp_path) as broker, Wire(broker.port, "new", MQTT_5) as wire:
        wire.connect()
        assert publish(wire, b"before") == Reason.SUCCESS
        with failing(monkeypatch, "sync", BROKEN):
            assert publish(wire, b"lost") != Reason.SUCCESS
        assert publish(wire, b"lost, too") != Reason.SUCCESS
    assert levels(log, "log fenced") == ["error"]


def test_a_disk_with_too_little_space_is_logged_when_it_begins_and_when_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    with Hosted(tmp_path) as broker:
        space = broker.exchange.engine.shared.space
        for free in (4, 3, 2):
            monkeypatch.setattr(space, "_free_space", lambda free=free: (free, 100))
            broker.call(space.look)
        assert levels(log, "disk refusal begins") == ["warning"]
        assert "4.0 % of the disk is free" in log.text
        monkeypatch.setattr(space, "_free_space", lambda: (50, 100))
        broker.call(space.look)
        assert levels(log, "disk refusal ends") == ["info"]


def test_a_slow_sync_is_logged_with_its_topic(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    with Hosted(tmp_path) as broker, Wire(broker.port, "new", MQTT_5) as wire:
        broker.exchange.engine.commits.slow_sync_s = 0.0
        wire.connect()
        assert publish(wire, b"x") == Reason.SUCCESS
    assert levels(log, "slow sync") == ["warning"]
    assert "a sync of topic 'default' took" in log.text


def test_what_a_start_repaired_is_logged(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    with Hosted(tmp_path) as broker, Wire(broker.port, "new", MQTT_5) as wire:
        wire.connect()
        assert publish(wire, b"x") == Reason.SUCCESS
    (segment,) = (tmp_path / "default" / "default-1").glob("*.log")
    segment.unlink()
    with Hosted(tmp_path):
        pass
    assert levels(log, "recovered") == ["warning"]
    assert levels(log, "started") == levels(log, "stopped") == ["info"] * 2
