"""`/v1/topics`: declare, list, look at, alter and delete topics."""

from __future__ import annotations

from penstock.broker.engine import Engine
from penstock.broker.settings import altered, topic_settings
from penstock.broker.topic.parts import resolve
from penstock.core.naming.placement import DEFAULT_TOPIC
from penstock.core.position import parse_position, time_before
from penstock.core.topic_settings import PARTITIONS_MAX
from penstock.doors.http.auditing import note_act
from penstock.doors.http.routing.endpoints import Endpoints
from penstock.doors.http.routing.errors import with_status
from penstock.doors.http.routing.needs import Needs, check_read, may_manage, may_see
from penstock.doors.http.routing.router import Route, RouteRow
from penstock.doors.http.routing.schemas import OFFSET, POSITION, number
from penstock.doors.http.v1.describing import Facts, Field
from penstock.doors.http.v1.reading import (
    check_query,
    read_body,
    read_offset,
    read_partition,
    read_settings,
)
from penstock.doors.http.v1.types import Erase, Place, TopicList, TopicSettings
from penstock.doors.http.wire.messages import HttpError, Request, Response, json_response
from penstock.model.errors import RefusedError, TopicExists
from penstock.model.record import Erased, TopicInfo

TOPIC = "/v1/topics/{topic}"


def add_routes(door: Endpoints) -> None:
    topics = TopicsDoor(door.engine)
    for method, path, handler, facts in (*_showing_rows(topics), *_changing_rows(topics)):
        needs = Needs.MANAGE_TOPIC
        if handler in (topics.list, topics.show):
            needs = Needs.JUDGED
        elif handler == topics.place:
            needs = Needs.READ_TOPIC
        creates = handler == topics.declare
        door.router.add(
            Route(
                method,
                path,
                handler,
                facts=facts,
                creates_topic=creates,
                administers=handler == topics.erase,
                needs=needs,
            )
        )


def _showing_rows(topics: TopicsDoor) -> list[RouteRow]:
    return [
        ("GET", "/v1/topics", topics.list, Facts("list all topics", TopicList)),
        ("GET", TOPIC, topics.show, Facts("show a topic", TopicInfo)),
        (
            "GET",
            f"{TOPIC}/position",
            topics.place,
            Facts(
                "convert a position, or an offset of an earlier epoch, to an offset",
                Place,
                query=(
                    Field("from", "a position (earliest)", POSITION),
                    Field("offset", "instead of from: an offset seen earlier", OFFSET),
                    Field(
                        "epoch",
                        "epoch of that offset; it moves back if records were lost since",
                        OFFSET,
                    ),
                    Field("partition", "one of several partitions", number(0, PARTITIONS_MAX)),
                ),
                errors=(409,),
            ),
        ),
    ]


def _changing_rows(topics: TopicsDoor) -> list[RouteRow]:
    return [
        (
            "PUT",
            TOPIC,
            topics.declare,
            Facts(
                "create a topic; 200 if it exists with these settings",
                TopicInfo,
                takes=TopicSettings,
                statuses=(200, 201),
                errors=(409,),
            ),
        ),
        (
            "PATCH",
            TOPIC,
            topics.alter,
            Facts("change the settings of a topic", TopicInfo, takes=TopicSettings, errors=(409,)),
        ),
        (
            "POST",
            f"{TOPIC}/erase",
            topics.erase,
            Facts(
                "erase the payloads of records for good; their offsets stay",
                Erased,
                takes=Erase,
                errors=(409,),
            ),
        ),
        (
            "DELETE",
            TOPIC,
            topics.delete,
            Facts("delete a topic with its records and consumers", statuses=(204,), errors=(409,)),
        ),
    ]


class TopicsDoor:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def list(self, request: Request) -> Response:
        topics = await self._engine.describe_all()
        shown = [one for one in topics if may_see(request.principal, one.topic)]
        return json_response(TopicList(shown))

    async def show(self, request: Request) -> Response:
        if not may_manage(request.principal, request.params["topic"]):
            check_read(request.principal, request.params["topic"])
        topic = self._engine.topics.find(request.params["topic"])
        return json_response(await topic.describe())

    async def place(self, request: Request) -> Response:
        query = check_query(request, "from", "epoch", "offset", "partition")
        whole = self._engine.topics.find(request.params["topic"])
        topic = read_partition(query, whole) or whole
        if len(whole.parts) > 1 and "partition" not in query:
            raise HttpError(
                400,
                f"topic {whole.declared!r} has {len(whole.parts)} partitions: say which one with "
                "partition=N",
            )
        epoch, offset = read_offset(query, "epoch"), read_offset(query, "offset")
        if offset is not None:
            found = await topic.log.clamp(topic.log.epoch if epoch is None else epoch, offset)
        else:
            position = parse_position(query.get("from", "earliest"), self._engine.clock.now_us())
            found = await resolve(topic, position)
        first, end = topic.log.bounds()
        return json_response(Place(topic.declared, topic.log.epoch, found, first, end))

    async def declare(self, request: Request) -> Response:
        """With `If-None-Match: *` a topic that is there is refused."""
        engine = self._engine
        name = request.params["topic"]
        given = read_settings(request)
        settings = topic_settings(engine.settings, given)
        try:
            owner = request.principal.owner
            topic = await engine.topics.create(name, settings, exist_ok=False, owner=owner)
        except TopicExists:
            if request.header(b"if-none-match") == "*":
                raise
            topic = engine.topics.get(name)
            if altered(topic.log.settings, given) != topic.log.settings:
                raise TopicExists(
                    f"topic {topic.declared!r} exists with other settings: PATCH changes them"
                ) from None
            return json_response(await topic.describe())
        except RefusedError as refused:  # another broker could do it, this one cannot
            raise with_status(refused, 409) from None
        return json_response(
            await topic.describe(), 201, (("Location", f"/v1/topics/{request.path[11:]}"),)
        )

    async def alter(self, request: Request) -> Response:
        topics = self._engine.topics
        given = read_settings(request)
        topic = topics.get(request.params["topic"])
        try:
            topic = await topics.alter(topic.declared, altered(topic.log.settings, given))
        except RefusedError as refused:
            raise with_status(refused, 409) from None
        return json_response(await topic.describe())

    async def erase(self, request: Request) -> Response:
        engine = self._engine
        asked = read_body(request, Erase)
        before_us = time_before(asked.before, engine.clock.now_us())
        topic = request.params["topic"]
        try:
            erased = await engine.erasing.erase(
                topic, asked.names, before_us, dry_run=asked.dry_run
            )
        except RefusedError as refused:
            if type(refused) is not RefusedError:
                raise
            raise with_status(refused, 409) from None
        if not asked.dry_run:
            act = f"erase {asked.names} before {asked.before or 'now'} in {erased.topic}"
            found = (
                f"{erased.log_records} records in the log, {erased.history_records} in the "
                f"history, {erased.retained} retained"
            )
            await note_act(engine.audit, request, 200, found, act)
        return json_response(erased)

    async def delete(self, request: Request) -> Response:
        topic = self._engine.topics.find(request.params["topic"])
        if topic.key == DEFAULT_TOPIC:
            raise HttpError(
                409,
                f"topic {DEFAULT_TOPIC!r} stores all names that have no topic of their own and "
                "cannot "
                "be deleted while the broker has an MQTT listener",
            )
        try:
            await self._engine.delete_topic(topic.declared)
        except RefusedError as refused:
            if type(refused) is not RefusedError:
                raise
            raise HttpError(409, str(refused), error=RefusedError.__name__) from None  # bound
        return Response(204)
