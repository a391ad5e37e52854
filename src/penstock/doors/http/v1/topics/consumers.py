"""`/v1/topics/{topic}/consumers`: durable positions, read in batches."""

from __future__ import annotations

import operator
from dataclasses import asdict
from typing import Final

from penstock.broker.queue.consumers import Consumer
from penstock.broker.topic.parts import shown_offsets, wait_past_any
from penstock.broker.topic.reading import SCAN_BYTES_MAX, Found, Selection
from penstock.broker.topic.topics import Topic
from penstock.core.access import Gate
from penstock.core.naming.names import quoted
from penstock.core.position import parse_position
from penstock.core.where import compile_where
from penstock.doors.http.routing.endpoints import Endpoints
from penstock.doors.http.routing.needs import Needs, check_owner
from penstock.doors.http.routing.router import Route
from penstock.doors.http.v1.describing import Facts
from penstock.doors.http.v1.reading import READ_BYTES_MAX, read_body
from penstock.doors.http.v1.topics.page import Page, Shown, read_form, read_parts, records_size
from penstock.doors.http.v1.types import (
    Commit,
    Committed,
    ConsumerList,
    ConsumerOut,
    Fetch,
    Records,
    Seek,
    Subscribe,
)
from penstock.doors.http.wire.messages import JSON, Answer, Request, Response, json_response
from penstock.model.errors import AlreadySubscribed
from penstock.model.record import Record

CONSUMERS: Final = "/v1/topics/{topic}/consumers"
CONSUMER: Final = CONSUMERS + "/{consumer}"


def add_routes(door: Endpoints) -> None:
    consumers = ConsumersDoor(door)
    for method, path, handler, facts in (
        ("GET", CONSUMERS, consumers.list, Facts("list the consumers of a topic", ConsumerList)),
        ("GET", CONSUMER, consumers.show, Facts("show the position of a consumer", ConsumerOut)),
        (
            "PUT",
            CONSUMER,
            consumers.subscribe,
            Facts(
                "create a consumer at a position; an existing consumer keeps its position",
                ConsumerOut,
                takes=Subscribe,
                statuses=(200, 201),
                errors=(409,),
            ),
        ),
        (
            "DELETE",
            CONSUMER,
            consumers.unsubscribe,
            Facts("remove a consumer", statuses=(204,)),
        ),
        (
            "POST",
            CONSUMER + "/fetch",
            consumers.fetch,
            Facts("fetch the next records of a consumer", Records, takes=Fetch, errors=(409, 410)),
        ),
        (
            "POST",
            CONSUMER + "/commit",
            consumers.commit,
            Facts("commit: mark records as handled", Committed, takes=Commit, errors=(409,)),
        ),
        (
            "POST",
            CONSUMER + "/seek",
            consumers.seek,
            Facts("move a consumer to a position", Committed, takes=Seek, errors=(409,)),
        ),
    ):
        is_patient = handler == consumers.fetch
        administers = handler in (consumers.unsubscribe, consumers.seek)
        door.router.add(
            Route(
                method,
                path,
                handler,
                ends_with_client=is_patient,
                facts=facts,
                administers=administers,
                needs=Needs.READ_TOPIC,
            )
        )


class ConsumersDoor:
    def __init__(self, door: Endpoints) -> None:
        self._door = door
        self._engine = door.engine

    def _find(self, request: Request) -> tuple[Topic, Consumer]:
        topic = self._engine.topics.get(request.params["topic"])
        return topic, self._engine.consumers.get(topic, request.params["consumer"])

    def _find_own(self, request: Request) -> tuple[Topic, Consumer]:
        topic, consumer = self._find(request)
        check_owner(request.principal, consumer.owner, f"consumer {quoted(consumer.name)}")
        return topic, consumer

    def list(self, request: Request) -> Response:
        topic = self._engine.topics.get(request.params["topic"])
        found = self._engine.consumers.describe(topic)
        return json_response(ConsumerList([ConsumerOut(**asdict(one)) for one in found]))

    def show(self, request: Request) -> Response:
        return json_response(self._out(*self._find(request)))

    def _out(self, topic: Topic, consumer: Consumer) -> ConsumerOut:
        told = self._engine.consumers.describe_one(topic, consumer.name)
        return ConsumerOut(told.consumer, told.next_offset, told.waiting)

    async def subscribe(self, request: Request) -> Response:
        """With `If-None-Match: *` a consumer that is there is refused."""
        engine = self._engine
        topic = engine.topics.get(request.params["topic"])
        start = read_body(request, Subscribe).start
        position = parse_position(start, engine.clock.now_us())
        status = 201
        try:
            owner = request.principal.owner
            await engine.consumers.subscribe(topic, request.params["consumer"], position, owner)
        except AlreadySubscribed:
            if request.header(b"if-none-match") == "*":
                raise
            status = 200
        return json_response(self._out(*self._find(request)), status)

    async def unsubscribe(self, request: Request) -> Response:
        topic, consumer = self._find_own(request)
        await self._engine.consumers.unsubscribe(topic, consumer.name)
        return Response(204)

    async def fetch(self, request: Request) -> Answer:
        engine = self._engine
        asked = read_body(request, Fetch)
        topic, consumer = self._find_own(request)
        where = None if asked.where is None else compile_where(asked.where)
        deadline_s = engine.clock.monotonic_s() + asked.wait
        offset = asked.offset
        gate = Gate(request.principal, topic.key)
        starts = engine.consumers.starts(topic, consumer.name, asked.key, offset)
        firsts = [
            max(at, part.log.bounds().first) for part, at in zip(topic.parts, starts, strict=True)
        ]

        async def consume() -> list[Record]:
            return await engine.consumers.consume(
                topic,
                consumer.name,
                asked.limit,
                where,
                commit=asked.commit,
                on_gap=asked.on_gap,
                bytes_max=READ_BYTES_MAX,
                scan_bytes_max=SCAN_BYTES_MAX,
                key=asked.key,
                offset=offset,
                gate=gate,
            )

        async def measure() -> int:
            starts = engine.consumers.starts(topic, consumer.name, asked.key, offset)
            selection = Selection(asked.limit, READ_BYTES_MAX, where, gate=gate)
            if len(starts) == 1:
                return (await read_form(topic, starts[0], selection, JSON)).size
            nowhere: list[int | None] = [None] * len(starts)
            return (await read_parts(topic, starts, selection, nowhere, JSON)).page.size

        while True:
            records, place = await self._door.room.read(
                consume, records_size, measure, is_scan=where is not None
            )
            nexts = engine.consumers.next_offsets(topic, consumer.name)
            ends = [part.log.bounds().end for part in topic.parts]
            left_s = deadline_s - engine.clock.monotonic_s()
            is_behind = any(map(operator.lt, nexts, ends))
            if records or left_s <= 0 or is_behind or self._door.is_leaving(topic):
                break
            await self._door.wait_leaving(topic, wait_past_any(topic.parts, nexts), left_s)
            offset = shown_offsets(nexts)
        if engine.watch is not None:
            engine.watch.read(f"consumer {consumer.name}", topic.declared, records)
        page = Page(Found(records, firsts[0], nexts[0], ends[0]), len(records))
        shown = Shown(shown_offsets(firsts), shown_offsets(nexts), shown_offsets(ends))
        return page.answer(topic, shown, self._door.room, place)

    async def commit(self, request: Request) -> Response:
        asked = read_body(request, Commit)
        topic, consumer = self._find_own(request)
        await self._engine.consumers.commit(topic, consumer.name, asked.offset)
        parts = self._engine.consumers.parts(topic, consumer.name)
        return json_response(Committed(shown_offsets([one.confirmed for _, one in parts])))

    async def seek(self, request: Request) -> Response:
        engine = self._engine
        position = parse_position(read_body(request, Seek).start, engine.clock.now_us())
        topic, consumer = self._find_own(request)
        return json_response(Committed(await engine.consumers.seek(topic, consumer.name, position)))
