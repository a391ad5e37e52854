"""New grants for everybody after a change of rules, some principals at a time.

Thousands of principals take longer than others may wait for the event loop. Until its turn a
principal has its old grants; a change that is awaited has reached everybody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from penstock.broker.access.identities import Identity

SLICE: Final = 250  # principals with rules of their own: some 4 ms


class Renewal:
    """Used on the event loop. `renew` gives some their grants; `done` hears that all have them."""

    def __init__(self, renew: Callable[[list[Identity]], object], done: Callable[[], None]) -> None:
        self._renew = renew
        self._done = done
        self._left: list[Identity] = []  # to be renewed, the last ones first
        self._finished: asyncio.Future[None] | None = None  # None: nothing is under way

    def begin(self, identities: list[Identity]) -> None:
        """All of these, at once if they are few; a renewal that is under way begins anew."""
        self._left = identities
        if self._finished is not None:
            return
        self._step()
        if self._left:
            loop = asyncio.get_running_loop()
            self._finished = loop.create_future()
            loop.call_soon(self._go_on)

    def _step(self) -> None:
        some = self._left[-SLICE:]
        del self._left[-SLICE:]
        self._renew(some)
        if not self._left:
            self._done()

    def _go_on(self) -> None:
        assert self._finished is not None
        self._step()
        if self._left:
            asyncio.get_running_loop().call_soon(self._go_on)
        else:
            self._finished.set_result(None)
            self._finished = None

    async def wait(self) -> None:
        """Until everybody has the grants of the last change."""
        while self._finished is not None:
            await asyncio.shield(self._finished)
