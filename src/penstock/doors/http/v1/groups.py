"""`/v1/topics/{topic}/groups/{group}`: readers that share a position, with leases.

A fetch is answered with a receipt; whoever has it says which of its records are done, or gives them
back. What is not answered in time goes to another reader.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from penstock.broker.queue.handout import Given
from penstock.broker.queue.leases import DELAY_S_MAX, OPEN_MAX
from penstock.broker.topics import Topic
from penstock.core.access import Gate
from penstock.core.position import parse_position
from penstock.doors.http.endpoints import Endpoints
from penstock.doors.http.messages import (
    JSON,
    Answer,
    HttpError,
    Request,
    Response,
    json_response,
)
from penstock.doors.http.needs import Needs
from penstock.doors.http.pieces import LongRecord, page_pieces
from penstock.doors.http.router import Route
from penstock.doors.http.schemas import OFFSET, shown_as
from penstock.doors.http.v1.describing import Facts
from penstock.doors.http.v1.page import records_size
from penstock.doors.http.v1.reading import WAIT_S_MAX, long_or_short, read_body, record_out
from penstock.doors.http.v1.types import Position, RecordOut
from penstock.model.errors import PenstockError, RefusedError
from penstock.model.groups import GroupInfo

GROUPS = "/v1/topics/{topic}/groups"
GROUP = GROUPS + "/{group}"

_encode: Final = msgspec.json.Encoder().encode


class GroupFetch(Struct, omit_defaults=True, forbid_unknown_fields=True, rename={"start": "from"}):
    """What a reader wants next; `from` is where a group begins that this fetch makes."""

    limit: Annotated[int, Meta(ge=1, le=OPEN_MAX)] = 100
    wait: Annotated[
        float, Meta(ge=0, le=WAIT_S_MAX, description="seconds to wait for a record")
    ] = 0.0
    start: Position = "earliest"


class GivenOut(RecordOut, omit_defaults=True, gc=False, kw_only=True):
    """A record, and how often it was given out by now."""

    deliveries: int


class GroupRecords(Struct):
    """Records that the receipt holds until `lease_s` have passed."""

    topic: str
    receipt: str
    lease_s: float
    next_offset: int
    records: list[GivenOut]


_OFFSETS: dict[str, Any] = {
    "anyOf": [{"type": "array", "items": OFFSET, "minItems": 1}, {"type": "null"}]
}


class Ack(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """These offsets are done; without any, all that the receipt holds."""

    receipt: str
    offsets: Annotated[list[Annotated[int, Meta(ge=0)]] | None, shown_as(_OFFSETS)] = None


class Nack(Ack, omit_defaults=True, forbid_unknown_fields=True):
    """Give offsets back, for others at once or after `delay` seconds."""

    delay: Annotated[float, Meta(ge=0, le=DELAY_S_MAX)] = 0.0
    reason: str = ""


class Answered(Struct):
    """How many records it was about."""

    records: int


class GroupList(Struct):
    groups: list[GroupInfo]


def add_routes(door: Endpoints) -> None:
    groups = GroupsDoor(door)
    for method, path, handler, facts in (
        ("GET", GROUPS, groups.list, Facts("list the groups of a topic", GroupList)),
        ("GET", GROUP, groups.show, Facts("show a group and its open records", GroupInfo)),
        (
            "DELETE",
            GROUP,
            groups.delete,
            Facts("remove a group and its position", statuses=(204,)),
        ),
        (
            "POST",
            GROUP + "/fetch",
            groups.fetch,
            Facts(
                "lease records to one reader; the receipt identifies the lease",
                GroupRecords,
                takes=GroupFetch,
                errors=(409,),
            ),
        ),
        (
            "POST",
            GROUP + "/ack",
            groups.ack,
            Facts("acknowledge records, durably", Answered, takes=Ack, errors=(409,)),
        ),
        (
            "POST",
            GROUP + "/nack",
            groups.nack,
            Facts("reject records, for another reader", Answered, takes=Nack, errors=(409,)),
        ),
    ):
        is_patient = handler == groups.fetch
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


class GroupsDoor:
    def __init__(self, door: Endpoints) -> None:
        self._door = door
        self._engine = door.engine

    def list(self, request: Request) -> Response:
        return json_response(GroupList(self._engine.groups.of(self._topic(request))))

    def show(self, request: Request) -> Response:
        topic, group = self._topic(request), request.params["group"]
        return json_response(self._engine.groups.describe(topic, group))

    async def delete(self, request: Request) -> Response:
        await self._engine.groups.delete(self._topic(request), request.params["group"])
        return Response(204)

    async def fetch(self, request: Request) -> Answer:
        topic = self._topic(request)
        asked = read_body(request, GroupFetch)
        clock = self._engine.clock
        start = parse_position(asked.start, clock.now_us())
        until_s = clock.monotonic_s() + asked.wait
        groups, room = self._engine.groups, self._door.room
        name = request.params["group"]
        gate = Gate(request.principal, topic.key)
        while True:
            (receipt, given), place = await room.read(
                partial(groups.fetch, topic, name, asked.limit, 0.0, start, gate=gate),
                _given_size,
                partial(groups.expected_bytes, topic, name, asked.limit),
            )
            left_s = until_s - clock.monotonic_s()
            if given or left_s <= 0 or self._door.is_stopping:
                break
            await self._door.wait(groups.wait(topic, name, left_s), left_s)
        next_offset = groups.get(topic, name).group.next_offset
        body = GroupRecords(topic.declared, receipt, groups.lease_s, next_offset, [])
        if place is None:
            body.records = [_given_out(one) for one in given]
            return json_response(body)
        head = _encode(body).removesuffix(b"]}")
        return room.stream(place, page_pieces(head, map(_long_or_short, given)), JSON)

    async def ack(self, request: Request) -> Response:
        topic = self._topic(request)
        asked = read_body(request, Ack)
        work = self._engine.groups.ack(topic, request.params["group"], asked.receipt, asked.offsets)
        try:
            return json_response(Answered(await work))
        except RefusedError as refused:
            raise _conflict(refused) from None

    async def nack(self, request: Request) -> Response:
        topic = self._topic(request)
        asked = read_body(request, Nack)
        work = self._engine.groups.nack(
            topic,
            request.params["group"],
            asked.receipt,
            asked.offsets,
            asked.delay,
            asked.reason,
        )
        try:
            return json_response(Answered(await work))
        except RefusedError as refused:
            raise _conflict(refused) from None

    def _topic(self, request: Request) -> Topic:
        return self._engine.topics.get(request.params["topic"])


def _conflict(refused: RefusedError) -> PenstockError:
    """A receipt that holds nothing is answered with 409 Conflict."""
    return HttpError(409, str(refused)) if type(refused) is RefusedError else refused


def _given_size(fetched: tuple[str, list[Given]]) -> int:
    return records_size([one.record for one in fetched[1]])


def _given_out(given: Given) -> GivenOut:
    return _with_deliveries(record_out(given.record), given.deliveries)


def _long_or_short(given: Given) -> RecordOut | LongRecord:
    plain = long_or_short(given.record)
    if isinstance(plain, LongRecord):
        plain.out = _with_deliveries(plain.out, given.deliveries)
        return plain
    return _with_deliveries(plain, given.deliveries)


def _with_deliveries(plain: RecordOut, deliveries: int) -> GivenOut:
    fields = {name: getattr(plain, name) for name in plain.__struct_fields__}
    return GivenOut(**fields, deliveries=deliveries)
