"""What goes over `/v1`, as the client sees it: messages out, records and errors in."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote

import msgspec

from penstock.client.transport import Answer
from penstock.model import errors
from penstock.model.errors import (
    Gap,
    InvalidName,
    InvalidPosition,
    InvalidSetting,
    InvalidTopic,
    NotAuthorized,
    OutcomeUnknown,
    PenstockError,
    RefusedError,
    UnavailableError,
)
from penstock.model.messages import check_headers, encode_message
from penstock.model.record import (
    KIND_BYTES,
    KIND_JSON,
    KIND_TEXT,
    HeadersLike,
    PositionLike,
    Record,
)

_KINDS: Final = {"text": KIND_TEXT, "json": KIND_JSON, "bytes": KIND_BYTES}
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

    def record(self, topic: str) -> Record:
        kind = _KINDS.get(self.kind, KIND_BYTES)
        if self.payload_base64:
            payload = base64.b64decode(self.payload_base64)
        elif kind == KIND_JSON:
            payload = bytes(self.payload)
        else:
            payload = msgspec.json.decode(self.payload, type=str).encode() if self.payload else b""
        return Record(
            topic,
            0,
            self.offset,
            self.timestamp,
            self.name,
            payload,
            tuple(self.headers),
            self.publisher,
            self.qos,
            self.retain,
            self.expires_at,
            kind,
        )


class RecordsIn(msgspec.Struct):
    """Records of a topic, and where to go on."""

    topic: str
    next_offset: int
    records: list[RecordIn]
    first_offset: int = 0
    end_offset: int = 0
    receipt: str = ""  # of a group's fetch

    def all(self) -> list[Record]:
        return [one.record(self.topic) for one in self.records]


def message_body(message: Any, name: str | None, headers: HeadersLike) -> bytes:
    """One message for `POST …/records`, refused here for what a Broker would refuse it for."""
    payload, kind = encode_message(message)
    body: dict[str, Any] = {}
    if kind == KIND_BYTES:
        body["payload_base64"] = base64.b64encode(payload).decode()
    else:
        body["payload"] = message if kind == KIND_TEXT else msgspec.Raw(payload)
    if name is not None:
        if not isinstance(name, str):
            raise InvalidName(f"name {name!r} is not text: pass a str")
        body["name"] = name
    if headers:
        body["headers"] = check_headers(headers)
    try:
        return _encode(body)
    except UnicodeEncodeError as broken:
        raise InvalidName(f"name {name!r} cannot be sent: {broken.reason}") from None


def topic_path(topic: str) -> str:
    """Where a topic is under `/v1`; InvalidTopic for what a path cannot hold."""
    return f"/v1/topics/{_segment(topic, 'topic name', InvalidTopic)}"


def consumer_path(topic: str, consumer: str) -> str:
    return f"{topic_path(topic)}/consumers/{_segment(consumer, 'consumer name', InvalidName)}"


def group_path(topic: str, group: str) -> str:
    return f"{topic_path(topic)}/groups/{_segment(group, 'group name', InvalidName)}"


def _segment(text: str, what: str, error: type[RefusedError]) -> str:
    """One part of a path. What the broker can judge is left to it: an empty part it never sees."""
    if not isinstance(text, str):
        raise error(f"{what} {text!r} is not text: pass a str")
    if not text:
        raise error(f"{what} '' is empty: it needs at least one character; give it one")
    try:
        return quote(text, safe="")
    except UnicodeEncodeError as broken:
        raise error(f"{what} {text!r} cannot be sent: {broken.reason}") from None


def check_limit(limit: int | None) -> None:
    """InvalidSetting unless it is a count of records, or None for all."""
    is_count = isinstance(limit, int) and not isinstance(limit, bool) and limit > 0
    if limit is not None and not is_count:
        raise InvalidSetting(f"limit {limit!r} is not a whole number above 0, or None for all")


def check_gap(topic: str, position: str | int, page: RecordsIn) -> None:
    """Gap when retention took records that were asked for by their offset."""
    if isinstance(position, int) and page.first_offset > position:
        raise Gap(
            f"the stream of {topic!r} stands at {position}, but retention keeps records from "
            f"{page.first_offset} on: start there, or use on_gap='skip'"
        )


def encode_position(position: PositionLike) -> str | int:
    """A position as text, as `/v1` takes it; InvalidPosition names what is none."""
    if isinstance(position, bool | float):
        raise InvalidPosition(f"{position!r} is no position: use an offset, a time, or a duration")
    if isinstance(position, datetime):
        if position.tzinfo is None:
            raise InvalidPosition(f"time {position} has no time zone: use an aware datetime")
        return position.astimezone(UTC).isoformat()
    if isinstance(position, timedelta):
        return (datetime.now(UTC) - abs(position)).isoformat()
    if not isinstance(position, str | int):
        raise InvalidPosition(f"{position!r} is no position: use an offset, a time, or a duration")
    return position


def check(answer: Answer, wanted: Sequence[int] = (200, 201, 204)) -> bytes:
    """The body of an answer that is as wished for; else the error it stands for."""
    if answer.status in wanted:
        return bytes(answer.body)
    raise error_of(answer)


class _Problem(msgspec.Struct):
    detail: str = ""
    message: str = ""
    error: str = ""


_BY_STATUS: Final[dict[int, type[PenstockError]]] = {
    401: NotAuthorized,
    403: NotAuthorized,
    404: errors.TopicNotFound,
    410: errors.Gap,
    413: errors.TooLarge,
    503: UnavailableError,
    507: errors.DiskFull,
}


def error_of(answer: Answer) -> PenstockError:
    """The same class that a Broker in this process would have raised, as far as it is known."""
    try:
        problem = msgspec.json.decode(bytes(answer.body), type=_Problem)
    except msgspec.DecodeError:
        problem = _Problem()
    text = problem.detail or problem.message or f"the broker answered {answer.status}"
    named = getattr(errors, problem.error, None) if problem.error else None
    if isinstance(named, type) and issubclass(named, PenstockError):
        return named(text)
    kind = _BY_STATUS.get(answer.status)
    if kind is None and answer.status >= 500:  # of a broken broker, or of a proxy in front of it
        kind = UnavailableError if answer.is_reading else OutcomeUnknown
    return (kind or RefusedError)(text)
