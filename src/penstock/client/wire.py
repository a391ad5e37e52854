"""What goes over `/v1`, as the client sees it: messages out, records and errors in."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote

import msgspec

from penstock.core.naming.names import (
    check_consumer,
    check_filter,
    check_group,
    check_name,
    check_topic,
)
from penstock.core.position import AtTime, parse_position
from penstock.core.topic_settings import check_topic_setting
from penstock.core.where import compile_where
from penstock.model.errors import Gap
from penstock.model.groups import GroupInfo
from penstock.model.limits import EXPRESSION_CHARS_MAX, NAME_BYTES_MAX
from penstock.model.messages import check_headers, encode_message
from penstock.model.record import (
    KIND_BYTES,
    KIND_JSON,
    KIND_NAMES,
    KIND_TEXT,
    BindingInfo,
    ConsumerInfo,
    HeadersLike,
    Offsets,
    PositionLike,
    Record,
    has_reached,
)

_KINDS: Final = {str(name): kind for kind, name in enumerate(KIND_NAMES)}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_encode: Final = msgspec.json.Encoder().encode


class RecordIn(msgspec.Struct):
    """A record as `/v1` gives it."""

    offset: int
    timestamp: int
    name: str
    payload: msgspec.Raw = msgspec.Raw()
    payload_base64: str = ""
    kind: str = "text"
    headers: list[tuple[str, str]] = []
    publisher: str = ""
    qos: int = 1
    retain: bool = False
    expires_at: int | None = None
    deliveries: int = 0  # of a group's record
    partition: int = 0

    def record(self, topic: str) -> Record:
        kind = _KINDS.get(self.kind, KIND_BYTES)
        if self.payload_base64:
            payload = base64.b64decode(self.payload_base64)
        elif kind == KIND_JSON:
            payload = bytes(self.payload)
        else:
            payload = msgspec.json.decode(self.payload, type=str).encode() if self.payload else b""
        return Record(
            topic=topic,
            partition=self.partition,
            offset=self.offset,
            timestamp=self.timestamp,
            name=self.name,
            payload=payload,
            headers=tuple(self.headers),
            publisher=self.publisher,
            qos=self.qos,
            retain=self.retain,
            expires_at=self.expires_at,
            kind=kind,
        )


class RecordsIn(msgspec.Struct):
    """Records of a topic, and where to go on."""

    topic: str
    next_offset: Offsets
    records: list[RecordIn]
    first_offset: Offsets = 0
    end_offset: Offsets = 0
    receipt: str = ""  # of a group's fetch

    def all(self) -> list[Record]:
        return [one.record(self.topic) for one in self.records]


class ConsumersIn(msgspec.Struct):
    consumers: list[ConsumerInfo]


class BindingsIn(msgspec.Struct):
    bindings: list[BindingInfo]


class GroupsIn(msgspec.Struct):
    groups: list[GroupInfo]


class OffsetIn(msgspec.Struct):
    offset: Offsets


def message_body(
    message: Any, name: str | None, headers: HeadersLike, retain: bool = False
) -> bytes:
    """One message for `POST …/records`, refused here for what a Broker would refuse it for."""
    payload, kind = encode_message(message)
    body: dict[str, Any] = {}
    if kind == KIND_BYTES:
        body["payload_base64"] = base64.b64encode(payload).decode()
    else:
        body["payload"] = message if kind == KIND_TEXT else msgspec.Raw(payload)
    if name is not None:
        body["name"] = check_name(name)
    if headers:
        body["headers"] = check_headers(headers)
    if retain:
        body["retain"] = True
    return _encode(body)


def topic_path(topic: str) -> str:
    """Where a topic is under `/v1`; InvalidTopic for what a path cannot hold."""
    return f"/v1/topics/{_segment(topic, check_topic)}"


def consumer_path(topic: str, consumer: str) -> str:
    return f"{topic_path(topic)}/consumers/{_segment(consumer, check_consumer)}"


def group_path(topic: str, group: str) -> str:
    return f"{topic_path(topic)}/groups/{_segment(group, check_group)}"


def _segment(text: str, check: Callable[[str], str]) -> str:
    """One part of a path. What the broker can judge is left to it."""
    return quote(text if text and is_sendable(text) else check(text), safe="")


def is_sendable(text: object, chars_max: int = NAME_BYTES_MAX) -> bool:
    """Can the broker be asked what it thinks of this? Else the client says the same as it would."""
    if not isinstance(text, str) or len(text) > chars_max:
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_filters(where: str | None, names: str | None) -> None:
    """InvalidExpression and InvalidFilter for what cannot be sent."""
    if where is not None and not is_sendable(where, EXPRESSION_CHARS_MAX):
        compile_where(where)
    if names is not None and not is_sendable(names):
        check_filter(names)


def encode_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of a topic as JSON has them; InvalidSetting for what has no JSON form."""
    sent = {}
    for key, value in settings.items():
        is_plain = value is None or (isinstance(value, str) and is_sendable(value))
        if not is_plain and not (isinstance(value, int) and abs(value) < 1 << 63):
            check_topic_setting(key, value)
        sent[key] = value.total_seconds() if isinstance(value, timedelta) else value
    return sent


def check_gap(topic: str, position: str | int, page: RecordsIn) -> None:
    """Gap when retention took records that were asked for by their offset."""
    if isinstance(position, str) and not position.startswith("{"):
        return
    asked: Offsets
    asked = position if isinstance(position, int) else msgspec.json.decode(position)
    if not has_reached(asked, page.first_offset):
        raise Gap(
            f"the stream of {topic!r} is at offset {position}, but the first stored record is "
            f"{page.first_offset}: start there, or use on_gap='skip'"
        )


def encode_position(position: PositionLike) -> str | int:
    """A position as `/v1` takes it; else InvalidPosition."""
    found = parse_position(position, time.time_ns() // 1_000)
    if isinstance(position, str | int):
        return position
    if isinstance(position, Mapping):
        return _encode(dict(position)).decode()
    if isinstance(position, timedelta):
        return f"-{abs(position) // timedelta(milliseconds=1)}ms"  # by the clock of the broker
    assert isinstance(found, AtTime)
    return (_EPOCH + timedelta(microseconds=found.timestamp_us)).isoformat()
