"""What every door does for its connections: serve, flush, work in the background, give up.

A connection is flushed once, at the end of the tick in which it put something. A mistake of our own
costs one client its connection, and nobody else anything.
Compiled by mypyc; the same source runs interpreted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from penstock.broker.tasks import Tasks
from penstock.doors.lingering import READ_BYTES
from penstock.doors.link import Wired
from penstock.doors.selector import GONE, READABLE, WRITABLE, DoorSelector
from penstock.doors.tcp import SocketLink

_READ_BYTES: Final = READ_BYTES  # compiled code finds its own names sooner


class Served(Wired, Protocol):
    """A connection, as its door sees it."""

    def flush(self) -> None:
        """Send what this tick brought."""
        ...

    def break_off(self) -> None:
        """Close at once: we made a mistake."""
        ...


_NOBODY: Final[list[Served]] = []


class Serving:
    """Used on the event loop."""

    def __init__(self, selector: DoorSelector, loop: asyncio.AbstractEventLoop) -> None:
        self.tasks = Tasks(loop)
        self.tick = 0  # seconds, coarse; its door counts them
        self._selector = selector
        self._loop = loop
        self._first_dirty: Served | None = None  # in most ticks there is one, and no list
        self._dirty: list[Served] = []  # the others
        self._asker: Served | None = None  # who sent something last, until it is answered
        self._flush_dirty: Callable[[], None] = self._flush  # made once, not in every tick

    def serve(self, connection: Served, link: SocketLink, events: int) -> None:
        """Something happened on a connection's socket."""
        try:
            if events & WRITABLE:
                connection.on_writable()
                if connection.is_closed:
                    return
            if events & (READABLE | GONE):
                try:
                    data = link.socket.recv(_READ_BYTES)
                except BlockingIOError:
                    return
                except OSError:
                    data = b""
                if data:
                    self._asker = connection
                    connection.receive(data)
                else:
                    connection.close()
        except Exception as mistake:  # else it would end the loop
            self.give_up(connection, mistake)

    def mark_dirty(self, connection: Served) -> None:
        """Flush it at the end of this tick."""
        if self._first_dirty is None:
            self._first_dirty = connection
            self._selector.flushing.append(self._flush_dirty)
        else:
            self._dirty.append(connection)

    def _flush(self) -> None:
        """The last ones first: behind what a commit delivers come those who wait for it."""
        first, self._first_dirty = self._first_dirty, None
        others = _NOBODY
        if self._dirty:
            others, self._dirty = self._dirty, []
        at = len(others)
        while at >= 0:
            connection = others[at - 1] if at else first
            at -= 1
            assert connection is not None, "only called if something is dirty"
            if connection is self._asker:
                self._asker = None
                self._selector.note_answer()
            try:
                connection.flush()
            except Exception as mistake:
                self.give_up(connection, mistake)

    def call_soon(self, connection: Served) -> None:
        """Have it go on with what it has received, once the others have had their turn."""
        self._loop.call_soon(self._go_on, connection)

    def _go_on(self, connection: Served) -> None:
        try:
            if not connection.is_closed:
                connection.receive(b"")
        except Exception as mistake:
            self.give_up(connection, mistake)

    def spawn(self, connection: Served, work: Coroutine[Any, Any, None]) -> None:
        """Go on for a connection in the background."""
        self.tasks.spawn(self._finish(connection, work))

    async def _finish(self, connection: Served, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as mistake:
            self.give_up(connection, mistake)

    def give_up(self, connection: Served, mistake: Exception) -> None:
        self.report("a connection was closed", mistake)
        connection.break_off()

    def report(self, message: str, mistake: Exception) -> None:
        """A mistake of our own, for the log."""
        self._loop.call_exception_handler({"message": message, "exception": mistake})
