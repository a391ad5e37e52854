"""The segments of a log as upkeep sees them, those that cannot be read included.

A damaged segment is known by what lies around it: its records are not newer than the segment after
it, and its file is as long as it is. So one damaged file keeps no other from being trimmed or
sealed, and is trimmed itself when its time has come.
"""

from __future__ import annotations

import asyncio
import errno
from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from penstock.core.erasure import Erasure
from penstock.log.files.commit import Workers
from penstock.log.files.segment import Segment, SegmentBody
from penstock.log.files.upkeep.erasing import count_erasable
from penstock.log.retention import SegmentFacts
from penstock.model.errors import CorruptError


class Damage:
    """What was found in closed segments; known until they go, or the log is opened anew."""

    def __init__(self) -> None:
        self._found: dict[Segment, str] = {}

    def note(self, segment: Segment, found: Exception) -> None:
        self._found.setdefault(segment, str(found))

    def forget(self, segment: Segment) -> None:
        self._found.pop(segment, None)

    def __contains__(self, segment: Segment) -> bool:
        return segment in self._found

    @property
    def texts(self) -> list[str]:
        return list(self._found.values())


def is_damage(error: Exception) -> bool:
    """Whether the file is bad, and not the moment: trying again would find the same."""
    return isinstance(error, CorruptError) or (
        isinstance(error, OSError) and error.errno == errno.EIO
    )


async def body_of(segment: Segment, workers: Workers) -> SegmentBody:
    """Headers and index; read where that does not hold up the loop."""
    if segment.is_loaded:
        return segment.body
    return await workers.run(lambda: segment.body)


async def survey(segments: list[Segment], workers: Workers, damage: Damage) -> list[SegmentFacts]:
    """What is known of each segment; the last one is active, and intact."""
    facts: list[SegmentFacts] = []
    next_created_at = 0
    for segment in reversed(segments):
        body = await _body_if_intact(segment, workers, damage)
        if body is not None:
            next_created_at = body.header.created_at
            length, last_timestamp = body.length, body.last_timestamp
        else:
            length = await workers.run(partial(_file_bytes, segment))
            last_timestamp = next_created_at
        facts.append(SegmentFacts(segment.base_offset, segment.end_offset, length, last_timestamp))
    facts.reverse()
    return facts


async def segment_at(
    segments: list[Segment], timestamp: int, workers: Workers, damage: Damage
) -> Segment:
    """The first segment whose newest record is not before the time, or the last one."""
    low, high = 0, len(segments) - 1
    while low < high:
        middle = (low + high) // 2
        intact = middle  # of damaged ones the next that is intact tells the time
        while (body := await _body_if_intact(segments[intact], workers, damage)) is None:
            intact += 1
        newest = body.last_timestamp if intact == middle else body.header.created_at - 1
        if newest < timestamp:
            low = middle + 1
        else:
            high = middle
    return segments[low]


async def first_after(
    segments: list[Segment], epoch: int, workers: Workers, damage: Damage
) -> Segment | None:
    """The first segment of a newer epoch that is intact."""
    for segment in segments:
        body = await _body_if_intact(segment, workers, damage)
        if body is not None and body.header.epoch > epoch:
            return segment
    return None


async def seal_oldest(segments: list[Segment], workers: Workers, damage: Damage) -> Segment | None:
    """Put the sealed form of one segment, if one is closed and not sealed, in its place.

    What is damaged stays as it is. Returns the segment that was replaced.
    """
    for at, segment in enumerate(segments[:-1]):
        if segment in damage:
            continue
        body = await _body_if_intact(segment, workers, damage)
        if body is None or body.header.is_sealed:
            continue
        try:
            segments[at] = await workers.seal(segment)
        except (CorruptError, OSError) as found:
            if not is_damage(found):
                raise
            damage.note(segment, found)
        else:
            return segment
    return None


async def erase_all(
    segments: Callable[[], list[Segment]],
    turn: asyncio.Lock,
    forget: Callable[[Segment], None],
    erasure: Erasure,
    workers: Workers,
    damage: Damage,
    *,
    dry_run: bool,
) -> int:
    """Put every closed segment without these records in its place; how many records there were.

    The active one is only counted. Readers, sealing and retention go on between two segments; all
    that is not damaged is erased before CorruptError names what is.
    """
    count = offset = 0
    damaged = []
    while offset < erasure.end:
        async with turn:
            now = segments()
            at = max(bisect_right(now, offset, key=lambda one: one.base_offset) - 1, 0)
            segment = now[at]
            offset = segment.end_offset
            if segment.base_offset >= erasure.end:
                break
            try:
                if at == len(now) - 1:
                    found = await workers.run(partial(count_erasable, segment, erasure))
                else:
                    now[at], found = await workers.erase(segment, erasure, dry_run=dry_run)
            except (CorruptError, OSError) as broken:
                if not is_damage(broken):
                    raise
                damage.note(segment, broken)
                damaged.append(str(broken))
            else:
                count += found
                forget(segment)
    if damaged:
        raise CorruptError(f"damaged segments cannot be erased: {'; '.join(damaged)}")
    return count


async def sealed_after(
    segments: list[Segment], offset: int, workers: Workers, damage: Damage
) -> list[Segment]:
    """The sealed segments with records at or behind `offset`, up to the first that is not sealed.

    A damaged one counts as sealed, so that whoever reads it says what is wrong.
    """
    found = []
    for segment in segments:
        body = await _body_if_intact(segment, workers, damage)
        if body is not None and not body.header.is_sealed:
            break
        if segment.end_offset > offset:
            found.append(segment)
    return found


def up_to_bytes(segments: list[Segment], size: int) -> list[Segment]:
    """The first segments that together have this size, or all of them."""
    total = 0
    for count, segment in enumerate(segments, 1):
        total += segment.body.length
        if total >= size:
            return segments[:count]
    return segments


async def _body_if_intact(segment: Segment, workers: Workers, damage: Damage) -> SegmentBody | None:
    """None for a segment that is damaged; it is not looked at a second time."""
    if not segment.is_loaded and segment in damage:
        return None
    try:
        return await body_of(segment, workers)
    except (CorruptError, OSError) as found:
        if not is_damage(found):
            raise
        damage.note(segment, found)
        return None


def _file_bytes(segment: Segment) -> int:
    with suppress(CorruptError, OSError):  # gone: it takes no space
        file = segment.open_file()
        try:
            return file.size()
        finally:
            file.close()
    return 0


def remove_segment(segment: Segment) -> None:
    """One at a time and each synced: power loss never leaves a hole between segments."""
    with suppress(FileNotFoundError):  # the last attempt reached the sync
        segment.disk.remove(segment.path)
    segment.disk.sync_dir(segment.path.parent)
