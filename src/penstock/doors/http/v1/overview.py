"""`/v1/overview`: how the broker is doing, now and in the last hour."""

from __future__ import annotations

from typing import Final

from penstock.broker.figures.overview import Overview, describe
from penstock.broker.world import World
from penstock.doors.http.limits import ADMIN
from penstock.doors.http.routing.endpoints import Endpoints
from penstock.doors.http.routing.needs import Needs
from penstock.doors.http.routing.router import Route
from penstock.doors.http.routing.schemas import OFFSET
from penstock.doors.http.v1.describing import Facts, Field
from penstock.doors.http.v1.reading import check_query, read_offset
from penstock.doors.http.wire.messages import Request, Response, json_response

OVERVIEW: Final = "/v1/overview"


def add_routes(door: Endpoints) -> None:
    overview = OverviewDoor(door.world)
    facts = Facts(
        "rates, latencies, slow readers and disk space, now and in the last hour",
        Overview,
        query=(Field("after", "only samples after this time, µs since 1970 (0)", OFFSET),),
    )
    # It shows what `/metrics` shows.
    needs = Needs.ADMIN if door.limits.metrics == ADMIN else Needs.LOGIN
    door.router.add(Route("GET", OVERVIEW, overview.show, facts=facts, needs=needs))


class OverviewDoor:
    def __init__(self, world: World) -> None:
        self._world = world

    async def show(self, request: Request) -> Response:
        after_us = read_offset(check_query(request, "after"), "after") or 0
        overview = await describe(self._world.exchange, self._world.samples, after_us)
        if not request.principal.grants.is_admin:
            overview.slowest = []  # client ids and consumers of others
            overview.troubles = []  # topics that may be hidden, and files
        return json_response(overview)
