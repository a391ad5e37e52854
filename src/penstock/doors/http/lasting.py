"""What lasts longer than its answer, or waits for it: it ends with the login it was asked with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Final

from penstock.core.access import NOBODY, Principal
from penstock.doors.http.login import CHALLENGE
from penstock.doors.http.wire.connection import HttpConnection
from penstock.doors.http.wire.messages import HttpError, Request

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

    def end_expired(self, now_us: int) -> None:
        for connection, request in list(self._requests.items()):
            if request.expires_us and request.expires_us <= now_us:
                self._end(connection, request, "the token has expired")

    def end_revoked(self) -> None:
        for connection, request in list(self._requests.items()):
            if request.principal.is_revoked:
                self._end(connection, request, request.principal.revocation)

    def _end(self, connection: HttpConnection, request: Request, why: str) -> None:
        del self._requests[connection]
        if request.is_upgrade or connection.current is request:
            connection.stop(WS_ENDED, why)


def end_waiting(request: Request) -> None:
    """Answer a request that waits for something if the login of its client is no longer good."""
    if not request.principal.is_revoked or request.task is None:
        return
    if request.task.cancel():
        ended = HttpError(401, request.principal.revocation, CHALLENGE)
        request.reply(request.route.fail(ended))


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
