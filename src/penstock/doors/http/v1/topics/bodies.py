"""Bodies of messages, in whatever form they come, into runs.

A large body is worked on in slices, between which others have their turn; what it holds is counted
before it is decoded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import UNSET

from penstock.broker.publish.submissions import RECORDS_MAX
from penstock.broker.topic.topics import Topic
from penstock.core.delivery.run import Run, run_of
from penstock.core.naming.names import check_name
from penstock.doors.http.v1.reading import check_query, decode_base64
from penstock.doors.http.v1.types import Message
from penstock.doors.http.wire.counting import ONE_VALUES_MAX, VALUES_MAX, check_values
from penstock.doors.http.wire.messages import JSON, HttpError, Request
from penstock.model.errors import RefusedError
from penstock.model.limits import KIB
from penstock.model.messages import check_headers, encode_parsed
from penstock.model.record import KIND_BYTES, KIND_TEXT, Headers

NDJSON: Final = ("application/x-ndjson", "application/ndjson", "application/jsonl")
RAW: Final = {"text/plain": KIND_TEXT, "application/octet-stream": KIND_BYTES}
SLICED_BYTES: Final = 128 * KIB  # smaller bodies are read at once: some milliseconds
SLICE_BYTES: Final = 64 * KIB  # decoded before others have their turn
MESSAGE_BYTES: Final = 100  # what a message costs besides its bytes, as bytes
SLICE_RUNS: Final = 200  # made before others have their turn

_one: Final = msgspec.json.Decoder(Message)
_many: Final = msgspec.json.Decoder(list[Message])
_raw: Final = msgspec.json.Decoder(msgspec.Raw)
_raws: Final = msgspec.json.Decoder(list[msgspec.Raw])


def is_raw(request: Request) -> bool:
    """Is the whole body one payload?"""
    return _content_type(request) in RAW


def _content_type(request: Request) -> str:
    content_type = request.header(b"content-type")
    if content_type != JSON:
        content_type = content_type.partition(";")[0].strip().lower()
    return content_type


def read_messages(request: Request) -> list[Message]:
    """The messages of a body, in whatever form they came."""
    content_type = _content_type(request)
    body = request.body
    kind = RAW.get(content_type)
    if kind is not None:
        query = check_query(request, "name")
        message = Message(payload=body, name=query.get("name", UNSET))
        if kind == KIND_TEXT:
            try:
                message.payload = body.decode()
            except UnicodeDecodeError:
                raise HttpError(
                    400, "the body is not UTF-8: send it as application/octet-stream"
                ) from None
        return [message]
    check_values(body)
    try:
        if content_type in NDJSON:
            messages = _one.decode_lines(body)
        elif body.lstrip(b" \t\r\n")[:1] == b"[":
            messages = _many.decode(body)
        else:
            messages = [_one.decode(body)]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as wrong:
        raise _invalid(str(wrong)) from None
    _check_count(len(messages))
    if request.query_text:
        _name(request, messages)
    return messages


async def read_messages_slowly(request: Request) -> list[Message]:
    """The same for a large body of JSON."""
    body = request.body
    check_values(body, VALUES_MAX)
    at = -1
    try:
        if _content_type(request) in NDJSON:
            raws = _raw.decode_lines(body)
        else:
            is_list = body.lstrip(b" \t\r\n")[:1] == b"["
            raws = _raws.decode(body) if is_list else [msgspec.Raw(body)]
        _check_count(len(raws))
        messages: list[Message] = []
        left = SLICE_BYTES
        for at, raw in enumerate(raws):
            size = memoryview(raw).nbytes
            if size > ONE_VALUES_MAX:
                check_values(bytes(raw), what=f"message {at}")
            messages.append(_one.decode(raw))
            left -= size + MESSAGE_BYTES
            if left < 0:
                left = SLICE_BYTES
                await asyncio.sleep(0)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as wrong:
        raise _invalid(f"message {at}: {wrong}" if at >= 0 else str(wrong)) from None
    if request.query_text:
        _name(request, messages)
    return messages


def _invalid(wrong: str) -> HttpError:
    return HttpError(
        400,
        f'the request body is invalid: {wrong}; send {{"payload": …}}, a list or lines of '
        "them, or text/plain",
    )


def _check_count(count: int) -> None:
    if not count:
        raise HttpError(400, "the body contains no message: send one or more")
    if count > RECORDS_MAX:
        raise HttpError(
            413, f"{count} messages at once: at most {RECORDS_MAX}; send several requests"
        )


def _name(request: Request, messages: list[Message]) -> None:
    """The query string may name messages that have no name."""
    query = check_query(request, "name")
    if "name" in query:
        for message in messages:
            message.name = query["name"] if message.name is UNSET else message.name


def make_runs(topic: Topic, messages: Sequence[Message]) -> list[Run]:
    """Neighbours that share all but the payload become one run."""
    runs: list[Run] = []
    at = 0
    while at < len(messages):
        run, at = _next_run(topic, messages, at)
        runs.append(run)
    return runs


async def make_runs_slowly(topic: Topic, messages: Sequence[Message]) -> list[Run]:
    """The same; others have their turn meanwhile."""
    runs: list[Run] = []
    at = 0
    while at < len(messages):
        run, at = _next_run(topic, messages, at)
        runs.append(run)
        if not len(runs) % SLICE_RUNS:
            await asyncio.sleep(0)
    return runs


def _next_run(topic: Topic, messages: Sequence[Message], first: int) -> tuple[Run, int]:
    """The run that begins with message `first`, and where the next one begins."""
    like = messages[first]
    name, headers, retain = like.name, like.headers, like.retain
    data, kind = read_payload(like, first)
    payloads = [data]
    at = first + 1
    while at < len(messages):
        message = messages[at]
        if message.name != name or message.headers != headers or message.retain != retain:
            break
        data, its_kind = read_payload(message, at)
        if its_kind != kind:
            break
        payloads.append(data)
        at += 1
    return _run(topic, like, payloads, kind, first), at


def read_payload(message: Message, at: int) -> tuple[bytes, int]:
    """Payload and kind of one message; HttpError says which one is wrong."""
    payload, coded = message.payload, message.payload_base64
    if type(payload) is str and coded is UNSET:
        return payload.encode(), KIND_TEXT
    if (payload is UNSET) is (coded is UNSET):
        is_none = payload is UNSET
        raise HttpError(
            400,
            f"message {at} has {'neither' if is_none else 'both'} 'payload' "
            f"{'nor' if is_none else 'and'} 'payload_base64': give one of them",
        )
    if coded is not UNSET:
        return decode_base64(coded, at), KIND_BYTES
    return encode_parsed(payload)


def _run(topic: Topic, like: Message, payloads: list[bytes], kind: int, first: int) -> Run:
    name = topic.declared
    headers: Headers = ()
    try:
        if like.name is not UNSET:
            name = check_name(like.name)
        if like.headers is not UNSET:
            headers = check_headers(like.headers)
    except RefusedError as wrong:
        raise type(wrong)(f"message {first}: {wrong}") from None
    return run_of(name, payloads, kind, headers=headers, retain=like.retain)
