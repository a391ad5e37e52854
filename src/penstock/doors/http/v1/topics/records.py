"""`/v1/topics/{topic}/records`: storing messages, one or many, and reading from any position.

A request is stored whole or not at all, in one batch; the answer has one result for each message,
and comes when they are durable. With an Idempotency-Key it is stored once, however often it comes.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import msgspec

from penstock.broker.publish.idempotency import StoringOnce
from penstock.broker.publish.submissions import RECORDS_MAX, Submissions
from penstock.broker.session.store import SessionStore
from penstock.broker.topic.parts import (
    check_position,
    places_of,
    resolve,
    resolve_all,
    runs_by_part,
    shown_offsets,
    wait_past_any,
)
from penstock.broker.topic.reading import Selection
from penstock.broker.topic.topics import Topic
from penstock.core.access import Gate
from penstock.core.delivery.run import Run
from penstock.core.position import AtOffset, AtOffsets, parse_position
from penstock.core.topic_settings import PARTITIONS_MAX
from penstock.doors.http.routing.endpoints import Endpoints
from penstock.doors.http.routing.errors import problem_of
from penstock.doors.http.routing.needs import Needs, publish_refusal
from penstock.doors.http.routing.router import Route
from penstock.doors.http.routing.schemas import FILTER, KEY, NAME, OFFSET, POSITION, WHERE, number
from penstock.doors.http.v1.describing import Facts, Field
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
    read_partition,
    read_wait_s,
    reader_name,
)
from penstock.doors.http.v1.topics.bodies import (
    NDJSON,
    RAW,
    SLICED_BYTES,
    is_raw,
    make_runs,
    make_runs_slowly,
    read_messages,
    read_messages_slowly,
)
from penstock.doors.http.v1.topics.page import (
    ARROW,
    BATCHES,
    Page,
    PartsPage,
    Shown,
    page_size,
    read_form,
    read_parts,
)
from penstock.doors.http.v1.trace_context import add_trace_context
from penstock.doors.http.v1.types import MessagesIn, Records, Results
from penstock.doors.http.wire.messages import JSON, Answer, HttpError, Pairs, Request, Response
from penstock.doors.http.wire.room import Place
from penstock.model.errors import RefusedError
from penstock.model.messages import check_key

RECORDS: Final = "/v1/topics/{topic}/records"
QUERY: Final = (
    "from", "limit", "where", "names", "wait", "until", "columns", "partition",
)  # fmt: skip
_LIMITS: Final = {ARROW: ARROW_LIMIT_MAX, BATCHES: BATCHES_LIMIT_MAX}
ALL: Final = {
    "type": "array",
    "items": {"type": "string", "enum": list(COLUMNS)},
    "minItems": 1,
    "uniqueItems": True,
}

REPLAYED: Final = (("Idempotency-Replayed", "true"),)
_encode: Final = msgspec.json.Encoder().encode


def add_routes(door: Endpoints, submissions: Submissions, store: SessionStore) -> None:
    records = RecordsDoor(door, submissions, store)
    door.router.add(
        Route(
            "POST",
            RECORDS,
            records.store,
            needs=Needs.JUDGED,
            is_keyed=True,
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
                    Field("partition", "read this partition only (all)", number(0, PARTITIONS_MAX)),
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
        name = request.params["topic"]
        try:
            topic = self._engine.topics.get(name)
        except RefusedError as refused:
            raise publish_refusal(request.principal, name, refused) from None
        if len(request.body) > SLICED_BYTES and not is_raw(request):
            return self._store_large(request, topic)
        messages = read_messages(request)
        if b"traceparent" in request.headers:
            add_trace_context(request, messages)
        runs = make_runs(topic, messages)
        if len(topic.parts) > 1:
            return self._store_parts(request, topic, runs)
        if b"idempotency-key" in request.headers or b"idempotency-part" in request.headers:
            return self._store_once(request, topic, runs)
        count = len(messages)

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
        if len(topic.parts) > 1:
            return await self._store_parts(request, topic, runs)
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
            once = await self._once.store_part(
                request.principal, topic, runs, key=own, part=part, digest=digest
            )
        if once is None:
            raise _key_used(key)
        return results(topic, once.offset, once.count, REPLAYED if once.is_repeat else ())

    async def _store_parts(self, request: Request, topic: Topic, runs: Sequence[Run]) -> Response:
        """Each partition stores its messages as a whole."""
        if b"idempotency-key" in request.headers or b"idempotency-part" in request.headers:
            return await self._store_parts_once(request, topic, runs)
        stored: asyncio.Future[dict[int, int]] = asyncio.get_running_loop().create_future()

        def tell(firsts: dict[int, int], error: Exception | None) -> None:
            if stored.done():
                return  # who asked is gone
            if error is None:
                stored.set_result(firsts)
            else:
                stored.set_exception(error)

        groups = runs_by_part(topic, runs)
        self._submissions.submit_parts(request.principal, topic, groups, tell)
        return part_results(topic, places_of(topic, runs, await stored))

    async def _store_parts_once(
        self, request: Request, topic: Topic, runs: Sequence[Run]
    ) -> Response:
        key = check_key(request.header(b"idempotency-key"))
        number = read_part(request, runs)
        own = f"{request.principal.user}\n{key}"
        digest = hashlib.blake2b(request.body, digest_size=8).digest()
        who, once = request.principal, self._once
        if number is None:
            stored = await once.store_parts(who, topic, runs, own, digest)
            if stored is None:
                raise _key_used(key)
            firsts, is_repeat = stored
            places = places_of(topic, runs, firsts)
        else:
            found = await once.store_message(
                who, topic, runs[0], key=own, number=number, digest=digest
            )
            if found is None:
                raise _key_used(key)
            offset, is_repeat = found
            places = [(topic.part_of(runs[0].name).partition, offset)]
        return part_results(topic, places, REPLAYED if is_repeat else ())

    # Reading

    async def read(self, request: Request) -> Answer:
        query = check_query(request, *QUERY)
        form = wanted_form(request)
        topic = self._engine.topics.get(request.params["topic"])
        where, names = read_filters(query)
        selection = Selection(
            limit=read_limit(query, _LIMITS.get(form, LIMIT_MAX)),
            bytes_max=READ_BYTES_MAX,
            where=where,
            names=names,
            until=None,
            columns=read_columns(query, form == ARROW),
            gate=Gate(request.principal, topic.key),
        )
        is_plain = where is None and names is None
        if form == BATCHES and not (is_plain and "columns" not in query):
            raise HttpError(
                400,
                f"{BATCHES} contains whole batches: where, names and columns need JSON or Arrow",
            )
        wait_s = read_wait_s(query)
        position = parse_position(query.get("from", "earliest"), self._engine.clock.now_us())
        part = read_partition(query, topic)
        if part is None and len(topic.parts) > 1:
            untils = read_untils(query, topic)
            offsets = await resolve_all(topic, position)
            bounds = [part.log.bounds() for part in topic.parts]
            firsts = [max(at, one.first) for one, at in zip(bounds, offsets, strict=True)]
            asked = partial(read_parts, selection=selection, untils=untils, form=form)
            merged, place = await self._wait_parts(topic, offsets, asked, selection, wait_s)
            self._note(request, topic, merged.page)
            return merged.page.answer(topic, _shown_parts(firsts, merged), self._door.room, place)
        part = part or topic
        selection = replace(selection, until=read_offset(query, "until"))
        offset = await resolve(part, position)
        first_offset = max(offset, part.log.bounds().first)
        page, place = await self._wait_page(part, offset, selection, form, wait_s)
        self._note(request, topic, page)
        found = page.found
        first = first_offset if form == JSON else found.first_offset
        shown = Shown(first, found.next_offset, found.end_offset, _number(part))
        return page.answer(topic, shown, self._door.room, place)

    def _note(self, request: Request, topic: Topic, page: Page) -> None:
        self._engine.metrics.note_read(page.count)
        if self._engine.watch is not None:
            reader = reader_name("page", request.principal.user)
            self._engine.watch.read(reader, topic.declared, page.traced())

    async def _wait_parts(
        self,
        topic: Topic,
        offsets: list[int],
        asked: Callable[[Topic, list[int]], Awaitable[PartsPage]],
        selection: Selection,
        wait_s: float,
    ) -> tuple[PartsPage, Place | None]:
        """A page over all partitions; where it is empty, the first one that is not."""
        clock = self._engine.clock
        deadline_s = clock.monotonic_s() + wait_s
        while True:
            found, place = await self._door.room.read(
                partial(asked, topic, offsets), _parts_size, is_scan=selection.is_filtered
            )
            left_s = deadline_s - clock.monotonic_s()
            if found.page.count or left_s <= 0 or not found.is_at_end or self._door.is_stopping:
                return found, place
            offsets = found.next_offsets
            await self._door.wait(wait_past_any(topic.parts, offsets), left_s)

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


def read_untils(query: dict[str, str], topic: Topic) -> list[int | None]:
    """Where to stop in each partition."""
    if "until" not in query:
        return [None] * len(topic.parts)
    position = parse_position(query["until"], 0)
    if not isinstance(position, AtOffset | AtOffsets):
        raise HttpError(
            400,
            f"until {query['until'][:200]!r} does not give an offset for each partition: write it "
            'as in {"0": 23, "1": 7}, or name one partition',
        )
    check_position(topic, position)
    given = dict(position.offsets) if isinstance(position, AtOffsets) else {}
    return [given.get(number) for number in range(len(topic.parts))]


def _shown_parts(firsts: list[int], found: PartsPage) -> Shown:
    ends = shown_offsets(found.ends)
    nexts = shown_offsets(found.next_offsets)
    return Shown(shown_offsets(firsts), nexts, ends, found.partition)


def _number(part: Topic) -> int | None:
    return part.partition if len(part.parts) > 1 else None


def _parts_size(found: PartsPage) -> int:
    return found.page.size


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
    end = offset + count
    offsets = '},{"offset":'.join(map(str, range(offset, end)))
    body = (
        f'{{"topic":{_encode(topic.declared).decode()},"first_offset":{offset},'
        f'"end_offset":{end},"results":[{{"offset":{offsets}}}]}}'
    )
    return Response(200, body.encode(), headers=headers)


def part_results(topic: Topic, places: list[tuple[int, int]], headers: Pairs = ()) -> Response:
    """As `results`, where the topic has several partitions."""
    each = b",".join([b'{"partition":%d,"offset":%d}' % place for place in places])
    firsts: dict[str, int] = {}
    ends: dict[str, int] = {}
    for partition, offset in places:
        firsts.setdefault(str(partition), offset)
        ends[str(partition)] = offset + 1
    body = b'{"topic":%b,"first_offset":%b,"end_offset":%b,"results":[%b]}' % (
        _encode(topic.declared),
        _encode(firsts),
        _encode(ends),
        each,
    )
    return Response(200, body, headers=headers)


def _key_used(key: str) -> HttpError:
    return HttpError(
        422,
        f"Idempotency-Key {key!r} was used with another body in the last 24 hours: repeat that "
        "body, or use a new key",
    )


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
