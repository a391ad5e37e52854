"""`/v1/bridges`: the bridges to other MQTT brokers, and how each is doing."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from penstock.doors.bridge.bridge import Bridge
from penstock.doors.bridge.bridges import Bridges
from penstock.doors.http.routing.endpoints import Endpoints
from penstock.doors.http.routing.needs import Needs
from penstock.doors.http.routing.router import Route
from penstock.doors.http.v1.describing import Facts
from penstock.doors.http.v1.reading import check_query
from penstock.doors.http.wire.messages import Request, Response, json_response
from penstock.model.record import TenantId

BRIDGES: Final = "/v1/bridges"


class BridgedTopic(Struct):
    """Names here are `local_prefix` + x, there `remote_prefix` + x; x matches `filter`."""

    filter: str
    direction: str
    qos: int
    local_prefix: str
    remote_prefix: str


class BridgeOut(Struct):
    """`since` is in µs since 1970; `error` says why it is not connected, or is empty."""

    name: str
    address: str
    state: str
    since: int
    error: str
    forwarded: int
    received: int
    refused: int
    lag: int
    client_id: str
    role: str
    topics: list[BridgedTopic]


class BridgeList(Struct):
    bridges: list[BridgeOut]


def add_routes(door: Endpoints, bridges: Bridges) -> None:
    shown = BridgesDoor(bridges, door.engine.tenant)
    facts = Facts("list the bridges to other MQTT brokers, with their state", BridgeList)
    door.router.add(Route("GET", BRIDGES, shown.show, facts=facts, needs=Needs.ADMIN))


class BridgesDoor:
    def __init__(self, bridges: Bridges, tenant: TenantId) -> None:
        self._bridges = bridges
        self._tenant = tenant

    def show(self, request: Request) -> Response:
        check_query(request)
        return json_response(BridgeList([_out(one) for one in self._bridges.of(self._tenant)]))


def _out(one: Bridge) -> BridgeOut:
    settings, state, counts = one.settings, one.state, one.counts
    return BridgeOut(
        name=settings.name,
        address=settings.address,
        state=state.word,
        since=state.since_us,
        error=state.error,
        forwarded=counts.forwarded,
        received=counts.received,
        refused=counts.refused,
        lag=one.lag,
        client_id=settings.client_id,
        role=settings.role,
        topics=[
            BridgedTopic(
                topic.filter, topic.direction, topic.qos, topic.local_prefix, topic.remote_prefix
            )
            for topic in settings.topics
        ],
    )
