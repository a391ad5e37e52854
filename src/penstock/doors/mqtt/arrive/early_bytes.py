"""What is held for MQTT clients that are not let in yet: little for one, bounded for all.

A CONNECT is small. What a stranger holds beyond HELD_FREE_BYTES counts against the budget that all
strangers have in common, so that an ordinary client comes in whatever the others hold.
"""

from __future__ import annotations

from typing import Final

from penstock.doors.budget import Budget, Share
from penstock.model.limits import KIB

# Client id, name and payload of the will, user name, password, and twice properties: MQTT's own
# bound for each of the fields is 64 KiB.
CONNECT_BYTES_MAX: Final = 7 * 64 * KIB + 64
HELD_FREE_BYTES: Final = 4 * KIB  # of each: an ordinary CONNECT


class EarlyBytes:
    """The bytes that one connection holds before it is let in."""

    __slots__ = ("_share", "_taken")

    def __init__(self, budget: Budget) -> None:
        self._share = Share(budget)
        self._taken = 0

    def hold(self, taken: int, waiting: int) -> bool:
        """So much was taken just now, and so much waits; False if there is no room for it."""
        self._taken += taken  # until it is let in: its login may take a while
        counted = max(0, self._taken + waiting - HELD_FREE_BYTES)
        share = self._share
        if counted <= share.bytes:
            share.give_back(share.bytes - counted)
            return True
        return share.take(counted - share.bytes)

    def close(self) -> None:
        """The client is let in, or gone."""
        self._share.close()
