"""A disk that is full, or fails: is nothing acknowledged that was not stored?"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock import Broker
from penstock.log.files.disk import RealFile, SyncError
from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from penstock.mqtt.reasons import Reason
from tests.doors.hosted import Hosted
from tests.doors.wire import Wire, connect_kept


@contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, call: str, error: OSError) -> Iterator[None]:
    """As long as it lasts, segments cannot be written, or synced."""

    def fail(file: RealFile, *arguments: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(RealFile, call, fail)
        yield


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
BROKEN = SyncError(errno.EIO, os.strerror(errno.EIO))


def stored(data: Path) -> list[bytes]:
    with Broker(data) as broker:
        return [record.payload for record in broker.read("default")]


def test_full_disk_is_told_and_publishing_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Hosted(tmp_path) as broker, Wire(broker.port, "new", MQTT_5) as new:
        reader, _ = connect_kept(broker.port, "reader", MQTT_5)
        reader.subscribe("#", qos=2)
        new.connect()
        new.publish("a", b"before", 1)
        with failing(monkeypatch, "write", FULL):
            new.send(Publish("a", b"lost 1", 1, packet_id=1), Publish("a", b"2", 2, packet_id=2))
            assert new.expect(Puback).reason == Reason.QUOTA_EXCEEDED
            assert new.expect(Pubrec).reason == Reason.QUOTA_EXCEEDED
            with Wire(broker.port, "old", MQTT_3_1_1) as old:
                old.connect()
                old.send(Publish("a", b"lost 3", 1, packet_id=1))
                assert old.is_closed()  # it cannot be told otherwise
        new.send(Publish("a", b"after", 2, packet_id=2))  # the refused id is free
        assert new.expect(Pubrec).reason == Reason.SUCCESS
        new.send(Pubrel(2))
        new.expect(Pubcomp)
        assert [reader.receive().payload for _ in range(2)] == [b"before", b"after"]
        reader.close()
    assert stored(tmp_path) == [b"before", b"after"]


def test_failed_sync_is_never_acknowledged_and_reading_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Hosted(tmp_path) as broker, Wire(broker.port, "new", MQTT_5) as new:
        reader, _ = connect_kept(broker.port, "reader", MQTT_5)
        reader.subscribe("#", qos=1)
        reader.disconnect()
        new.connect()
        new.publish("a", b"before", 1)
        with failing(monkeypatch, "sync", BROKEN):
            new.send(Publish("a", b"unsure", 1, packet_id=1))
            assert new.expect(Puback).reason == Reason.QUOTA_EXCEEDED
        new.send(Publish("a", b"refused", 1, packet_id=2))  # the log is fenced until a restart
        assert new.expect(Puback).reason == Reason.QUOTA_EXCEEDED
        reader, is_present = connect_kept(broker.port, "reader", MQTT_5)
        assert is_present
        assert reader.receive().payload == b"before"
        assert reader.settle() == []
        reader.close()
    assert stored(tmp_path) == [b"before"]
    with Hosted(tmp_path) as broker, Wire(broker.port, "new", MQTT_5) as new:
        new.connect()
        new.publish("a", b"again", 1)
