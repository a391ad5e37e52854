"""Descriptors of the process: connections may use all but a reserve, which files and the log need.

The system gives a new descriptor the lowest free number. So a connection whose number is in the
reserve tells that all others are in use, without counting. Then a connection that has not logged in
is closed for it, or one that lingers; if there is none, the newcomer is refused. Without this a
crowd of connections would keep the broker from opening segments, and topics from being created.
"""

from __future__ import annotations

import errno
import resource
from typing import Final

from penstock.doors.lingering import Lingering
from penstock.doors.strangers import Strangers

RESERVE_PART: Final = 8  # of the limit, the reserve takes one part in so many
RESERVE_MAX: Final = 1_024  # segments that are opened, read, sealed; files of new topics
LIMIT_MAX: Final = 1 << 20  # more is not asked for where the system has no limit

# accept failed for want of something that comes back by itself.
SCARCE: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


class Descriptors:
    """Shared by all doors."""

    def __init__(self) -> None:
        self._strangers: list[Strangers] = []
        self._lingering: list[Lingering] = []

    def watch(self, strangers: Strangers, lingering: Lingering | None = None) -> None:
        """These give way when descriptors are short."""
        self._strangers.append(strangers)
        if lingering is not None:
            self._lingering.append(lingering)

    def is_reserved(self, fd: int, *, may_use_half: bool) -> bool:
        """Whether a new connection took this one from the reserve, or from the half it may not."""
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]  # operators may change it
        if limit == resource.RLIM_INFINITY:
            return False
        reserve = min(limit // RESERVE_PART, RESERVE_MAX)
        return fd >= limit - (reserve // 2 if may_use_half else reserve)

    def make_room(self) -> bool:
        """Close a connection that nobody misses; False if there is none."""
        if self._strangers and max(self._strangers, key=len).evict():
            return True
        return any(lingering.cut_oldest() for lingering in self._lingering)


def raise_limit() -> None:
    """Let this process open as many descriptors as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = LIMIT_MAX if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
