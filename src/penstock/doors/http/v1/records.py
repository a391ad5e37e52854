"""`/v1/topics/{topic}/records`: storing messages, one or many, and reading from any position.

A request is stored whole or not at all, in one batch; the answer has one result for each message,
and comes when they are durable. With an Idempotency-Key it is stored once, however often it comes.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import msgspec

from penstock.broker.publish.idempotency import StoringOnce
from penstock.broker.publish.submissions import RECORDS_MAX, Submissions
from penstock.broker.reading import Selection, position_offset
from penstock.broker.session.store import SessionStore
from penstock.broker.topics import Topic
from penstock.core.access import Gate
from penstock.core.position import parse_position
from penstock.core.run import Run
from penstock.doors.http.endpoints import Endpoints
from penstock.doors.http.errors import problem_of
from penstock.doors.http.messages import JSON, Answer, HttpError, Pairs, Request, Response
from penstock.doors.http.needs import Needs
from penstock.doors.http.room import Place
from penstock.doors.http.router import Route
from penstock.doors.http.schemas import FILTER, KEY, NAME, OFFSET, POSITION, WHERE, number
from penstock.doors.http.v1.bodies import (
    NDJSON,
    RAW,
    SLICED_BYTES,
    is_raw,
    make_runs,
    make_runs_slowly,
    read_messages,
    read_messages_slowly,
)
from penstock.doors.http.v1.describing import Facts, Field
from penstock.doors.http.v1.page import ARROW, BATCHES, Page, page_size, read_form
from penstock.doors.http.v1.reading import (
    ARROW_LIMIT_MAX,
    BATCHES_LIMIT_MAX,
    COLUMNS,
    LIMIT_MAX,
    READ_BYTES_MAX,
    WAIT,
    check_query,
    read_columns,
    read_filters,
    read_limit,
    read_number,
    read_offset,
    read_wait_s,
)
from penstock.doors.http.v1.trace_context import add_trace_context
from penstock.doors.http.v1.types import MessagesIn, Records, Results
from penstock.model.messages import check_key

RECORDS: Final = "/v1/topics/{topic}/records"
_LIMITS: Final = {ARROW: ARROW_LIMIT_MAX, BATCHES: BATCHES_LIMIT_MAX}
ALL: Final = {
    "type": "array",
    "items": {"type": "string", "enum": list(COLUMNS)},
    "minItems": 1,
    "uniqueItems": True,
}

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
        if len(request.body) > SLICED_BYTES and not is_raw(request):
            return self._store_large(request, topic)
        messages = read_messages(request)
        if b"traceparent" in request.headers:
            add_trace_context(request, messages)
        runs = make_runs(topic, messages)
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

    async def _store_large(self, request: Request, topic: Topic) -> Response:
        """Others have their turn while the body is looked at."""
        messages = await read_messages_slowly(request)
        if b"traceparent" in request.headers:
            add_trace_context(request, messages)
        runs = await make_runs_slowly(topic, messages)
        if b"idempotency-key" in request.headers or b"idempotency-part" in request.headers:
            return await self._store_once(request, topic, runs)
        stored: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def tell(offset: int, error: Exception | None) -> None:
            if stored.done():
                return  # who asked is gone
            if error is None:
                stored.set_result(offset)
            else:
                stored.set_exception(error)

        self._submissions.submit(request.principal, topic, runs, tell)
        return results(topic, await stored, sum([run.count for run in runs]))

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
