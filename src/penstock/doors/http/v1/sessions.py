"""`/v1/sessions`: the sessions of MQTT clients, what they read, and sending a client away."""

from __future__ import annotations

from typing import Final

from penstock.broker.exchange import Exchange
from penstock.broker.session.backlog import SessionReport, describe_sessions, known_clients
from penstock.core.naming.names import quoted
from penstock.doors.http.routing.endpoints import Endpoints
from penstock.doors.http.routing.needs import Needs
from penstock.doors.http.routing.router import Route
from penstock.doors.http.routing.schemas import number
from penstock.doors.http.v1.describing import Facts, Field
from penstock.doors.http.v1.reading import LIMIT_MAX, check_query, read_body, read_limit
from penstock.doors.http.v1.types import (
    Kick,
    Kicked,
    SessionDetail,
    SessionList,
    SessionOut,
    StoredSessions,
    SubscriptionOut,
)
from penstock.doors.http.wire.messages import HttpError, Request, Response, json_response
from penstock.doors.mqtt.kicking import kick

SESSIONS: Final = "/v1/sessions"
SESSION: Final = SESSIONS + "/{client_id}"
SUBSCRIPTIONS: Final = "/v1/subscriptions"


def add_routes(door: Endpoints, exchange: Exchange) -> None:
    sessions = SessionsDoor(exchange)
    for method, path, handler, facts in (
        (
            "GET",
            SESSIONS,
            sessions.show_all,
            Facts(
                "list the sessions of MQTT clients, ordered by client id",
                SessionList,
                query=(
                    Field("limit", "maximum number of sessions (1,000)", number(1, LIMIT_MAX)),
                    Field("after", "continue after this client id"),
                ),
            ),
        ),
        ("GET", SESSION, sessions.show, Facts("show a session with its filters", SessionDetail)),
        (
            "GET",
            SUBSCRIPTIONS,
            sessions.show_stored,
            Facts("list the filters and positions of all persistent sessions", StoredSessions),
        ),
        (
            "POST",
            SESSION + "/kick",
            sessions.kick,
            Facts("close a connection; with forget also delete the session", Kicked, takes=Kick),
        ),
        (
            "DELETE",
            SESSION,
            sessions.remove,
            Facts("close the connection and delete the session", statuses=(204,)),
        ),
    ):
        door.router.add(Route(method, path, handler, facts=facts, needs=Needs.ADMIN))


class SessionsDoor:
    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def show_all(self, request: Request) -> Response:
        query = check_query(request, "limit", "after")
        limit = read_limit(query)
        known = await known_clients(self._exchange, limit + 1, query.get("after", ""))
        reports = await describe_sessions(self._exchange, known[:limit])
        more = known[limit - 1] if len(known) > limit else None
        return json_response(SessionList([_out(one) for one in reports], more))

    async def show(self, request: Request) -> Response:
        (report,) = await self._find(request.params["client_id"])
        filters = [SubscriptionOut(*one) for one in report.filters]
        return json_response(SessionDetail(*_facts(report), filters))

    async def show_stored(self, request: Request) -> Response:
        check_query(request)
        return Response(200, await self._exchange.store.stored_rows())

    async def kick(self, request: Request) -> Response:
        asked = read_body(request, Kick)
        client_id = request.params["client_id"]
        was_connected = await self._end(client_id, is_forgotten=asked.forget)
        return json_response(Kicked(client_id, was_connected, asked.forget))

    async def remove(self, request: Request) -> Response:
        await self._end(request.params["client_id"], is_forgotten=True)
        return Response(204)

    async def _end(self, client_id: str, *, is_forgotten: bool) -> bool:
        """Whether it was connected; HttpError 404 if there is nothing to end."""
        was_connected = await kick(self._exchange, client_id, is_forgotten=is_forgotten)
        if was_connected is None:
            raise _unknown(client_id)
        return was_connected

    async def _find(self, client_id: str) -> list[SessionReport]:
        found = await describe_sessions(self._exchange, [client_id])
        if not found:
            raise _unknown(client_id)
        return found


def _unknown(client_id: str) -> HttpError:
    return HttpError(404, f"no client {quoted(client_id)} is connected or has a session")


def _facts(one: SessionReport) -> tuple[str, str, bool, int, int, int, bool, int]:
    return (
        one.client_id,
        one.user,
        one.is_connected,
        len(one.filters),
        one.outstanding,
        one.waiting,
        one.is_exact,
        one.expiry_s,
    )


def _out(one: SessionReport) -> SessionOut:
    return SessionOut(*_facts(one))
