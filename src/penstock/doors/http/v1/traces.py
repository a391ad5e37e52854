"""`/v1/traces`: where messages are, from the moment a trace is on; and what becomes of a record."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import asdict

from penstock.broker.topic.reading import Selection, read_records
from penstock.broker.trace.readers import RecordReader, readers_of
from penstock.broker.trace.trace import Trace, TraceEvent
from penstock.broker.trace.tracer import SECONDS_MAX
from penstock.core.access import Gate
from penstock.core.naming.names import check_filter, quoted
from penstock.core.position import OFFSET_END
from penstock.core.topic_settings import PARTITIONS_MAX
from penstock.doors.http.routing.endpoints import Endpoints
from penstock.doors.http.routing.errors import with_status
from penstock.doors.http.routing.needs import Needs, check_needs
from penstock.doors.http.routing.router import Route
from penstock.doors.http.routing.schemas import FILTER, OFFSET, TEXT, number, shown_as
from penstock.doors.http.v1.describing import Facts, Field
from penstock.doors.http.v1.reading import (
    WAIT,
    check_query,
    read_body,
    read_number,
    read_offset,
    read_partition,
    read_wait_s,
    record_out,
)
from penstock.doors.http.v1.types import RecordOut
from penstock.doors.http.wire.messages import HttpError, Request, Response, json_response
from penstock.model.errors import Gap, NotAuthorized, OffsetBeyondEnd, RefusedError
from penstock.model.limits import MIB

TRACES: Final = "/v1/traces"
TRACE: Final = TRACES + "/{trace}"
RECORD_TRACE: Final = "/v1/topics/{topic}/records/{offset}/trace"
SECONDS_DEFAULT: Final = 600


class TraceIn(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Messages whose name matches `names`, and those that `client` sends or receives.

    Without both, all messages.
    """

    names: Annotated[str, shown_as(FILTER)] | UnsetType = UNSET
    client: Annotated[str, shown_as(TEXT)] = ""
    seconds: Annotated[int, shown_as(number(1, SECONDS_MAX))] = SECONDS_DEFAULT


class TraceOut(Struct):
    """Times in µs since 1970; `skipped` events came too fast to be kept."""

    trace: int
    names: str
    client: str
    started_at: int
    ends_at: int
    is_on: bool
    last_number: int
    skipped: int


class TraceList(Struct):
    traces: list[TraceOut]


class TraceEvents(TraceOut):
    """`events` are in the order in which they became known."""

    events: list[TraceEvent]


class RecordTrace(Struct):
    """What the log and the catalog know of a record, and what traces saw of it."""

    topic: str
    first_offset: int
    end_offset: int
    record: RecordOut
    readers: list[RecordReader]
    events: list[TraceEvent]


def add_routes(door: Endpoints) -> None:
    traces = TracesDoor(door)
    for method, path, handler, facts in (
        ("GET", TRACES, traces.show_all, Facts("list the traces", TraceList)),
        (
            "POST",
            TRACES,
            traces.begin,
            Facts(
                "follow messages by name or client: received, stored, sent, acknowledged, dropped",
                TraceOut,
                takes=TraceIn,
                needs_body=True,
                statuses=(201,),
                errors=(409,),
            ),
        ),
        (
            "GET",
            TRACE,
            traces.show,
            Facts(
                "show the events of a trace",
                TraceEvents,
                query=(
                    Field("after", "only events with a higher number (0)", OFFSET),
                    Field("wait", "seconds to wait for an event if there is no event", WAIT),
                ),
            ),
        ),
        ("DELETE", TRACE, traces.delete, Facts("end and delete a trace", statuses=(204,))),
        (
            "GET",
            RECORD_TRACE,
            traces.show_record,
            Facts(
                "show which readers have passed a record",
                RecordTrace,
                query=(Field("partition", "one of several partitions", number(0, PARTITIONS_MAX)),),
                errors=(409, 410),
            ),
        ),
    ):
        waits = handler == traces.show
        route = Route(method, path, handler, facts=facts, needs=Needs.ADMIN, ends_with_client=waits)
        door.router.add(route)


class TracesDoor:
    def __init__(self, door: Endpoints) -> None:
        self._door = door
        self._exchange = door.world.exchange
        self._tracer = door.world.tracer

    async def show_all(self, request: Request) -> Response:
        check_query(request)
        return json_response(TraceList([_out(one) for one in self._tracer.traces.values()]))

    async def begin(self, request: Request) -> Response:
        asked = read_body(request, TraceIn)
        names = asked.names
        try:
            trace = self._tracer.begin(
                ("" if asked.client else "#") if names is UNSET else check_filter(names),
                asked.client,
                asked.seconds,
            )
        except RefusedError as refused:
            raise with_status(refused, 409) from None
        return json_response(_out(trace), 201)

    async def show(self, request: Request) -> Response:
        query = check_query(request, "after", "wait")
        after, wait_s = read_offset(query, "after") or 0, read_wait_s(query)
        trace = self._find(request)
        if wait_s and trace.is_on and trace.last_number <= after:
            await self._door.wait(trace.wait_event(), wait_s)
            check_needs(Needs.ADMIN, request)  # what it may do has perhaps changed meanwhile
        events = trace.events_after(after)
        return json_response(TraceEvents(**asdict(_out(trace)), events=events))

    async def delete(self, request: Request) -> Response:
        self._tracer.delete(self._find(request))
        return Response(204)

    def _find(self, request: Request) -> Trace:
        text = request.params["trace"]
        trace = self._tracer.traces.get(read_number(text, OFFSET_END) or 0)
        if trace is None:
            raise HttpError(
                404, f"trace {quoted(text)} does not exist: GET {TRACES} lists all traces"
            )
        return trace

    async def show_record(self, request: Request) -> Response:
        query = check_query(request, "partition")
        whole = self._exchange.engine.topics.get(request.params["topic"])
        part = read_partition(query, whole)
        if part is None and len(whole.parts) > 1:
            raise HttpError(
                409,
                f"topic {quoted(whole.declared)} has {len(whole.parts)} partitions, and an offset "
                "alone names no record there: name the partition, too",
            )
        topic = part or whole
        text = request.params["offset"]
        offset = read_number(text, OFFSET_END)
        if offset is None:
            raise HttpError(400, f"offset {quoted(text)} is not a whole number from 0")
        first, end = topic.log.bounds()
        gate = Gate(request.principal, topic.key)
        selection = Selection(1, MIB, until=offset + 1, gate=gate)
        found = await read_records(topic, offset, selection)
        name = quoted(topic.declared)
        if offset < found.first_offset:
            raise Gap(
                f"record {offset} of topic {name} was removed by retention: the first record has "
                f"offset {found.first_offset}"
            )
        if offset >= end:
            raise OffsetBeyondEnd(f"topic {name} has no record {offset}: its end offset is {end}")
        if not found.records:
            raise NotAuthorized(f"reading record {offset} of topic {name} is not allowed")
        (record,) = found.records
        readers = await readers_of(self._exchange, topic, record)
        events = [
            event
            for trace in self._tracer.traces.values()
            for event in trace.events_of(topic.declared, topic.partition, offset)
        ]
        shown = RecordTrace(
            topic=topic.declared,
            first_offset=first,
            end_offset=end,
            record=record_out(record),
            readers=readers,
            events=events,
        )
        return json_response(shown)


def _out(one: Trace) -> TraceOut:
    return TraceOut(
        trace=one.id,
        names=one.names,
        client=one.client,
        started_at=one.started_at,
        ends_at=one.ends_at,
        is_on=one.is_on,
        last_number=one.last_number,
        skipped=one.skipped,
    )
