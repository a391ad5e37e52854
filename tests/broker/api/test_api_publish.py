"""Publishing: what goes in comes back as it was, and what cannot be stored is refused."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from penstock import Broker, InvalidName, RefusedError, TooLarge, TopicNotFound
from penstock.model.limits import HEADERS_BYTES_MAX, MIB, PAYLOAD_BYTES_MAX
from tests.each import each


@dataclass
class Infinite:
    celsius: float


class Opaque:
    """Something without a JSON form; named without its address, so that all workers agree."""

    def __repr__(self) -> str:
        return "Opaque()"

    def __hash__(self) -> int:
        return 2  # its place in a set, too


@each(
    "value",
    [
        "text",
        "",
        "üñí \0 \n 🚰",
        b"bytes",
        b"",
        b"\xff\x00\n",
        None,
        True,
        False,
        0,
        -1,
        2**63,
        10**30,
        1.5,
        [],
        {},
        [1, "two", None, {"x": [True]}],
        {"null": None, "ü": "null"},
    ],
    ids=repr,
)
def test_value_gives_back_what_was_published(broker: Broker, value: Any) -> None:
    broker.create_topic("t", exist_ok=True)
    offset = broker.publish(value, "t")
    (record,) = broker.read("t", start=offset)
    assert record.value == value and type(record.value) is type(value)
    assert isinstance(record.payload, bytes)


def test_bytes_like_messages_are_bytes(broker: Broker) -> None:
    broker.create_topic("t")
    broker.publish_many([bytearray(b"a"), memoryview(b"b")], "t")
    assert [r.value for r in broker.read("t")] == [b"a", b"b"]


@each(
    "value",
    [
        Opaque(),
        {1, Opaque()},
        float("nan"),
        [float("inf")],
        {"a": (None, -float("inf"))},
        {1, 2},
        {"a": frozenset("b")},
        {1: "one"},
        {"a": [{None: 1}]},
        [b"bytes"],
        datetime(2026, 1, 2, tzinfo=UTC),
        [Decimal("1.5")],
        Infinite(float("nan")),
    ],
    ids=repr,
)
def test_a_value_without_a_json_form_is_refused(broker: Broker, value: Any) -> None:
    broker.create_topic("t", exist_ok=True)
    with pytest.raises(RefusedError, match="cannot be published"):
        broker.publish(value, "t")
    assert broker.size("t") == 0


def test_text_that_utf8_cannot_express_is_refused(broker: Broker) -> None:
    broker.create_topic("t")
    with pytest.raises(RefusedError, match="cannot be stored"):
        broker.publish("\ud800", "t")


def test_publish_returns_the_offset_and_offsets_are_dense(broker: Broker) -> None:
    broker.create_topic("t")
    assert [broker.publish(i, "t") for i in range(5)] == [0, 1, 2, 3, 4]
    assert broker.publish_many(["a", b"b", 3, "c"], "t") == range(5, 9)
    assert broker.publish_many([], "t") == range(9, 9)
    assert broker.publish_many((str(i) for i in range(3)), "t") == range(9, 12)
    assert [r.offset for r in broker.read("t")] == list(range(12))


def test_publishing_never_creates_a_topic(broker: Broker) -> None:
    with pytest.raises(TopicNotFound, match="create it first"):
        broker.publish("x", "t")
    with pytest.raises(TopicNotFound):
        broker.publish_many([], "t")
    assert broker.topics() == []


def test_a_record_says_where_when_and_as_what_it_was_stored(broker: Broker) -> None:
    broker.create_topic("Sensors")
    before = datetime.now(UTC)
    broker.publish("21.5", "sensors", name="sensors/42/temp")
    after = datetime.now(UTC)
    (record,) = broker.read("sensors")
    assert (record.topic, record.partition, record.offset) == ("Sensors", 0, 0)
    assert (record.name, record.payload) == ("sensors/42/temp", b"21.5")
    assert (record.headers, record.publisher, record.retain, record.expires_at) == (
        (),
        "",
        False,
        None,
    )
    assert before.replace(microsecond=0) <= record.time <= after
    assert record.timestamp == round(record.time.timestamp() * 1_000_000)


def test_the_name_defaults_to_the_declared_spelling(broker: Broker) -> None:
    broker.create_topic("Orders")
    broker.publish("x", "ORDERS")
    assert broker.read("orders")[0].name == "Orders"


@each("name", ["", "a/+", "a/#", "a\0", "\udfff", 5, "/" * 128, "x" * 65_536], ids=repr)
def test_a_text_that_cannot_be_published_under_is_refused(broker: Broker, name: str) -> None:
    broker.create_topic("t", exist_ok=True)
    with pytest.raises(InvalidName):
        broker.publish("x", "t", name=name)


def test_headers_keep_their_order_and_duplicates(broker: Broker, tmp_path: Path) -> None:
    broker.create_topic("t")
    pairs = [("z", "1"), ("a", ""), ("z", "2"), ("ü", "🚰"), ("z", "1")]
    broker.publish("x", "t", headers=pairs)
    broker.publish("x", "t", headers={"k": "v"})
    broker.publish("x", "t", headers={})
    broker.publish_many(["x", {"another": "kind"}], "t", headers=iter(pairs))
    found = [r.headers for r in broker.read("t")]
    assert found == [tuple(pairs), (("k", "v"),), (), tuple(pairs), tuple(pairs)]


@each(
    "headers",
    [{"k": 1}, {1: "v"}, {"": "v"}, ["ab"], [("a",)], "text", 5, {"k": "\ud800"}],
    ids=repr,
)
def test_headers_that_are_not_pairs_of_text_are_refused(broker: Broker, headers: Any) -> None:
    broker.create_topic("t", exist_ok=True)
    with pytest.raises(RefusedError, match="header"):
        broker.publish("x", "t", headers=headers)
    assert broker.size("t") == 0


def test_headers_are_bounded(broker: Broker) -> None:
    broker.create_topic("t")
    broker.publish("x", "t", headers={"k": "v" * (HEADERS_BYTES_MAX - 1)})
    with pytest.raises(TooLarge, match=str(HEADERS_BYTES_MAX)):
        broker.publish("x", "t", headers={"k": "v" * HEADERS_BYTES_MAX})


def test_a_message_of_exactly_the_bound_is_stored_and_one_byte_more_is_refused(
    broker: Broker,
) -> None:
    broker.create_topic("t")
    largest = bytes(PAYLOAD_BYTES_MAX)
    assert PAYLOAD_BYTES_MAX == 16 * MIB
    broker.publish(largest, "t")
    with pytest.raises(TooLarge, match=str(PAYLOAD_BYTES_MAX)):
        broker.publish(largest + b"x", "t")
    (record,) = broker.read("t")
    assert record.payload == largest


def test_a_lower_bound_can_be_set(tmp_path: Path) -> None:
    with Broker(tmp_path, payload_bytes_max="1 KiB") as broker:
        broker.create_topic("t")
        broker.publish("x" * 1_024, "t")
        with pytest.raises(TooLarge, match="at most 1024"):
            broker.publish("x" * 1_025, "t")


def test_publish_many_with_one_message_too_large_stores_none(tmp_path: Path) -> None:
    with Broker(tmp_path, payload_bytes_max="1 KiB") as broker:
        broker.create_topic("t")
        with pytest.raises(TooLarge):
            broker.publish_many(["a", b"b", "c" * 2_000], "t")
        with pytest.raises(RefusedError):
            broker.publish_many(["a", object()], "t")
    with Broker(tmp_path) as broker:  # whatever was on its way has arrived by now
        assert broker.size("t") == 0


def test_publish_many_of_many_megabytes_keeps_order_and_neighbours(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        broker.create_topic("t", durability="os")
        messages = [bytes([i]) * MIB for i in range(24)]
        assert broker.publish_many(messages, "t") == range(24)
        assert [r.payload for r in broker.read("t")] == messages


def test_what_publish_returned_is_there_for_the_next_process(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        broker.create_topic("t")
        offset = broker.publish("kept", "t", name="a/b", headers=[("k", "v")])
    with Broker(tmp_path) as broker:
        (record,) = broker.read("t", start=offset)
        assert (record.value, record.name, record.headers) == ("kept", "a/b", (("k", "v"),))
        assert broker.notes == ()


def test_an_object_with_declared_fields_is_published_by_its_fields(broker: Broker) -> None:
    broker.create_topic("t")
    broker.publish(Infinite(21.5), "t")
    assert broker.read("t")[0].value == {"celsius": 21.5}


@pytest.mark.parametrize("one", ["abc", b"abc", bytearray(b"abc"), {"a": 1}, 5, None], ids=repr)
def test_one_message_is_not_a_list_of_messages(broker: Broker, one: Any) -> None:
    broker.create_topic("t")
    with pytest.raises(RefusedError, match="give a list of messages"):
        broker.publish_many(one, "t")
    assert broker.size("t") == 0


def test_a_retained_message_is_stored_as_such(broker: Broker) -> None:
    broker.create_topic("t")
    broker.publish("on", "t", retain=True)
    broker.publish_many(["a", "b"], "t", retain=True)
    broker.publish("off", "t")
    assert [one.retain for one in broker.read("t")] == [True, True, True, False]
