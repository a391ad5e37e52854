"""`/v1/clients`: every client that the broker remembers, and forgetting one."""

from __future__ import annotations

from typing import Final

from penstock.broker.exchange import Exchange
from penstock.broker.session.known_clients import ClientCatalog, KnownClient
from penstock.core.naming.names import quoted
from penstock.doors.http.routing.endpoints import Endpoints
from penstock.doors.http.routing.errors import with_status
from penstock.doors.http.routing.needs import Needs
from penstock.doors.http.routing.router import Route
from penstock.doors.http.routing.schemas import number
from penstock.doors.http.v1.describing import Facts, Field
from penstock.doors.http.v1.reading import LIMIT_MAX, check_query, read_limit
from penstock.doors.http.v1.types import ClientList, ClientOut
from penstock.doors.http.wire.messages import HttpError, Request, Response, json_response
from penstock.model.errors import RefusedError

CLIENTS: Final = "/v1/clients"
CLIENT: Final = CLIENTS + "/{client_id}"


def add_routes(door: Endpoints, exchange: Exchange) -> None:
    clients = ClientsDoor(exchange)
    for method, path, handler, facts in (
        (
            "GET",
            CLIENTS,
            clients.show_all,
            Facts(
                "list the MQTT clients that connected at any time, ordered by client id",
                ClientList,
                query=(
                    Field("limit", "maximum number of clients (1,000)", number(1, LIMIT_MAX)),
                    Field("after", "continue after this client id"),
                ),
            ),
        ),
        ("GET", CLIENT, clients.show, Facts("show a client", ClientOut)),
        (
            "DELETE",
            CLIENT,
            clients.forget,
            Facts(
                "forget a client; 409 while it is connected or has a session",
                statuses=(204,),
                errors=(409,),
            ),
        ),
    ):
        door.router.add(Route(method, path, handler, facts=facts, needs=Needs.ADMIN))


class ClientsDoor:
    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def show_all(self, request: Request) -> Response:
        query = check_query(request, "limit", "after")
        limit = read_limit(query)
        rows = await (await self._saved()).page(limit + 1, query.get("after", ""))
        more = rows[limit - 1].row.client_id if len(rows) > limit else None
        return json_response(ClientList([self._out(one) for one in rows[:limit]], more))

    async def show(self, request: Request) -> Response:
        client_id = request.params["client_id"]
        for known in await (await self._saved()).find(client_id):
            return json_response(self._out(known))
        raise _unknown(client_id)

    async def forget(self, request: Request) -> Response:
        client_id = request.params["client_id"]
        catalog = await self._saved()
        if client_id in self._exchange.sessions.connected:
            raise HttpError(
                409,
                f"client {quoted(client_id)} is connected: close its connection first with "
                "`penstock session kick`",
            )
        try:
            is_known = await catalog.forget(client_id)
        except RefusedError as refused:
            raise with_status(refused, 409) from None
        if not is_known:
            raise _unknown(client_id)
        return Response(204)

    async def _saved(self) -> ClientCatalog:
        """The known clients, with everybody who came or went until now."""
        await self._exchange.store.checkpoints.save()
        return self._exchange.engine.session_catalog.clients

    def _out(self, known: KnownClient) -> ClientOut:
        is_connected = known.row.client_id in self._exchange.sessions.connected
        return ClientOut(*known.row, is_connected, known.has_session)


def _unknown(client_id: str) -> HttpError:
    return HttpError(
        404,
        f"client {quoted(client_id)} is not known (client ids are case-sensitive): see "
        "`penstock client list`",
    )
