"""Topics of several partitions as readers and publishers see them: offsets for each partition.

A topic of one partition is shown with plain offsets, as if partitions did not exist.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from penstock.broker.topic.topics import Topic
from penstock.core.delivery.run import Run
from penstock.core.naming.names import quoted
from penstock.core.position import (
    OFFSET_END,
    AtOffset,
    AtOffsets,
    AtTime,
    Latest,
    Position,
    check_offset_type,
    read_offsets,
)
from penstock.log.interface import SharedLog
from penstock.model.errors import InvalidPosition, OffsetBeyondEnd
from penstock.model.record import Offsets, Place

CATCH_UP_MAX: Final = 100  # logs that ask at the same time how far others are
CATCH_UP_S_MAX: Final = 10.0  # it takes milliseconds


def shown_offsets(offsets: Sequence[int]) -> Offsets:
    """One offset for each partition, as people see them."""
    if len(offsets) == 1:
        return offsets[0]
    return {str(partition): offset for partition, offset in enumerate(offsets)}


async def resolve_all(topic: Topic, position: Position) -> list[int]:
    """The offset in each part that a position means in this topic, now."""
    check_position(topic, position)
    return [await resolve(part, position) for part in topic.parts]


async def resolve(topic: Topic, position: Position) -> int:
    """The offset a position means in this part of a topic, now."""
    first, end = topic.log.bounds()
    if isinstance(position, AtOffset):
        check_offset(topic, position.offset)
        return position.offset
    if isinstance(position, AtOffsets):
        offset = dict(position.offsets)[topic.partition]
        check_offset(topic, offset)
        return offset
    if isinstance(position, AtTime):
        return await topic.log.offset_at(position.timestamp_us)
    return end if isinstance(position, Latest) else first


def check_offset(topic: Topic, offset: int) -> None:
    """An offset beyond the end is refused with the bounds in the message."""
    first, end = topic.log.bounds()
    if not 0 <= check_offset_type(offset) <= end:
        kind = OffsetBeyondEnd if offset > end else InvalidPosition
        raise kind(
            f"offset {offset!r} is not in {_named(topic)}: use an offset from "
            f"{first} to {end}, which is the next to be written"
        )


def _named(topic: Topic) -> str:
    told = f"topic {quoted(topic.declared)}"
    return told if len(topic.parts) == 1 else f"partition {topic.partition} of {told}"


def check_position(topic: Topic, position: Position) -> None:
    """InvalidPosition unless it says something of every partition, and of no other one."""
    count = len(topic.parts)
    if isinstance(position, AtOffset) and count > 1:
        raise InvalidPosition(
            f"an offset alone, {position.offset}, is not a position in topic "
            f"{quoted(topic.declared)}: it has {count} partitions; {_way_out(count)}"
        )
    if isinstance(position, AtOffsets):
        given = {partition for partition, _ in position.offsets}
        check_known(topic, given)
        missing = [number for number in range(count) if number not in given]
        if missing:
            raise OffsetBeyondEnd(
                f"the position has no offset for partition {missing[0]} of topic "
                f"{quoted(topic.declared)}, which has {count}: {_way_out(count)}"
            )


def partition_offsets(topic: Topic, offsets: Offsets) -> dict[int, int]:
    """Offsets of some partitions as somebody gives them; InvalidPosition."""
    if isinstance(offsets, Mapping):
        given = dict(read_offsets(offsets))
        check_known(topic, set(given))
        return given
    check_position(topic, AtOffset(check_offset_type(offsets)))
    return {0: offsets}


def get_part(topic: Topic, partition: int) -> Topic:
    """The part with this number; OffsetBeyondEnd, an InvalidPosition, if there is none."""
    if isinstance(partition, bool) or not isinstance(partition, int) or partition < 0:
        raise InvalidPosition(
            f"partition {quoted(partition)} is not a whole number: partitions are numbered from 0"
        )
    check_known(topic, {partition})
    return topic.parts[partition]


def check_known(topic: Topic, partitions: set[int]) -> None:
    """OffsetBeyondEnd, an InvalidPosition, for partitions that the topic does not have."""
    count = len(topic.parts)
    unknown = [number for number in partitions if number >= count]
    if unknown:
        raise OffsetBeyondEnd(
            f"topic {quoted(topic.declared)} has no partition {min(unknown)}: there are 0 to "
            f"{count - 1}"
            if count > 1
            else f"topic {quoted(topic.declared)} has no partition {min(unknown)}: it has only 0"
        )


def _way_out(count: int) -> str:
    shown = ", ".join(f'"{number}": …' for number in range(min(count, 2)))
    more = ", …" if count > 2 else ""
    return (
        f"give an offset for each, as in {{{shown}{more}}}, or earliest, latest, a time, or a "
        "duration back such as -24h"
    )


def runs_by_part(topic: Topic, runs: Sequence[Run]) -> list[tuple[Topic, list[Run]]]:
    """Runs in their order, each with those of its part."""
    found: dict[int, tuple[Topic, list[Run]]] = {}
    for run in runs:
        part = topic.part_of(run.name)
        found.setdefault(part.id, (part, []))[1].append(run)
    return list(found.values())


def places_of(topic: Topic, runs: Sequence[Run], firsts: dict[int, int]) -> list[tuple[int, int]]:
    """Where the messages of all runs lie; `firsts` has the first offset by part id."""
    ahead = dict(firsts)
    places: list[tuple[int, int]] = []
    for run in runs:
        part = topic.part_of(run.name)
        first = ahead[part.id]
        places += [(part.partition, offset) for offset in range(first, first + run.count)]
        ahead[part.id] = first + run.count
    return places


def place_of(part: Topic, offset: int) -> Place:
    """What a publisher is told of its message."""
    return offset if len(part.parts) == 1 else (part.partition, offset)


async def catch_up(parts: Sequence[Topic]) -> None:
    """Suspends until all is here that other nodes had stored before this call.

    A log that cannot be followed for CATCH_UP_S_MAX takes no records either: it holds up nobody.
    """
    logs = [part.log for part in parts if isinstance(part.log, SharedLog)]
    for at in range(0, len(logs), CATCH_UP_MAX):
        await asyncio.gather(*[_catch_up(log) for log in logs[at : at + CATCH_UP_MAX]])


async def _catch_up(log: SharedLog) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(log.wait_followed(OFFSET_END), CATCH_UP_S_MAX)


async def wait_past_any(parts: Sequence[Topic], offsets: Sequence[int]) -> None:
    """Suspends until the record at one of the offsets, each of its part, is visible."""
    if len(parts) == 1:
        await parts[0].log.wait_past(offsets[0])
        return
    pairs = zip(parts, offsets, strict=True)
    waits = [asyncio.ensure_future(part.log.wait_past(offset)) for part, offset in pairs]
    try:
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for one in done:
            one.result()  # a log may be closed
    finally:
        for one in waits:
            one.cancel()
