"""Are columns that only some want read where they are asked for, and only there?"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from penstock import Broker
from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Puback, Publish
from penstock.mqtt.properties import Properties
from penstock.pipeline.source.source import EXTRA, SCHEMA
from tests.doors.hosted import Hosted
from tests.doors.wire import Wire
from tests.pipeline.source.reading import address, rows

pytestmark = pytest.mark.over_a_second  # a log is filled for each

ASKED = StructType([*EXTRA, SCHEMA["offset"]])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with Hosted(tmp_path) as broker, Wire(broker.port, "p", MQTT_5) as wire:
        wire.connect()
        for qos in (0, 1, 2):
            wire.publish("n", b"x", qos, retain=qos == 1)
        expiring = Properties(message_expiry_interval=60)
        wire.send(Publish("n", b"x", 1, packet_id=wire.take_id(), properties=expiring))
        wire.pick(Puback)
    return tmp_path


def test_extra_columns_say_how_a_record_was_published(data: Path) -> None:
    found = rows(data, ASKED, topic="default")
    assert [(row["qos"], row["retain"]) for row in found] == [
        (0, False),
        (1, True),
        (2, False),
        (1, False),
    ]
    stamps = rows(data, StructType([SCHEMA["timestamp"]]), topic="default")
    assert [row["expires_at"] for row in found[:3]] == [None] * 3
    left_s = (found[3]["expires_at"] - stamps[3]["timestamp"]).total_seconds()
    assert abs(left_s - 60) < 1


def test_extra_columns_have_all_headers_and_what_kind_of_value_it_was(tmp_path: Path) -> None:
    headers = [("z", "1"), ("a", "2"), ("z", "3")]
    with Broker(tmp_path) as broker:
        broker.create_topic("t")
        for value in ("text", b"bytes", {"n": 1}):
            broker.publish(value, "t")
        broker.publish("more", "t", headers=headers)
    found = rows(tmp_path, ASKED, topic="t")
    assert [row["kind"] for row in found] == ["text", "bytes", "json", "text"]
    pairs = [{"key": key, "value": value} for key, value in headers]
    assert [row["header_pairs"] for row in found] == [[], [], [], pairs]
    with Hosted(tmp_path) as broker:
        for options in ({}, {"names": "t"}, {"where": "offset >= 0"}):
            assert rows(address(broker), ASKED, topic="t", **options) == found


def test_a_running_broker_gives_the_same(data: Path) -> None:
    wanted = rows(data, ASKED, topic="default")
    with Hosted(data) as broker:
        for options in ({}, {"names": "n"}, {"where": "offset >= 0"}):
            assert rows(address(broker), ASKED, topic="default", **options) == wanted


def test_a_piece_of_a_batch_has_the_columns_of_its_own_records(data: Path) -> None:
    found = rows(data, ASKED, topic="default", startingOffsets="2", endingOffsets="3")
    assert [(row["offset"], row["qos"]) for row in found] == [(2, 2)]


def test_nobody_gets_extra_columns_without_asking(data: Path) -> None:
    (row, *_) = rows(data, topic="default")
    assert list(row) == SCHEMA.names
