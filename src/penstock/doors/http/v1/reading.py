"""Requests of `/v1` into values, values into answers: what its endpoints have in common."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import repeat
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.inspect import LiteralType, StructType, UnionType, type_info

from penstock.broker.topic.reading import Columns
from penstock.broker.topic.topics import Topic
from penstock.core.durations import seconds
from penstock.core.naming.names import check_filter, quoted
from penstock.core.position import OFFSET_END
from penstock.core.topic_settings import TOPIC_KEYS
from penstock.core.where import Where, compile_where
from penstock.doors.http.v1.types import RecordOut
from penstock.doors.http.wire.counting import check_values
from penstock.doors.http.wire.messages import HttpError, Request
from penstock.doors.http.wire.pieces import PIECE_BYTES, LongRecord
from penstock.model.errors import InvalidSetting
from penstock.model.limits import MIB
from penstock.model.record import KIND_JSON, KIND_NAMES, Record

T = TypeVar("T")

LIMIT_DEFAULT: Final = 1_000
LIMIT_MAX: Final = 10_000
ARROW_LIMIT_MAX: Final = 50_000  # which cost no more than a tenth of it as JSON
BATCHES_LIMIT_MAX: Final = 1_000_000  # which are not looked at: their bytes bound an answer
READ_BYTES_MAX: Final = 8 * MIB  # of payloads in one answer; the first record always fits
COLUMNS: Final = (
    "topic", "partition", "offset", "timestamp", "name", "headers", "payload", "publisher",
    "qos", "retain", "expires_at", "kind", "header_pairs",
)  # fmt: skip
WAIT_S_MAX: Final = 60.0
_NUMBER: Final = re.compile(r"[0-9]{1,20}(\.[0-9]{0,20})?(e-?[0-9]{1,3})?")
WAIT: Final = {"type": "number", "minimum": 0, "maximum": WAIT_S_MAX}  # as the document shows it


def read_body(request: Request, kind: type[T]) -> T:
    """The body as this type; an empty one is `{}`. HttpError 400 says where it is wrong."""
    return _decode(request, kind, lambda: told_fields(kind))


def read_settings(request: Request) -> dict[str, Any]:
    """The settings of a topic that a body names, as they are; an empty body names none."""
    given = _decode(
        request, dict[str, Any], lambda: f"the fields {', '.join(map(repr, TOPIC_KEYS))}"
    )
    return {key: int(one) if _is_whole(one) else one for key, one in given.items()}


def _decode(request: Request, kind: type[T], fields: Callable[[], str]) -> T:
    body = request.body or b"{}"
    check_values(body)
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as wrong:
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return msgspec.convert(_whole(msgspec.json.decode(body)), type=kind)
        told = f"the request body is invalid: {wrong}; it has {fields()}"
        raise HttpError(400, told, error="InvalidSetting") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as wrong:
        raise HttpError(
            400, f"the request body is not JSON: {wrong}; it is an object with {fields()}"
        ) from None


def _is_whole(value: Any) -> bool:
    return isinstance(value, float) and value.is_integer()


def _whole(value: Any) -> Any:
    """The same with 3.0 as 3: in JSON both are the same number (JSON Schema §4.2.3)."""
    if _is_whole(value):
        return int(value)
    if isinstance(value, list):
        return [_whole(one) for one in value]
    if isinstance(value, dict):
        return {key: _whole(one) for key, one in value.items()}
    return value


def told_fields(kind: type[Any]) -> str:
    """What a body of this type may say, in words."""
    info = type_info(kind)
    assert isinstance(info, StructType), kind
    told = []
    for field in info.fields:
        kinds = field.type.types if isinstance(field.type, UnionType) else (field.type,)
        values = [value for one in kinds if isinstance(one, LiteralType) for value in one.values]
        which = f" ({' or '.join(map(repr, values))})" if values else ""
        told.append(f"{field.encode_name!r}{which}")
    return "the field " + told[0] if len(told) == 1 else "the fields " + ", ".join(told)


def check_query(request: Request, *known: str) -> dict[str, str]:
    """The query string; HttpError 400 names a field that does not exist."""
    for key in request.query:
        if key not in known:
            there = f"there are {', '.join(known)}" if known else "this request has no query fields"
            raise HttpError(400, f"query field {key[:200]!r} is unknown: {there}")
    return request.query


def read_number(text: str, end: int) -> int | None:
    """A whole number below `end`, written in digits; None if the text is anything else."""
    if not text.isascii() or not text.isdigit():
        return None
    digits = text.lstrip("0") or "0"
    if len(digits) > len(str(end)):  # Python refuses to read some thousand digits
        return None
    number = int(digits)
    return number if number < end else None


def read_limit(query: dict[str, str], limit_max: int = LIMIT_MAX) -> int:
    text = query.get("limit", str(LIMIT_DEFAULT))
    limit = read_number(text, limit_max + 1)
    if not limit:
        raise HttpError(400, f"limit {text[:200]!r} is not a whole number from 1 to {limit_max}")
    return limit


def read_offset(query: dict[str, str], field: str) -> int | None:
    """An offset, or None where the field is not given."""
    text = query.get(field)
    if text is None:
        return None
    number = read_number(text, OFFSET_END)
    if number is None:
        what = "an offset" if field != "epoch" else "an epoch"
        raise HttpError(
            400,
            f"{field} {text[:200]!r} is not {what}: a whole number from 0 to {OFFSET_END - 1}",
        )
    return number


def read_partition(query: dict[str, str], topic: Topic) -> Topic | None:
    """The part of a topic that a request names; None if it names none."""
    text = query.get("partition")
    if text is None:
        return None
    number = read_number(text, len(topic.parts))
    if number is None:
        raise HttpError(
            404,
            f"partition {text[:200]!r} does not exist: topic {quoted(topic.declared)} has "
            f"{len(topic.parts)}, and their numbers begin with 0",
        )
    return topic.parts[number]


def read_columns(query: dict[str, str], is_arrow: bool) -> tuple[str, ...]:
    """Names of columns of an Arrow stream; empty for all."""
    text = query.get("columns")
    if text is None:
        return ()
    columns = tuple(text.split(","))
    for column in columns:
        if column not in COLUMNS:
            raise HttpError(
                400, f"column {column[:200]!r} is unknown: there are {', '.join(COLUMNS)}"
            )
    if len(set(columns)) < len(columns):
        raise HttpError(400, f"columns {text[:200]!r} name one twice")
    return columns if is_arrow else ()


def read_wait_s(query: dict[str, str]) -> float:
    """How long to wait for a record: seconds, or text such as 30s."""
    text = query.get("wait", "0")
    try:
        wait_s = float(text) if _NUMBER.fullmatch(text) else seconds("wait", text)
    except InvalidSetting:
        raise HttpError(
            400, f"wait {text[:200]!r} is not a duration: write seconds, or '30s'"
        ) from None
    if wait_s > WAIT_S_MAX:
        raise HttpError(400, f"wait {text[:200]!r} is too long: at most {WAIT_S_MAX:g} s")
    return wait_s


def read_filters(query: dict[str, str]) -> tuple[Where | None, str | None]:
    """`where` and `names`."""
    names = query.get("names")
    if names is not None:
        check_filter(names)
    where = query.get("where")
    return None if where is None else compile_where(where), names


def record_out(record: Record) -> RecordOut:
    """A record as JSON shows it."""
    payload: Any
    coded: str | UnsetType
    if record.kind == KIND_JSON:
        payload, coded = msgspec.Raw(record.payload), UNSET
    else:
        payload, coded = _shown(record.payload)
    return _record_out(record, payload, coded)


def long_or_short(record: Record) -> RecordOut | LongRecord:
    """The same, without a long payload, which is added while it is sent."""
    if len(record.payload) <= PIECE_BYTES:
        return record_out(record)
    return LongRecord(_record_out(record, UNSET, UNSET), record.payload)


def _record_out(record: Record, payload: Any, coded: str | UnsetType) -> RecordOut:
    return RecordOut(
        offset=record.offset,
        timestamp=record.timestamp,
        name=record.name,
        payload=payload,
        payload_base64=coded,
        kind=KIND_NAMES[record.kind],
        headers=list(record.headers) if record.headers else UNSET,
        publisher=record.publisher,
        qos=record.qos,
        retain=record.retain,
        expires_at=record.expires_at,
        partition=record.partition,
    )


def columns_out(columns: Columns) -> Iterator[RecordOut]:
    """As `record_out`, for many at a time."""
    payloads: Iterable[Any] = repeat(UNSET)
    coded: Iterable[str | UnsetType] = repeat(UNSET)
    if columns.kind == KIND_JSON:
        payloads = map(msgspec.Raw, columns.payloads)
    else:
        try:
            payloads = [payload.decode() for payload in columns.payloads]
        except UnicodeDecodeError:
            pairs = [_shown(payload) for payload in columns.payloads]
            payloads, coded = [text for text, _ in pairs], [code for _, code in pairs]
    headers: Iterable[Any] = repeat(UNSET)
    if columns.headers is not None:
        headers = [list(pairs) if pairs else UNSET for pairs in columns.headers]
    return map(
        RecordOut,
        columns.offsets,
        columns.timestamps,
        columns.names,
        payloads,
        coded,
        repeat(KIND_NAMES[columns.kind]),
        headers,
        columns.publishers,
        repeat(columns.qos),
        repeat(columns.retain),
        columns.expiries,
        repeat(columns.partition),
    )


def _shown(payload: bytes) -> tuple[str | UnsetType, str | UnsetType]:
    """Bytes as text, or else in base64."""
    try:
        return payload.decode(), UNSET
    except UnicodeDecodeError:
        return UNSET, base64.b64encode(payload).decode()


def reader_name(kind: str, user: str) -> str:
    """Who reads over HTTP, for traces."""
    return f"{kind} of {user}" if user else kind


def decode_base64(text: str, at: int) -> bytes:
    """The bytes of message `at`."""
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError as wrong:
        raise HttpError(
            400,
            f"message {at}: payload_base64 {text[:60]!r} is not base64 ({wrong}): use A-Z a-z 0-9 "
            "+ / and = up to a multiple of four",
        ) from None
