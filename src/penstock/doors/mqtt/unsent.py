"""What waits to be sent because clients do not read, bounded for one client and for all together.

The more all of them leave unread, the less one may: an eighth of what is free. So clients that do
not read share what there is, and whoever reads always has room. A connection counts here only what
its socket did not take, so one that is read costs nothing.
Compiled by mypyc; the same source runs interpreted.
"""

from __future__ import annotations

from typing import Final

from penstock.model.limits import KIB, MIB

OUT_BYTES_MAX: Final = 8 * MIB  # waiting to be sent to one client; then QoS 0 is dropped
OUT_BYTES_ROOM: Final = 1 * MIB  # above it nothing is sent that can come from the log later
OUT_BYTES_MIN: Final = 16 * KIB  # of one client, however little is free
UNSENT_BYTES_MAX: Final = 128 * MIB  # of all clients that do not read
FREE_PER_CLIENT: Final = 8  # one may take this part of what is free


class Unsent:
    """Of all connections of a door."""

    __slots__ = ("_bytes_max", "bytes", "most", "room")

    def __init__(self, bytes_max: int = UNSENT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self.bytes = 0
        self.most = OUT_BYTES_MAX  # that may wait for one client
        self.room = OUT_BYTES_ROOM  # below it a client is sent what could come later, too

    def count(self, change: int) -> None:
        """So much more waits, or less."""
        self.bytes += change
        share = (self._bytes_max - self.bytes) // FREE_PER_CLIENT
        self.most = min(OUT_BYTES_MAX, max(OUT_BYTES_MIN, share))
        self.room = min(OUT_BYTES_ROOM, self.most)
