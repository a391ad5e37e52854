"""How sessions ended, on its way to the catalog, however long the catalog is away.

Invariant: between the end of a client's connection and the moment it is saved the client's next
session does not begin, and no checkpoint is made: it would take the session for one that is level.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec

from penstock.model.errors import UnavailableError

P = ParamSpec("P")


class Endings:
    """The endings that are not saved yet, by client id; used on the event loop."""

    def __init__(self, spawn: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self._spawn = spawn
        self._pending: dict[str, int] = {}
        self._settled: list[asyncio.Future[None]] = []  # wait for any of them
        self._is_closing = False

    def save(
        self,
        save: Callable[Concatenate[str, P], Awaitable[None]],
        client_id: str,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        """Save in the background; again while the catalog is away, unless the broker closes."""
        self._pending[client_id] = self._pending.get(client_id, 0) + 1
        self._spawn(self._insist(client_id, lambda: save(client_id, *args, **kwargs)))

    async def wait(self, client_id: str) -> None:
        """Suspends until what this client left is saved."""
        while client_id in self._pending:
            await self._wait_for_any()

    async def wait_all(self) -> None:
        """Suspends until what was pending at the call is saved."""
        for client_id in list(self._pending):
            await self.wait(client_id)

    def close(self) -> None:
        """Try once more at the most: what is not saved then is as after a crash."""
        self._is_closing = True

    async def _insist(self, client_id: str, save: Callable[[], Awaitable[None]]) -> None:
        try:
            while True:
                try:
                    await save()
                    return
                except UnavailableError as away:
                    if self._is_closing:
                        raise
                    await asyncio.sleep(away.retry_after_s)
        finally:
            left = self._pending.pop(client_id) - 1
            if left:
                self._pending[client_id] = left
            settled, self._settled = self._settled, []
            for one in settled:
                if not one.done():
                    one.set_result(None)

    async def _wait_for_any(self) -> None:
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._settled.append(settled)
        await settled
