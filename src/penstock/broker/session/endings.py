"""How sessions ended, on its way to the catalog, however long the catalog is away.

Invariant: between the end of a client's connection and the moment it is saved the client's next
session does not begin, and no checkpoint is made without it: that would take the session for one
that is level. A checkpoint carries the endings that are not known to be saved, and saves them
itself; until it is done they are not saved in any other way, which could undo what it says.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec

from penstock.broker.tasks import Spawn
from penstock.catalog.session.saving import Checkpoint, Ending
from penstock.model.errors import UnavailableError

P = ParamSpec("P")


class Endings:
    """The endings that are not saved yet; used on the event loop."""

    def __init__(self, spawn: Spawn) -> None:
        self._spawn = spawn
        self._pending: Counter[str] = Counter()  # by client id
        self._unsaved: dict[Ending, None] = {}
        self._carried: set[Ending] = set()  # by the checkpoint that is being saved
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
        self._begin(client_id, self._insist(lambda: save(client_id, *args, **kwargs)))

    def save_end(self, save: Callable[[Ending], Awaitable[None]], ending: Ending) -> None:
        """The same for a session that stays, unless a checkpoint saves it first."""
        self._unsaved[ending] = None

        async def save_unless_saved() -> None:
            while ending in self._carried:
                await self._wait_for_any()
            if ending in self._unsaved:
                await save(ending)
                self._unsaved.pop(ending, None)

        self._begin(ending.client_id, self._insist(save_unless_saved))

    def take_changes(self, point: Checkpoint) -> bool:
        """What is not known to be saved; alone it needs no checkpoint: its own way will do."""
        self._carried = set(self._unsaved)
        point.endings = list(self._unsaved)
        return False

    def settle(self, *, is_saved: bool) -> None:
        if is_saved:
            for one in self._carried:
                self._unsaved.pop(one, None)
        self._carried = set()
        self._wake()

    async def wait(self, client_id: str) -> None:
        """Suspends until what this client left is saved."""
        while client_id in self._pending:
            await self._wait_for_any()

    def is_pending(self, client_id: str) -> bool:
        """Is something that this client left not saved yet?"""
        return client_id in self._pending

    def close(self) -> None:
        """Try at most once more: what is not saved then is handled as after a crash."""
        self._is_closing = True

    def _begin(self, client_id: str, work: Coroutine[Any, Any, None]) -> None:
        self._pending[client_id] += 1
        self._spawn(self._finish(client_id, work))

    async def _finish(self, client_id: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        finally:
            self._pending[client_id] -= 1
            if not self._pending[client_id]:
                del self._pending[client_id]
            self._wake()

    async def _insist(self, save: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await save()
                return
            except UnavailableError as away:
                if self._is_closing:
                    raise
                await asyncio.sleep(away.retry_after_s)

    async def _wait_for_any(self) -> None:
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._settled.append(settled)
        await settled

    def _wake(self) -> None:
        settled, self._settled = self._settled, []
        for one in settled:
            if not one.done():
                one.set_result(None)
