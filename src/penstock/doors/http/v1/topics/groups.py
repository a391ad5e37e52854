"""`/v1/topics/{topic}/groups/{group}`: readers that share a position, with leases.

A fetch is answered with a receipt; whoever has it says which of its records are done, or gives them
back. What is not answered in time goes to another reader, and what nobody can handle becomes a dead
letter, which a redrive puts back.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from penstock.broker.queue.handout import Given
from penstock.broker.queue.kept_group import OPEN_MAX
from penstock.broker.queue.leases import DELAY_S_MAX
from penstock.broker.queue.redrives import REDRIVE_MAX
from penstock.broker.topic.parts import shown_offsets
from penstock.broker.topic.topics import Topic
from penstock.core.access import Gate
from penstock.core.naming.names import quoted
from penstock.core.position import OFFSET_END, parse_position
from penstock.core.where import compile_where
from penstock.doors.http.routing.endpoints import Endpoints
from penstock.doors.http.routing.needs import Needs, check_owner
from penstock.doors.http.routing.router import Route, RouteRow
from penstock.doors.http.routing.schemas import (
    OFFSET,
    OFFSETS,
    OFFSETS_BY_PARTITION,
    WHERE,
    shown_as,
)
from penstock.doors.http.v1.describing import Facts
from penstock.doors.http.v1.reading import WAIT_S_MAX, long_or_short, read_body, record_out
from penstock.doors.http.v1.topics.page import records_size
from penstock.doors.http.v1.types import Position, RecordOut
from penstock.doors.http.wire.messages import (
    JSON,
    Answer,
    HttpError,
    Request,
    Response,
    json_response,
)
from penstock.doors.http.wire.pieces import LongRecord, page_pieces
from penstock.model.errors import PenstockError, RefusedError
from penstock.model.groups import (
    DELIVERIES_MAX,
    LEASE_S_MAX,
    LEASE_S_MIN,
    GroupInfo,
    Redriven,
)
from penstock.model.record import Offsets

GROUPS = "/v1/topics/{topic}/groups"
GROUP = GROUPS + "/{group}"

_encode: Final = msgspec.json.Encoder().encode


LeaseS = Annotated[
    float, Meta(ge=LEASE_S_MIN, le=LEASE_S_MAX, description="length of a lease in seconds")
]
DeliveriesMax = Annotated[
    int,
    Meta(
        ge=0,
        le=DELIVERIES_MAX,
        description="deliveries of a record before it becomes a dead letter; 0: no limit",
    ),
]


class GroupSettings(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Settings of a group; those not named stay as they are."""

    lease_s: LeaseS | None = None
    deliveries_max: DeliveriesMax | None = None


class NewGroup(
    GroupSettings, omit_defaults=True, forbid_unknown_fields=True, rename={"start": "from"}
):
    """Where a new group begins, and its settings."""

    start: Position = "earliest"


class GroupFetch(Struct, omit_defaults=True, forbid_unknown_fields=True, rename={"start": "from"}):
    """What a reader wants next; `from` is where a group begins that this fetch makes."""

    limit: Annotated[int, Meta(ge=1, le=OPEN_MAX)] = 100
    wait: Annotated[
        float, Meta(ge=0, le=WAIT_S_MAX, description="seconds to wait for a record")
    ] = 0.0
    start: Position = "earliest"
    lease_s: LeaseS | None = None
    deliveries_max: DeliveriesMax | None = None


class GivenOut(RecordOut, omit_defaults=True, gc=False, kw_only=True):
    """A record, and how often it was given out by now."""

    deliveries: int


class GroupRecords(Struct):
    """Records that the receipt holds until `lease_s` have passed."""

    topic: str
    receipt: str
    lease_s: float
    next_offset: Offsets
    records: list[GivenOut]


_LIST: dict[str, Any] = {"type": "array", "items": OFFSET, "minItems": 1}
_PLACES: dict[str, Any] = {
    "anyOf": [_LIST, OFFSETS_BY_PARTITION | {"additionalProperties": _LIST}, {"type": "null"}],
    "description": "offsets; by partition where the topic has several, as in "
    '{"0": [23, 24], "1": [7]}',
}
_Offset = Annotated[int, Meta(ge=0, le=OFFSET_END - 1)]
_Offsets = list[_Offset]


class Ack(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """These offsets are done; without any, all that the receipt holds."""

    receipt: str
    offsets: Annotated[_Offsets | dict[str, _Offsets] | None, shown_as(_PLACES)] = None


class Nack(Ack, omit_defaults=True, forbid_unknown_fields=True):
    """Give offsets back, for others at once or after `delay` seconds."""

    delay: Annotated[float, Meta(ge=0, le=DELAY_S_MAX)] = 0.0
    reason: str = ""


class Extend(Ack, omit_defaults=True, forbid_unknown_fields=True):
    """Keep offsets for `lease_s` from now; without it, for the lease of the group."""

    lease_s: LeaseS | None = None


class Answered(Struct):
    """How many records it was about."""

    records: int


class Extended(Struct):
    """How many records it was about, and for how long they are leased from now."""

    records: int
    lease_s: float


class Redrive(Struct, omit_defaults=True, forbid_unknown_fields=True, rename={"start": "from"}):
    """Which dead letters of the group go back; `from` is an offset of the dead-letter topic.

    Where that has several partitions, `from` is an offset for each, or 0 for all of them.
    """

    limit: Annotated[int, Meta(ge=1, le=REDRIVE_MAX)] = 1_000
    where: Annotated[str, shown_as(WHERE)] | None = None
    dry_run: bool = False
    start: Annotated[_Offset | dict[str, _Offset], shown_as(OFFSETS)] = 0


class GroupList(Struct):
    groups: list[GroupInfo]


def add_routes(door: Endpoints) -> None:
    groups = GroupsDoor(door)
    settings = _settings_rows(groups)
    for row in (*settings, *_record_rows(groups)):
        method, path, handler, facts = row
        is_patient, is_redrive = handler == groups.fetch, handler == groups.redrive
        door.router.add(
            Route(
                method,
                path,
                handler,
                ends_with_client=is_patient,
                facts=facts,
                administers=is_redrive or row in settings,
                needs=Needs.MANAGE_TOPIC if is_redrive else Needs.READ_TOPIC,
            )
        )


def _settings_rows(groups: GroupsDoor) -> list[RouteRow]:
    return [
        ("GET", GROUPS, groups.list, Facts("list the groups of a topic", GroupList)),
        ("GET", GROUP, groups.show, Facts("show a group and its open records", GroupInfo)),
        (
            "PUT",
            GROUP,
            groups.create,
            Facts(
                "create a group, or change its settings",
                GroupInfo,
                takes=NewGroup,
                statuses=(200, 201),
                errors=(409,),
            ),
        ),
        (
            "PATCH",
            GROUP,
            groups.alter,
            Facts("change settings of a group", GroupInfo, takes=GroupSettings),
        ),
        (
            "DELETE",
            GROUP,
            groups.delete,
            Facts("remove a group and its position", statuses=(204,)),
        ),
    ]


def _record_rows(groups: GroupsDoor) -> list[RouteRow]:
    return [
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
        (
            "POST",
            GROUP + "/extend",
            groups.extend,
            Facts("extend the leases of records", Extended, takes=Extend, errors=(409,)),
        ),
        (
            "POST",
            GROUP + "/redrive",
            groups.redrive,
            Facts("put dead letters back into their topic, each once", Redriven, takes=Redrive),
        ),
    ]


class GroupsDoor:
    def __init__(self, door: Endpoints) -> None:
        self._door = door
        self._engine = door.engine

    def list(self, request: Request) -> Response:
        return json_response(GroupList(self._engine.groups.of(self._topic(request))))

    def show(self, request: Request) -> Response:
        topic, group = self._topic(request), request.params["group"]
        return json_response(self._engine.groups.describe(topic, group))

    async def create(self, request: Request) -> Response:
        topic, name = self._topic(request), request.params["group"]
        asked = read_body(request, NewGroup)
        start = parse_position(asked.start, self._engine.clock.now_us())
        owner = request.principal.owner
        is_new = await self._engine.groups.create(topic, name, start, owner)
        return await self._set(request, topic, asked, 201 if is_new else 200)

    async def alter(self, request: Request) -> Response:
        asked = read_body(request, GroupSettings)
        return await self._set(request, self._topic(request), asked, 200)

    async def _set(
        self, request: Request, topic: Topic, asked: GroupSettings, status: int
    ) -> Response:
        groups, name = self._engine.groups, request.params["group"]
        if asked.lease_s is not None or asked.deliveries_max is not None:
            self._check_owner(request, topic)
        await groups.alter(topic, name, asked.lease_s, asked.deliveries_max)
        return json_response(groups.describe(topic, name), status)

    async def delete(self, request: Request) -> Response:
        topic = self._topic(request)
        self._check_owner(request, topic)
        await self._engine.groups.delete(topic, request.params["group"])
        return Response(204)

    def _check_owner(self, request: Request, topic: Topic) -> None:
        kept = self._engine.groups.get(topic, request.params["group"])
        check_owner(request.principal, kept.owner, f"group {quoted(kept.name)}")

    async def fetch(self, request: Request) -> Answer:
        topic = self._topic(request)
        asked = read_body(request, GroupFetch)
        clock = self._engine.clock
        start = parse_position(asked.start, clock.now_us())
        until_s = clock.monotonic_s() + asked.wait
        groups, room = self._engine.groups, self._door.room
        name = request.params["group"]
        gate = Gate(request.principal, topic.key)
        fetch = partial(
            groups.fetch,
            topic,
            name,
            limit=asked.limit,
            wait_s=0.0,
            start=start,
            gate=gate,
            lease_s=asked.lease_s,
            deliveries_max=asked.deliveries_max,
            owner=request.principal.owner,
        )
        while True:
            (receipt, given), place = await room.read(
                fetch,
                _given_size,
                partial(groups.expected_bytes, topic, name, asked.limit),
            )
            left_s = until_s - clock.monotonic_s()
            if given or left_s <= 0 or self._door.is_leaving(topic):
                break
            await self._door.wait_leaving(topic, groups.wait(topic, name, left_s), left_s)
        watch = self._engine.watch
        if watch is not None:
            for one in given:
                detail = f"delivery {one.deliveries}"
                watch.read(f"group {name}", topic.declared, [one.record], detail)
        kept = groups.get(topic, name)
        lease_s = kept.lease_s if asked.lease_s is None else asked.lease_s
        next_offset = shown_offsets(kept.next_offsets)
        body = GroupRecords(topic.declared, receipt, lease_s, next_offset, [])
        if place is None:
            body.records = [_given_out(one) for one in given]
            return json_response(body)
        head = _encode(body).removesuffix(b"]}")
        return room.stream(place, page_pieces(head, map(_long_or_short, given)), JSON)

    async def ack(self, request: Request) -> Response:
        topic = self._topic(request)
        asked = read_body(request, Ack)
        name = request.params["group"]
        try:
            done = await self._engine.groups.ack(topic, name, asked.receipt, asked.offsets)
        except RefusedError as refused:
            raise _conflict(refused) from None
        return json_response(Answered(done))

    async def nack(self, request: Request) -> Response:
        topic = self._topic(request)
        asked = read_body(request, Nack)
        name = request.params["group"]
        try:
            done = await self._engine.groups.nack(
                topic,
                name,
                asked.receipt,
                places=asked.offsets,
                delay_s=asked.delay,
                reason=asked.reason,
            )
        except RefusedError as refused:
            raise _conflict(refused) from None
        return json_response(Answered(done))

    async def extend(self, request: Request) -> Response:
        topic = self._topic(request)
        asked = read_body(request, Extend)
        work = self._engine.groups.extend(
            topic, request.params["group"], asked.receipt, asked.offsets, asked.lease_s
        )
        try:
            return json_response(Extended(*await work))
        except RefusedError as refused:
            raise _conflict(refused) from None

    async def redrive(self, request: Request) -> Response:
        topic = self._topic(request)
        asked = read_body(request, Redrive)
        where = None if asked.where is None else compile_where(asked.where)
        return json_response(
            await self._engine.redrives.redrive(
                topic,
                request.params["group"],
                request.principal,
                start=asked.start,
                limit=asked.limit,
                where=where,
                is_dry_run=asked.dry_run,
            )
        )

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
