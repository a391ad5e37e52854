"""`/v1/staged`: how Spark writes into topics, exactly once (docs/PIPELINES.md).

Tasks stage files of batches; their driver hands over which of them count, under a number that is
taken once. Both may be sent again when an answer was lost.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from penstock.broker.exchange import Exchange
from penstock.broker.publish.staged import (
    NAME_FORM,
    PART_FORM,
    SOURCE_CHARS_MAX,
    Staged,
    StagedFile,
)
from penstock.doors.http.routing.endpoints import Endpoints
from penstock.doors.http.routing.needs import Needs
from penstock.doors.http.routing.router import Route
from penstock.doors.http.routing.schemas import LABEL, OFFSET, Schema, shown_as, text
from penstock.doors.http.v1.describing import Facts, Field
from penstock.doors.http.v1.reading import check_query, read_body, read_offset
from penstock.doors.http.wire.messages import HttpError, Request, Response, json_response
from penstock.model.errors import NotAuthorized, RefusedError, TopicNotFound, UnavailableError

STAGED: Final = "/v1/staged"
FILES_MAX: Final = 100_000  # of one hand-over

SOURCE: Final = LABEL | {"maxLength": SOURCE_CHARS_MAX}
PART: Final = text(f"^{PART_FORM}$")
_FILE: Final[Schema] = {
    "type": "object",
    "properties": {
        "name": text(f"^{NAME_FORM}$"),
        "part": PART,
        "topic_id": {"type": "integer"},
        "batches": {"type": "integer"},
        "records": {"type": "integer"},
    },
    "required": ["name", "part", "topic_id", "batches", "records"],
}
_FILES: Final[Schema] = {"type": "array", "items": _FILE, "maxItems": FILES_MAX}
Source = Annotated[str, shown_as(SOURCE)]
Files = Annotated[list[StagedFile], Meta(max_length=FILES_MAX), shown_as(_FILES)]


class HandOver(Struct, forbid_unknown_fields=True):
    """What a source hands over under one number; with `is_only` it will have no other."""

    source: Source
    number: Annotated[int, Meta(ge=0, lt=1 << 62)]
    files: Files
    is_only: bool = False


class HandedOver(Struct):
    is_new: bool  # false: that number had been handed over before, and nothing was stored now


class Discard(Struct, forbid_unknown_fields=True):
    source: Source
    files: Files


def add_routes(door: Endpoints, exchange: Exchange) -> None:
    staging = StagingDoor(door, Staged(exchange.engine, exchange.authorise))
    for path, handler, facts in (
        (
            STAGED,
            staging.stage,
            Facts(
                "store a file of batches (docs/FORMATS.md §12) until it is handed over",
                StagedFile,
                also_takes=("application/octet-stream",),
                query=(
                    Field("source", "source that will hand it over", SOURCE, is_required=True),
                    Field("number", "number of the handover", OFFSET, is_required=True),
                    Field("part", "part of the handover, such as 0-7-1", PART, is_required=True),
                    Field("topic_id", "topic of its records", OFFSET, is_required=True),
                ),
                statuses=(201,),
            ),
        ),
        (
            f"{STAGED}/handover",
            staging.hand_over,
            Facts(
                "store the staged files exactly once; they are durable when the response is sent",
                HandedOver,
                takes=HandOver,
                errors=(409,),
            ),
        ),
        (
            f"{STAGED}/discard",
            staging.discard,
            Facts("delete staged files", takes=Discard, statuses=(204,), errors=(409,)),
        ),
    ):
        door.router.add(Route("POST", path, handler, facts=facts, needs=Needs.JUDGED))


class StagingDoor:
    def __init__(self, door: Endpoints, staged: Staged) -> None:
        self._topics = door.engine.topics
        self._staged = staged

    async def stage(self, request: Request) -> Response:
        query = check_query(request, "source", "number", "part", "topic_id")
        for field in ("source", "number", "part", "topic_id"):
            if field not in query:
                raise HttpError(400, f"query field {field!r} is missing")
        number, topic_id = read_offset(query, "number"), read_offset(query, "topic_id")
        assert number is not None and topic_id is not None, "they are given"
        topic = self._topics.by_id(topic_id)
        if topic is None:
            raise TopicNotFound(f"no topic has the id {topic_id}: it was deleted")
        if topic.refusal:
            raise UnavailableError(topic.refusal)
        file = await self._staged.stage(
            request.principal,
            query["source"],
            number,
            part=query["part"],
            topic=topic,
            data=request.body,
        )
        return json_response(file, 201)

    async def hand_over(self, request: Request) -> Response:
        asked = read_body(request, HandOver)
        try:
            is_new = await self._staged.hand_over(
                request.principal, asked.source, asked.number, asked.files, is_only=asked.is_only
            )
        except NotAuthorized:
            raise
        except RefusedError as refused:  # the files are not what was staged
            raise HttpError(409, str(refused), error=type(refused).__name__) from None
        return json_response(HandedOver(is_new))

    async def discard(self, request: Request) -> Response:
        asked = read_body(request, Discard)
        await self._staged.discard(request.principal, asked.source, asked.files)
        return Response(204)
