"""Whether a client is read, and what it sent that has to wait.

A client is not read while something it asked for has to be done first, while too much of it waits
for the disk, or while it does not take its answers. Each is a reason of its own: reading goes on
when none is left.
Compiled by mypyc; the same source runs interpreted.
"""

from __future__ import annotations

from typing import Final

from penstock.doors.budget import Budget
from penstock.doors.link import Link
from penstock.doors.mqtt.arrive.early_bytes import EarlyBytes
from penstock.model.limits import KIB
from penstock.mqtt.scanner import Chunk

EARLY_BYTES_MAX: Final = 64 * KIB  # read ahead from a client that has to wait


class Gate:
    """Of one connection."""

    __slots__ = (
        "_held_early",
        "_link",
        "early",
        "holds",
        "is_closed",
        "is_deaf",
        "is_paused",
        "paused_at",
    )

    def __init__(self, link: Link, strangers: Budget) -> None:
        self._link = link
        self._held_early: EarlyBytes | None = EarlyBytes(strangers)  # None: the client was let in
        self.early = bytearray()  # came before the CONNACK was sent, or during a pause
        self.is_closed = False  # the connection is over
        self.is_deaf = False  # it does not take its answers
        self.holds = 0  # how often it is held: too much of it waits, or it came too fast
        self.is_paused = False  # what the client asked for has to be done before the next thing
        self.paused_at: tuple[Chunk, int] | None = None  # where to go on after a pause

    def look(self) -> None:
        """Read on if there is nothing to wait for."""
        if not self.is_closed:
            waits = self.is_paused or self.holds or self.is_deaf
            self._link.want_read(not waits and len(self.early) <= EARLY_BYTES_MAX)

    def pause(self, chunk: Chunk | None = None, at: int = 0) -> None:
        """Take nothing from item `at` of the chunk on; by default from the next item on."""
        if chunk is not None:
            self.paused_at = (chunk, at)
        self.is_paused = True
        self.look()

    def hold(self) -> None:
        """Do not read until `unhold`, as often as it was held."""
        self.holds += 1
        self.look()

    def unhold(self) -> None:
        self.holds -= 1
        self.look()

    def keep_early(self, data: bytes) -> None:
        self.early.extend(data)
        self.look()

    def take_early(self) -> bytes:
        early, self.early = bytes(self.early), bytearray()
        self.look()
        return early

    def may_hold(self, taken: int, incomplete: int) -> bool:
        """Before it is let in a client may hold little: what was taken now, and what waits."""
        held = self._held_early
        if held is None or self.is_closed:
            return True
        return held.hold(taken, incomplete + len(self.early))

    def let_in(self) -> None:
        """The client is known: what it holds counts no longer."""
        held, self._held_early = self._held_early, None
        if held is not None:
            held.close()

    def close(self) -> None:
        self.is_closed = True
        self.let_in()
