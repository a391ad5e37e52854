"""`/v1/snapshots`: what `penstock backup` copies; for operators, on the broker's own machine."""

from __future__ import annotations

from typing import Final

from penstock.broker.upkeep.snapshots import Snapshots
from penstock.doors.http.routing.endpoints import Endpoints
from penstock.doors.http.routing.needs import Needs
from penstock.doors.http.routing.router import Route
from penstock.doors.http.v1.describing import Facts
from penstock.doors.http.v1.types import SnapshotOut
from penstock.doors.http.wire.messages import HttpError, Request, Response, json_response
from penstock.model.errors import RefusedError

SNAPSHOTS: Final = "/v1/snapshots"
SNAPSHOT: Final = SNAPSHOTS + "/{snapshot}"


def add_routes(door: Endpoints, snapshots: Snapshots) -> None:
    async def take(request: Request) -> Response:
        try:
            return json_response(SnapshotOut(await snapshots.take()), 201)
        except RefusedError as refused:
            raise HttpError(409, str(refused), error=RefusedError.__name__) from None

    async def drop(request: Request) -> Response:
        try:
            await snapshots.drop(request.params["snapshot"])
        except RefusedError as missing:
            raise HttpError(404, str(missing), error=RefusedError.__name__) from None
        return Response(204)

    taking = Facts(
        "link the files of all topics, and copy the catalog, at one moment, into the directory "
        "`.snapshots` of the data directory; it goes when no program holds it",
        SnapshotOut,
        statuses=(201,),
        errors=(409,),
    )
    dropping = Facts("remove a snapshot", statuses=(204,))
    add = door.router.add
    add(Route("POST", SNAPSHOTS, take, facts=taking, needs=Needs.OPERATOR))
    add(Route("DELETE", SNAPSHOT, drop, facts=dropping, needs=Needs.OPERATOR))
