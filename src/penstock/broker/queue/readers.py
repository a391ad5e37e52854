"""Whether this process serves the consumers, groups and idempotency keys of a topic.

A broker alone always does. Of several nodes one does at a time, because positions and leases are in
its memory; the others know which one it is, and pass requests on to it. The topics of a tenant are
divided into SLOTS by their names, and each slot is served by one node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, Final, NamedTuple, TypeVar
from zlib import crc32

from penstock.core.naming.names import topic_key
from penstock.model.errors import UnavailableError

T = TypeVar("T")
SLOTS: Final = 16  # of a tenant: so many nodes can serve its consumers and groups


def slot_of(topic: str) -> int:
    """By the name of a topic, which need not exist; nodes of all versions agree on it."""
    return crc32(topic_key(topic).encode("utf-8", "surrogatepass")) % SLOTS


class ReaderPlace(NamedTuple):
    """The node that serves them."""

    inc: int
    name: str
    url: str  # of its HTTP; empty: it has none


class Elsewhere(UnavailableError):
    """Another node has to be asked; nothing was done here."""


class ReaderSlots:
    """All slots of a tenant."""

    def __init__(self) -> None:
        self.slots = [Readers() for _ in range(SLOTS)]

    def of(self, topic: str) -> Readers:
        """Those of the slot that a topic is in."""
        return self.slots[slot_of(topic)]


class Readers:
    """Those of one slot; used on the event loop."""

    def __init__(self) -> None:
        self.elsewhere = ""  # why they are not served here; empty: they are
        self.place: ReaderPlace | None = None  # where else; None: not known
        self._count = 0  # requests under way
        self._idle: asyncio.Future[None] | None = None
        self._leaving: asyncio.Future[None] | None = None
        self._moved: asyncio.Future[None] | None = None

    @property
    def is_here(self) -> bool:
        return not self.elsewhere

    @property
    def is_leaving(self) -> bool:
        """Requests that wait for something have to end."""
        return self._leaving is not None and self._leaving.done()

    def check(self) -> None:
        """Elsewhere if another node has to be asked."""
        if self.elsewhere:
            raise Elsewhere(self.elsewhere)

    async def serve(self, work: Coroutine[Any, Any, T]) -> T:
        """Do what uses consumers or groups; they stay here until it is done."""
        self._count += 1
        try:
            return await work
        finally:
            self._count -= 1
            if not self._count and self._idle is not None and not self._idle.done():
                self._idle.set_result(None)

    async def until_leaving(self, something: Awaitable[Any]) -> None:
        """Suspends until it happens, or until another node is about to serve them."""
        if self._leaving is None:
            self._leaving = asyncio.get_running_loop().create_future()
        waited = asyncio.ensure_future(something)
        try:
            await asyncio.wait({waited, self._leaving}, return_when=asyncio.FIRST_COMPLETED)
            if waited.done():
                waited.result()
        finally:
            waited.cancel()

    # Moving

    async def leave(self, why: str) -> None:
        """Serve nobody from now on; on return nothing is under way."""
        self.elsewhere, self.place = why, None
        if self._leaving is None:
            self._leaving = asyncio.get_running_loop().create_future()
        if not self._leaving.done():
            self._leaving.set_result(None)
        while self._count:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle
        self._leaving = None

    def found(self, place: ReaderPlace) -> None:
        """This node serves them now."""
        self.elsewhere = f"consumers and groups are served by node {place.name!r}"
        if place != self.place:
            self.place = place
            self._tell_moved()

    def lost(self, why: str) -> None:
        """It is not known who serves them."""
        self.elsewhere, self.place = why, None

    def begin(self) -> None:
        """They are served here from now on."""
        self.elsewhere, self.place = "", None
        self._tell_moved()

    def _tell_moved(self) -> None:
        moved, self._moved = self._moved, None
        if moved is not None:
            moved.set_result(None)

    async def wait_moved(self, wait_s: float) -> None:
        """Suspends until they are served at another place than before, at most so long."""
        if self._moved is None:
            self._moved = asyncio.get_running_loop().create_future()
        await asyncio.wait({self._moved}, timeout=wait_s)
