"""`/v1/topics/{topic}/consumers`: durable positions, read in batches."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from penstock.broker.queue.consumers import Consumer
from penstock.broker.reading import SCAN_BYTES_MAX, Found, Selection
from penstock.broker.topics import Topic
from penstock.core.access import Gate
from penstock.core.names import quoted
from penstock.core.position import parse_position
from penstock.core.where import compile_where
from penstock.doors.http.endpoints import Endpoints
from penstock.doors.http.messages import JSON, Answer, Request, Response, json_response
from penstock.doors.http.needs import Needs, check_owner
from penstock.doors.http.router import Route
from penstock.doors.http.v1.describing import Facts
from penstock.doors.http.v1.page import Page, read_form, records_size
from penstock.doors.http.v1.reading import READ_BYTES_MAX, read_body
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
            Facts("fetch the next records of a consumer", Records, takes=Fetch, errors=(410,)),
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
        door.router.add(
            Route(
                method,
                path,
                handler,
                ends_with_client=is_patient,
                facts=facts,
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
        return json_response(_out(*self._find(request)))

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
        return json_response(_out(*self._find(request)), status)

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
        first_offset = max(consumer.start(asked.key, offset), topic.log.bounds().first)

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
            start = consumer.start(asked.key, offset)
            selection = Selection(asked.limit, READ_BYTES_MAX, where, gate=gate)
            return (await read_form(topic, start, selection, JSON)).size

        while True:
            records, place = await self._door.room.read(
                consume, records_size, measure, is_scan=where is not None
            )
            next_offset, end = consumer.next_offset, topic.log.bounds().end
            left_s = deadline_s - engine.clock.monotonic_s()
            if records or left_s <= 0 or next_offset < end or self._door.is_stopping:
                break
            await self._door.wait(topic.log.wait_past(next_offset), left_s)
            offset = next_offset
        page = Page(Found(records, first_offset, next_offset, end), len(records))
        return page.answer(topic, first_offset, self._door.room, place)

    async def commit(self, request: Request) -> Response:
        asked = read_body(request, Commit)
        topic, consumer = self._find_own(request)
        await self._engine.consumers.commit(topic, consumer.name, asked.offset)
        return json_response(Committed(consumer.confirmed))

    async def seek(self, request: Request) -> Response:
        engine = self._engine
        position = parse_position(read_body(request, Seek).start, engine.clock.now_us())
        topic, consumer = self._find_own(request)
        return json_response(Committed(await engine.consumers.seek(topic, consumer.name, position)))


def _out(topic: Topic, consumer: Consumer) -> ConsumerOut:
    first, end = topic.log.bounds()
    waiting = end - max(consumer.next_offset, first)
    return ConsumerOut(consumer.name, consumer.next_offset, waiting)
