"""Whose filters records are matched with: plain values, made on the driver, sent to tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Reader:
    """A position and the filters that go with it: a session's plain ones, or one of its feeds."""

    client_id: str
    feed_id: int = 0
    where: str = ""
    # Topic id -> the offset it goes on at; nothing below counts. A topic that is missing does not
    # count at all.
    positions: dict[int, int] | None = None  # None: from the beginning of every topic
    out: frozenset[tuple[int, int]] = frozenset()  # (topic id, offset): it had these already

    @property
    def keeps_qos0(self) -> bool:
        """Do messages of QoS 0 wait for it, too? They do for a feed, which always reads the log."""
        return self.feed_id != 0


class Filter(NamedTuple):
    """One filter of a reader."""

    filter: str
    reader: int  # number of its reader
    qos: int
    no_local: bool
    since: dict[int, int]  # by topic id; a topic that is missing counts from 0


@dataclass(frozen=True, slots=True)
class Readers:
    """All readers of one moment; travels to tasks."""

    key: str  # of this moment, for tasks that have met it before
    readers: list[Reader]
    filters: list[Filter]
    # Ids by declared spelling; the id of a further partition is as much higher as its number.
    topics: dict[str, int]
