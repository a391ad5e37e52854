"""What waits to be sent because clients do not read, bounded for one client and for all together.

The more all of them leave unread, the less one may: an eighth of what is free. So clients that do
not read share what there is, and whoever reads always has room. A connection counts here only what
its socket did not take, so one that is read costs nothing. A large message is in memory once for
all its readers, and counts once. Where large messages exceed the bound nevertheless, the door
closes the connections that took nothing for longest.
Compiled by mypyc; the same source runs interpreted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.model.limits import KIB, MIB

OUT_BYTES_MAX: Final = 8 * MIB  # waiting to be sent to one client; then QoS 0 is dropped
OUT_BYTES_ROOM: Final = 1 * MIB  # above it nothing is sent that can come from the log later
OUT_BYTES_MIN: Final = 16 * KIB  # of one client, however little is free
UNSENT_BYTES_MAX: Final = 128 * MIB  # of all clients that do not read
FREE_PER_CLIENT: Final = 8  # one may take this part of what is free
LARGE_BYTES: Final = 64 * KIB  # a message that is not copied for each of its readers


class Unsent:
    """Of all connections of a door."""

    __slots__ = ("_bytes_max", "_on_exceeded", "_readers", "_stuck", "bytes", "most", "room")

    def __init__(
        self, bytes_max: int = UNSENT_BYTES_MAX, on_exceeded: Callable[[], None] | None = None
    ) -> None:
        self._bytes_max = bytes_max
        self._on_exceeded = on_exceeded
        self._readers: dict[int, int] = {}  # of large messages, by their identity
        self._stuck = 0  # sockets so far that did not take all that was sent
        self.bytes = 0
        self.most = OUT_BYTES_MAX  # that may wait for one client
        self.room = OUT_BYTES_ROOM  # below it a client is sent what could come later, too

    def count(self, change: int) -> None:
        """So much more waits, or less."""
        self.bytes += change
        share = (self._bytes_max - self.bytes) // FREE_PER_CLIENT
        self.most = min(OUT_BYTES_MAX, max(OUT_BYTES_MIN, share))
        self.room = min(OUT_BYTES_ROOM, self.most)
        if change > 0 and self.is_exceeded and self._on_exceeded is not None:
            self._on_exceeded()

    def next_stuck(self) -> int:
        """The place of a connection among those that are stuck; seconds would make many equal."""
        self._stuck += 1
        return self._stuck

    @property
    def is_exceeded(self) -> bool:
        return self.bytes > self._bytes_max

    @property
    def is_crowded(self) -> bool:
        return self.bytes > self._bytes_max // 2

    def add_reader(self, message: bytes) -> None:
        """A large message waits for one more connection, which keeps it."""
        readers = self._readers.get(id(message), 0)
        self._readers[id(message)] = readers + 1
        if not readers:
            self.count(len(message))

    def drop_reader(self, message: bytes) -> None:
        """It was sent, or the connection is over."""
        readers = self._readers.pop(id(message)) - 1
        if readers:
            self._readers[id(message)] = readers
        else:
            self.count(-len(message))


class Backlog:
    """What waits for one connection: large messages, in the order of sending, and other bytes."""

    __slots__ = ("_waiting", "counted", "large_bytes", "unsent")

    def __init__(self, unsent: Unsent) -> None:
        self.unsent = unsent
        self._waiting: list[bytes] = []
        self.large_bytes = 0
        self.counted = 0  # in `unsent`, besides large messages

    def add(self, message: bytes) -> None:
        self._waiting.append(message)
        self.large_bytes += len(message)
        self.unsent.add_reader(message)

    def sent(self, message: object) -> None:
        """The socket took all of this; nothing happens unless it is the first of them."""
        if self._waiting and self._waiting[0] is message:
            first = self._waiting.pop(0)
            self.large_bytes -= len(first)
            self.unsent.drop_reader(first)

    def count(self, out_bytes: int) -> None:
        """So many bytes wait, with large messages: the socket did not take them."""
        waiting = max(out_bytes - self.large_bytes, 0)
        self.unsent.count(waiting - self.counted)
        self.counted = waiting

    def close(self) -> None:
        """The connection is over, and nothing waits for it."""
        for message in self._waiting:
            self.unsent.drop_reader(message)
        self._waiting = []
        self.large_bytes = 0
        self.count(0)


def take_write(out: list[bytes]) -> bytes:
    """Remove from `out` what is written next: a large message alone, as it is; else up to one."""
    if len(out[0]) >= LARGE_BYTES:
        return out.pop(0)
    end = 1
    while end < len(out) and len(out[end]) < LARGE_BYTES:
        end += 1
    data = b"".join(out[:end])
    del out[:end]
    return data


def joined(out: list[bytes]) -> list[bytes]:
    """The same bytes in few pieces; large messages stay as they are."""
    pieces: list[bytes] = []
    while out:
        pieces.append(take_write(out))
    return pieces
