"""What lasts longer than its answer, or waits for it: it ends with the login it was asked with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Final

from penstock.core.access import NOBODY, Principal
from penstock.doors.http.login import CHALLENGE
from penstock.doors.http.wire.connection import HttpConnection
from penstock.doors.http.wire.messages import HttpError, Request

EXPIRED: Final = "the token has expired: log in with a new one"
WS_ENDED: Final = 1008  # what the client was let in with is over (RFC 6455 §7.4.1)


class Lasting:
    """Streams of events and WebSockets, by the connection that carries them."""

    def __init__(self) -> None:
        self._requests: dict[HttpConnection, Request] = {}

    def add(self, request: Request) -> None:
        """A request of somebody who logged in was answered with something that goes on."""
        connection = request.asker
        if request.principal is NOBODY or not isinstance(connection, HttpConnection):
            return
        if not connection.is_closed:
            self._requests[connection] = request

    def forget(self, connection: HttpConnection) -> None:
        self._requests.pop(connection, None)

    def principals(self) -> list[Principal]:
        return [request.principal for request in self._requests.values()]

    def end_expired(self, now_us: int, under_way: list[Request]) -> None:
        """Those whose token has expired; of requests under way, those that wait for something."""
        for connection, request in list(self._requests.items()):
            if _is_expired(request, now_us):
                self._end(connection, request, EXPIRED)
        for request in under_way:
            if _is_expired(request, now_us) and request.route.ends_with_client:
                _end_waiting(request, EXPIRED)

    def end_revoked(self, under_way: list[Request]) -> None:
        """The same for those whose login is no longer good."""
        for connection, request in list(self._requests.items()):
            if request.principal.is_revoked:
                self._end(connection, request, request.principal.revocation)
        for request in under_way:
            if request.principal.is_revoked:
                _end_waiting(request, request.principal.revocation)

    def _end(self, connection: HttpConnection, request: Request, why: str) -> None:
        del self._requests[connection]
        if request.is_upgrade or connection.current is request:
            connection.stop(WS_ENDED, why)


def _is_expired(request: Request, now_us: int) -> bool:
    return 0 < request.expires_us <= now_us


def _end_waiting(request: Request, why: str) -> None:
    """Answer a request that waits for something: its login is no longer good."""
    if request.task is not None and request.task.cancel():
        request.reply(request.route.fail(HttpError(401, why, CHALLENGE)))


class Waits:
    """Requests that wait for something; all of them end when the server stops."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._stopped: asyncio.Future[None] | None = None

    async def wait(self, something: Awaitable[Any], wait_s: float | None) -> None:
        """Until it happens, the time is over, or the server stops; whatever is first."""
        if self._stopped is None:
            self._stopped = self._loop.create_future()
        waited = asyncio.ensure_future(something)
        try:
            await asyncio.wait(
                {waited, self._stopped}, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            if waited.done() and not waited.cancelled():
                waited.result()  # the topic may be gone
            waited.cancel()

    def stop(self) -> None:
        if self._stopped is not None:
            self._stopped.set_result(None)
