"""Which segments retention lets go: whole ones, oldest first, never the active one. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """What retention needs to know of a segment."""

    base_offset: int
    end_offset: int
    bytes: int
    last_timestamp: int  # µs; of its newest record

    def is_expired(self, before_us: int | None) -> bool:
        return before_us is not None and self.last_timestamp < before_us


def first_to_keep(
    segments: Sequence[SegmentFacts], before_us: int | None, bytes_max: int | None
) -> int:
    """The number of segments to drop from the front.

    A segment goes when all its records are older than `before_us`, or when the ones after it
    already hold `bytes_max`. A stamp in the future is never older than anything.
    """
    drop = 0
    while drop < len(segments) - 1 and segments[drop].is_expired(before_us):
        drop += 1
    if bytes_max is not None:
        kept = sum(segment.bytes for segment in segments[drop:])
        while drop < len(segments) - 1 and kept - segments[drop].bytes >= bytes_max:
            kept -= segments[drop].bytes
            drop += 1
    return drop
