"""`/v1/retained`: the newest retained message of each name."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Final

from msgspec import Struct

from penstock.broker.deliver.retained import Retained
from penstock.core.access import READ, authorise
from penstock.core.naming.names import check_filter
from penstock.doors.http.routing.endpoints import Endpoints
from penstock.doors.http.routing.needs import Needs
from penstock.doors.http.routing.router import Route
from penstock.doors.http.routing.schemas import FILTER, number
from penstock.doors.http.v1.describing import Facts, Field
from penstock.doors.http.v1.reading import LIMIT_MAX, check_query, read_limit
from penstock.doors.http.wire.messages import Request, Response, json_response

RETAINED: Final = "/v1/retained"
LOOKED_AT_MAX: Final = 20_000  # names of one request, whether the reader may read them or not
SLICE: Final = 500  # of them, before others get their turn


class RetainedOut(Struct):
    """Where a retained message lies; the record there has its payload while retention keeps it."""

    name: str
    topic: str
    offset: int
    timestamp: int  # µs since 1970, UTC
    publisher: str
    payload_bytes: int
    expires_at: int  # 0: never


class RetainedList(Struct):
    """`has_more`: not all that match are shown; a narrower filter shows the others."""

    retained: list[RetainedOut]
    has_more: bool


def add_routes(door: Endpoints, retained: Retained) -> None:
    listing = RetainedDoor(door, retained)
    facts = Facts(
        "list retained messages without their payloads",
        RetainedList,
        query=(
            Field("names", "a filter over names, with + and # (#)", FILTER),
            Field("limit", "maximum number of messages (1,000)", number(1, LIMIT_MAX)),
        ),
    )
    door.router.add(Route("GET", RETAINED, listing.show, facts=facts, needs=Needs.JUDGED))


class RetainedDoor:
    """Shows each reader the names that it may read."""

    def __init__(self, door: Endpoints, retained: Retained) -> None:
        self._topics = door.engine.topics
        self._retained = retained

    async def show(self, request: Request) -> Response:
        query = check_query(request, "names", "limit")
        limit = read_limit(query)
        names = self._retained.matching(check_filter(query.get("names", "#")))
        found: list[RetainedOut] = []
        has_more = False
        for at, name in enumerate(islice(names, LOOKED_AT_MAX + 1)):
            if at == LOOKED_AT_MAX or len(found) > limit:
                has_more = True
                break
            if at % SLICE == SLICE - 1:
                await asyncio.sleep(0)
            head = self._retained.get(name)
            topic = None if head is None else self._topics.by_id(head.topic_id)
            if head is None or topic is None:
                continue
            if authorise(request.principal, READ, name, topic.key):
                found.append(
                    RetainedOut(
                        name=name,
                        topic=topic.declared,
                        offset=head.offset,
                        timestamp=head.timestamp,
                        publisher=head.publisher,
                        payload_bytes=head.payload_bytes,
                        expires_at=head.expires_at,
                    )
                )
        found.sort(key=lambda one: one.name)
        return json_response(RetainedList(found[:limit], has_more))
