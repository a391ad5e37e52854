"""`/v1/topics/{topic}/records`: storing messages, one or many, and reading from any position.

A request is stored whole or not at all, in one batch; the answer has one result for each message,
and comes when they are durable. With an Idempotency-Key it is stored once, however often it comes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import UNSET

from penstock.broker.publish.idempotency import StoringOnce
from penstock.broker.publish.submissions import RECORDS_MAX, Submissions
from penstock.broker.reading import Selection, position_offset
from penstock.broker.session.store import SessionStore
from penstock.broker.topics import Topic
from penstock.core.access import Gate
from penstock.core.names import check_name
from penstock.core.position import parse_position
from penstock.core.run import Run, run_of
from penstock.doors.http.counting import check_values
from penstock.doors.http.endpoints import Endpoints
from penstock.doors.http.errors import problem_of
from penstock.doors.http.messages import JSON, Answer, HttpError, Pairs, Request, Response
from penstock.doors.http.needs import Needs
from penstock.doors.http.room import Place
from penstock.doors.http.router import Route
from penstock.doors.http.schemas import FILTER, KEY, NAME, OFFSET, POSITION, WHERE, number
from penstock.doors.http.v1.describing import Facts, Field
from penstock.doors.http.v1.page import ARROW, BATCHES, Page, page_size, read_form
from penstock.doors.http.v1.reading import (
    ARROW_LIMIT_MAX,
    BATCHES_LIMIT_MAX,
    COLUMNS,
    LIMIT_MAX,
    READ_BYTES_MAX,
    WAIT_S_MAX,
    check_query,
    decode_base64,
    read_columns,
    read_filters,
    read_limit,
    read_number,
    read_offset,
    read_wait_s,
)
from penstock.doors.http.v1.types import Message, MessagesIn, Records, Results
from penstock.model.errors import RefusedError
from penstock.model.messages import check_headers, check_key, encode_message
from penstock.model.record import KIND_BYTES, KIND_TEXT, Headers

RECORDS: Final = "/v1/topics/{topic}/records"
NDJSON: Final = ("application/x-ndjson", "application/ndjson", "application/jsonl")
_LIMITS: Final = {ARROW: ARROW_LIMIT_MAX, BATCHES: BATCHES_LIMIT_MAX}
RAW: Final = {"text/plain": KIND_TEXT, "application/octet-stream": KIND_BYTES}

WAIT: Final = {"type": "number", "minimum": 0, "maximum": WAIT_S_MAX}
ALL: Final = {
    "type": "array",
    "items": {"type": "string", "enum": list(COLUMNS)},
    "minItems": 1,
    "uniqueItems": True,
}

_one: Final = msgspec.json.Decoder(Message)
_many: Final = msgspec.json.Decoder(list[Message])
_encode: Final = msgspec.json.Encoder().encode


def add_routes(door: Endpoints, submissions: Submissions, store: SessionStore) -> None:
    records = RecordsDoor(door, submissions, store)
    door.router.add(
        Route(
            "POST",
            RECORDS,
            records.store,
            needs=Needs.JUDGED,
            facts=Facts(
                "store one message, a JSON array of messages, or one message per line (NDJSON); "
                "they are durable when the response is sent",
                Results,
                takes=MessagesIn,
                needs_body=True,
                also_takes=(NDJSON[0], *RAW),
                query=(Field("name", "name of messages that have none", NAME),),
                headers=(
                    Field(
                        "Idempotency-Key",
                        "a request sent again within 24 h is stored once; with Idempotency-Part: N "
                        "the body is message N, from 0 on, of the request that had this key",
                        KEY,
                    ),
                ),
                errors=(413, 422),
            ),
        )
    )
    door.router.add(
        Route(
            "GET",
            RECORDS,
            records.read,
            ends_with_client=True,
            needs=Needs.READ_TOPIC,
            facts=Facts(
                "read records from a position on",
                Records,
                query=(
                    Field("from", "start position (earliest)", POSITION),
                    Field(
                        "limit",
                        f"maximum number of records (1,000); up to {ARROW_LIMIT_MAX:,} as Arrow, "
                        f"{BATCHES_LIMIT_MAX:,} as batches",
                        number(1, LIMIT_MAX),
                    ),
                    Field("where", "a filter expression", WHERE),
                    Field("names", "a filter over names, with + and #", FILTER),
                    Field("wait", "seconds to wait for a record if there is no record", WAIT),
                    Field("until", "stop before this offset", OFFSET),
                    Field("columns", "columns of an Arrow stream, separated by commas", ALL),
                ),
                also_gives=(ARROW, BATCHES),
                errors=(406, 409),
            ),
        )
    )


class RecordsDoor:
    def __init__(self, door: Endpoints, submissions: Submissions, store: SessionStore) -> None:
        self._door = door
        self._engine = door.engine
        self._submissions = submissions
        self._once = StoringOnce(store.keys, submissions)

    # Storing

    def store(self, request: Request) -> Any:
        topic = self._engine.topics.get(request.params["topic"])
        runs = make_runs(topic, read_messages(request))
        if b"idempotency-key" in request.headers or b"idempotency-part" in request.headers:
            return self._store_once(request, topic, runs)
        count = sum([run.count for run in runs])

        def stored(offset: int, error: Exception | None) -> None:
            if error is None:
                request.reply(results(topic, offset, count))
            else:
                request.reply(problem_of(error))

        self._submissions.submit(request.principal, topic, runs, stored)
        return None

    async def _store_once(self, request: Request, topic: Topic, runs: Sequence[Run]) -> Response:
        key = check_key(request.header(b"idempotency-key"))
        part = read_part(request, runs)
        own = f"{request.principal.user}\n{key}"
        digest = hashlib.blake2b(request.body, digest_size=8).digest()
        if part is None:
            once = await self._once.store(request.principal, topic, runs, own, digest)
        else:
            once = await self._once.store_part(request.principal, topic, runs, own, part, digest)
        if once is None:
            raise HttpError(
                422,
                f"Idempotency-Key {key!r} was used with another body in the last 24 hours: repeat "
                "that body, or use a new key",
            )
        replayed: Pairs = (("Idempotency-Replayed", "true"),) if once.is_repeat else ()
        return results(topic, once.offset, once.count, replayed)

    # Reading

    async def read(self, request: Request) -> Answer:
        query = check_query(request, "from", "limit", "where", "names", "wait", "until", "columns")
        form = wanted_form(request)
        topic = self._engine.topics.get(request.params["topic"])
        where, names = read_filters(query)
        selection = Selection(
            read_limit(query, _LIMITS.get(form, LIMIT_MAX)),
            READ_BYTES_MAX,
            where,
            names,
            read_offset(query, "until"),
            read_columns(query, form == ARROW),
            Gate(request.principal, topic.key),
        )
        is_plain = where is None and names is None
        if form == BATCHES and not (is_plain and "columns" not in query):
            raise HttpError(
                400,
                f"{BATCHES} contains whole batches: where, names and columns need JSON or Arrow",
            )
        wait_s = read_wait_s(query)
        position = parse_position(query.get("from", "earliest"), self._engine.clock.now_us())
        offset = await position_offset(topic, position)
        first_offset = max(offset, topic.log.bounds().first)
        page, place = await self._wait_page(topic, offset, selection, form, wait_s)
        self._engine.metrics.note_read(page.count)
        return page.answer(topic, first_offset, self._door.room, place)

    async def _wait_page(
        self, topic: Topic, offset: int, selection: Selection, form: str, wait_s: float
    ) -> tuple[Page, Place | None]:
        """The page at `offset`; where it is empty, the first one that is not, for a while."""
        deadline_s = self._engine.clock.monotonic_s() + wait_s
        while True:
            page, place = await self._door.room.read(
                partial(read_form, topic, offset, selection, form),
                page_size,
                is_scan=selection.is_filtered,
            )
            found = page.found
            left_s = deadline_s - self._engine.clock.monotonic_s()
            if page.count or left_s <= 0 or found.next_offset < found.end_offset:
                return page, place
            offset = found.next_offset
            await self._door.wait(topic.log.wait_past(offset), left_s)
            if self._door.is_stopping:
                return page, place


def wanted_form(request: Request) -> str:
    """JSON, ARROW or BATCHES; HttpError 406 when the client takes none of them."""
    accepted = request.header(b"accept") or "*/*"
    for form in (BATCHES, ARROW):
        if form in accepted:
            return form
    if any(kind in accepted for kind in ("*/*", "application/*", "application/json")):
        return JSON
    raise HttpError(406, f"records are available as application/json, {ARROW} or {BATCHES}")


def results(topic: Topic, offset: int, count: int, headers: Pairs = ()) -> Response:
    """Written out here: there may be thousands."""
    each = b",".join([b'{"offset":%d}' % at for at in range(offset, offset + count)])
    body = b'{"topic":%b,"first_offset":%d,"end_offset":%d,"results":[%b]}' % (
        _encode(topic.declared),
        offset,
        offset + count,
        each,
    )
    return Response(200, body, headers=headers)


# From a body to runs


def read_messages(request: Request) -> list[Message]:
    """The messages of a body, in whatever form they came."""
    content_type = request.header(b"content-type")
    if content_type != JSON:
        content_type = content_type.partition(";")[0].strip().lower()
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
    query = check_query(request, "name") if request.query_text else {}
    check_values(body)
    try:
        if content_type in NDJSON:
            messages = _one.decode_lines(body)
        elif body.lstrip(b" \t\r\n")[:1] == b"[":
            messages = _many.decode(body)
        else:
            messages = [_one.decode(body)]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as wrong:
        raise HttpError(
            400,
            f'the request body is invalid: {wrong}; send {{"payload": …}}, a list or lines of '
            "them, or text/plain",
        ) from None
    if not messages:
        raise HttpError(400, "the body contains no message: send one or more")
    if "name" in query:
        for message in messages:
            message.name = query["name"] if message.name is UNSET else message.name
    if len(messages) > RECORDS_MAX:
        raise HttpError(
            413, f"{len(messages)} messages at once: at most {RECORDS_MAX}; send several requests"
        )
    return messages


def make_runs(topic: Topic, messages: Sequence[Message]) -> list[Run]:
    """Neighbours that share all but the payload become one run."""
    runs: list[Run] = []
    payloads: list[bytes] = []
    like: Message = messages[0]
    kind = -1
    for at, message in enumerate(messages):
        payload = message.payload
        if type(payload) is str and message.payload_base64 is UNSET:
            data, its_kind = payload.encode(), KIND_TEXT
        else:
            data, its_kind = read_payload(message, at)
        if (
            its_kind != kind
            or message.name != like.name
            or message.headers != like.headers
            or message.retain != like.retain
        ):
            if payloads:
                runs.append(_run(topic, like, payloads, kind, at))
                payloads = []
            like, kind = message, its_kind
        payloads.append(data)
    runs.append(_run(topic, like, payloads, kind, len(messages)))
    return runs


def read_payload(message: Message, at: int) -> tuple[bytes, int]:
    """Payload and kind of one message; HttpError says which one is wrong."""
    payload, coded = message.payload, message.payload_base64
    if (payload is UNSET) is (coded is UNSET):
        is_none = payload is UNSET
        raise HttpError(
            400,
            f"message {at} has {'neither' if is_none else 'both'} 'payload' "
            f"{'nor' if is_none else 'and'} 'payload_base64': give one of them",
        )
    if coded is not UNSET:
        return decode_base64(coded, at), KIND_BYTES
    return encode_message(payload)


def _run(topic: Topic, like: Message, payloads: list[bytes], kind: int, end: int) -> Run:
    name = topic.declared
    headers: Headers = ()
    try:
        if like.name is not UNSET:
            name = check_name(like.name)
        if like.headers is not UNSET:
            headers = check_headers(like.headers)
    except RefusedError as wrong:
        raise type(wrong)(f"message {end - len(payloads)}: {wrong}") from None
    return run_of(name, payloads, kind, headers=headers, retain=like.retain)


def read_part(request: Request, runs: Sequence[Run]) -> int | None:
    """Which message of the request with this key the body is; None for the whole request."""
    if b"idempotency-part" not in request.headers:
        return None
    text = request.header(b"idempotency-part")
    part = read_number(text, RECORDS_MAX)
    if part is None:
        raise HttpError(
            400, f"Idempotency-Part {text[:60]!r} is not a whole number from 0 to {RECORDS_MAX - 1}"
        )
    if len(runs) != 1 or runs[0].count != 1:
        raise HttpError(
            400,
            "with Idempotency-Part the body must contain exactly one message: send only that one",
        )
    return part
