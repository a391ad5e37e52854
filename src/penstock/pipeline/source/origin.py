"""Where a query's records come from: the seam between Spark's side and the broker's.

An origin is made on the driver, asked there for what is to be planned, and pickled into tasks,
which only scan. Plans hold offsets, never byte positions, so whatever happens to files between
planning and reading is looked up anew.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

from penstock.core.naming.names import quoted
from penstock.model.errors import Gap
from penstock.model.limits import MIB
from penstock.pipeline.source.offsets import place_key

TASK_BYTES: Final = 128 * MIB  # of files, for one task: what Spark gives one of other files
TASK_RECORDS_MIN: Final = 50_000  # fewer are not worth a task of their own


@dataclass(frozen=True, slots=True)
class TopicState:
    """A partition of a topic as it is now: readable are [first, end)."""

    topic: str  # as declared
    topic_id: int  # of the partition: each has an id of its own
    epoch: int
    first: int
    end: int
    partition: int = 0
    partitions: int = 1  # of the topic

    @property
    def key(self) -> str:
        """What it is called in `Places`."""
        return place_key(self.topic, self.partition)

    @property
    def named(self) -> str:
        """What it is called in messages."""
        told = f"topic {quoted(self.topic)}"
        return told if self.partitions == 1 else f"partition {self.partition} of {told}"


@dataclass(frozen=True, slots=True)
class Range:
    """Records [start, end) of one partition of a topic, in one life of its log."""

    topic: str
    topic_id: int
    epoch: int
    start: int
    end: int
    partition: int = 0


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a query wants of a range: columns, and which records."""

    schema: Any  # pyarrow.Schema: the columns, in this order
    names: str | None = None
    where: str | None = None
    fails_on_loss: bool = True


class Origin(Protocol):
    """The topics of one broker."""

    def states(self, topics: tuple[str, ...], *, missing_ok: bool = False) -> list[TopicState]:
        """The partitions of these topics, or of all; TopicNotFound when one does not exist, unless
        that is all right."""
        ...

    def offset_at(self, topic: TopicState, timestamp_us: int) -> int:
        """The first offset stamped at or after the time; the end if all are older."""
        ...

    def stamp_at(self, topic: TopicState, offset: int) -> int | None:
        """When a record was received (µs since 1970, UTC); None if it is no longer stored."""
        ...

    def clamp(self, topic: TopicState, epoch: int, offset: int) -> int:
        """Where an offset of an earlier epoch stands now."""
        ...

    def cut(self, wanted: Range, pieces_min: int) -> list[Range]:
        """The range in pieces for tasks: as many as make sense, and no fewer than asked for."""
        ...

    def scan(self, piece: Range, wanted: Wanted) -> Iterator[Any]:
        """The records as Arrow batches. Gap when some are gone, unless losses are skipped."""
        ...


DELETED: Final = "the topic was deleted"
LEFT_OUT: Final = "the checkpoint contains the topic, but the query no longer reads it"
MADE_ANEW: Final = "the topic was deleted and created again"
SHRUNK: Final = "the log lost them, or an older copy took its place"
TRIMMED: Final = "retention dropped them before they were read; keep them longer (retention_age)"


def lost(topic: str, start: int, end: int, why: str) -> Gap:
    """The error of a query whose records are gone; all from `start` on, if `end` is not beyond."""
    which = f"offsets {start} to {end - 1}" if end > start else f"all offsets from {start} on"
    return Gap(
        f"topic {quoted(topic)}: {which} are gone: {why}. Set the option failOnDataLoss to false "
        "to continue without them"
    )


def piece_count(records: int, size_bytes: int, pieces_min: int) -> int:
    """Into how many pieces to cut a range: worth their tasks, and no core idle in the last round.

    The cores are this machine's; a cluster with more is told by `minPartitions`.
    """
    cores = os.cpu_count() or 1
    by_size = -(-size_bytes // TASK_BYTES)
    if by_size > cores:
        by_size = -(-by_size // cores) * cores
    by_cores = min(cores, records // TASK_RECORDS_MIN)
    return min(records, max(pieces_min, by_size, by_cores, 1))


def nearest(wanted: str, known: list[str]) -> str:
    """What to add to the error of a topic that does not exist."""
    if not known:
        return ": there are no topics"
    near = difflib.get_close_matches(wanted, known, 1)
    if near:
        return f": did you mean {near[0]!r}?"
    return f"; the topics are {', '.join(sorted(known))}"
