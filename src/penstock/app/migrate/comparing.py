"""Are the records in Kafka those of the data directory, offset by offset?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Any, Final

from penstock.app.migrate.source import SourceTopic
from penstock.log.format.batch import Batch
from penstock.log.format.marks import NO_RECORD
from penstock.log.kafka.copied import CopiedPartition

MARKS: Final = "marks, which keep messages from being stored twice"


async def find_difference(
    topic: SourceTopic, copied: CopiedPartition, tell: Callable[[int], None]
) -> str:
    """What differs first, for people; empty if every offset has the same record with all fields."""
    if (copied.first, copied.end) != (topic.first, topic.end):
        return (
            f"Kafka has offsets from {copied.first} up to {copied.end}, and the data directory has "
            f"{topic.first} up to {topic.end}"
        )
    stored, there = _Marks(), _Marks()
    source = _Source(topic, stored)
    at = topic.first
    async for batch in copied.read(topic.first, topic.end):
        there.add(batch)
        last = batch.base_offset + batch.header.count
        while at < last:
            other = source.holding(at)
            end = min(last, other.end_offset)
            if _columns(batch, at, end) != _columns(other, at, end):
                return f"the record at offset {_differing(batch, other, at, end)} differs"
            tell(end - at)
            at = end
        if batch.end_offset != at:
            break  # offsets without records
    if at != topic.end:
        return f"Kafka has no record at offset {at}"
    source.finish()
    if topic.end > topic.first and stored.digest != there.digest:
        return f"the {MARKS}, differ"
    return ""


def _columns(batch: Batch, start: int, end: int) -> list[Any]:
    """All fields of the records with offsets in [start, end)."""
    first, last = start - batch.base_offset, end - batch.base_offset
    return [
        batch.timestamps(first, last),
        batch.names(first, last),
        batch.payloads(first, last),
        batch.publishers(first, last),
        batch.flags(first, last),
        batch.expiries(first, last),
        batch.record_headers(first, last),
    ]


def _differing(batch: Batch, other: Batch, start: int, end: int) -> int:
    offsets = range(start, end)
    return next(at for at in offsets if _columns(batch, at, at + 1) != _columns(other, at, at + 1))


class _Source:
    """The batches of the data directory in order, their marks counted on the way."""

    def __init__(self, topic: SourceTopic, marks: _Marks) -> None:
        self._batches: Iterator[Batch] = topic.batches(topic.first)
        self._marks = marks
        self._current: Batch | None = None

    def holding(self, offset: int) -> Batch:
        """The batch with this offset; offsets are asked for in order."""
        while self._current is None or self._current.end_offset <= offset:
            self._current = next(self._batches)
            self._marks.add(self._current)
        return self._current

    def finish(self) -> None:
        for batch in self._batches:
            self._marks.add(batch)


class _Marks:
    """All marks of a log and the records that they guard, in any order."""

    def __init__(self) -> None:
        self.digest = 0

    def add(self, batch: Batch) -> None:
        if not batch.header.marks_length:
            return
        for mark in batch.marks():
            offset = -1 if mark.index == NO_RECORD else batch.base_offset + mark.index
            text = repr((mark.kind, mark.key, offset)).encode()
            hashed = blake2b(text, digest_size=16).digest()
            self.digest = (self.digest + int.from_bytes(hashed, "big")) % 2**128
