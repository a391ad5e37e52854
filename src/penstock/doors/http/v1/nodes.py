"""`/v1/nodes`: the nodes on one Kafka and one PostgreSQL, and sending their clients away."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from penstock.broker.cluster.node import LIVE, Node, NodeRow
from penstock.doors.http.routing.endpoints import Endpoints
from penstock.doors.http.routing.needs import Needs
from penstock.doors.http.routing.router import Route
from penstock.doors.http.v1.describing import Facts
from penstock.doors.http.v1.reading import check_query, read_body
from penstock.doors.http.wire.messages import HttpError, Request, Response, json_response
from penstock.model.errors import RefusedError

NODES: Final = "/v1/nodes"
NODE: Final = "/v1/nodes/{node}"
DRAIN: Final = "/v1/nodes/{node}/drain"
DRAINING: Final = "draining"


class NodeOut(Struct):
    """`since` is in µs since 1970; `lease` is how many seconds its lease still lasts."""

    name: str
    incarnation: int
    state: str  # live, draining, or dead: another node is about to recover it
    address: str
    clients: int
    sessions: int
    version: str
    since: int
    lease: float
    is_self: bool  # the node that answers


class NodeList(Struct):
    nodes: list[NodeOut]


class DrainIn(Struct):
    drain: bool = True


def add_routes(door: Endpoints) -> None:
    here = NodesDoor(door.engine.shared.node)
    for method, path, handler, facts in (
        (
            "GET",
            NODES,
            here.show_all,
            Facts("list the nodes; none if this broker does not share its catalog", NodeList),
        ),
        ("GET", NODE, here.show, Facts("show a node, by name or incarnation", NodeOut)),
        (
            "POST",
            DRAIN,
            here.drain,
            Facts(
                "send the clients of a node to other nodes, or let it take clients again",
                NodeOut,
                takes=DrainIn,
                errors=(409,),
            ),
        ),
    ):
        door.router.add(Route(method, path, handler, facts=facts, needs=Needs.OPERATOR))


class NodesDoor:
    def __init__(self, node: Node | None) -> None:
        self._node = node

    async def show_all(self, request: Request) -> Response:
        check_query(request)
        return json_response(NodeList([self._out(row) for row in await self._rows()]))

    async def show(self, request: Request) -> Response:
        return json_response(self._out(await self._find(request)))

    async def drain(self, request: Request) -> Response:
        asked = read_body(request, DrainIn)
        row = await self._find(request)
        assert self._node is not None, "it was found among the nodes"
        try:
            await self._node.catalog.drain(row.inc, is_draining=asked.drain)
        except RefusedError as refused:
            raise HttpError(409, str(refused), error=RefusedError.__name__) from None
        return json_response(self._out(await self._find(request)))

    async def _rows(self) -> list[NodeRow]:
        return [] if self._node is None else await self._node.nodes()

    async def _find(self, request: Request) -> NodeRow:
        """The live node of a name before a dead one."""
        wanted = request.params["node"]
        found = [row for row in await self._rows() if wanted in (row.name, str(row.inc))]
        if not found:
            raise HttpError(
                404, f"no node is called {wanted[:200]!r}: `penstock node list` shows the nodes"
            )
        return max(found, key=lambda row: (row.state == LIVE, row.inc))

    def _out(self, row: NodeRow) -> NodeOut:
        return NodeOut(
            name=row.name,
            incarnation=row.inc,
            state=DRAINING if row.is_draining and row.state == LIVE else row.state,
            address=row.address,
            clients=row.clients,
            sessions=row.sessions,
            version=row.version,
            since=row.joined_at,
            lease=max(0.0, round(row.lease_us / 1_000_000, 3)),
            is_self=self._node is not None and row.inc == self._node.inc,
        )
