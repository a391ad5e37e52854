"""Is memory that was freed given back, and not looked for where it stays in pieces?"""

from __future__ import annotations

import gc

from penstock.app.heap import (
    FREE_BYTES_MIN,
    NEW_OBJECTS_MIN,
    GlibcHeap,
    Trimming,
    collect_less_often,
)
from penstock.model.limits import MIB


class PiecesHeap:
    """A heap of which some bytes stay free inside pages that are in use."""

    def __init__(self) -> None:
        self.pieces_bytes = 0
        self.whole_bytes = 0

    def free_bytes(self) -> int:
        return self.pieces_bytes + self.whole_bytes

    def trim(self) -> None:
        self.whole_bytes = 0


def test_a_heap_is_trimmed_when_much_was_freed_since_the_last_time() -> None:
    heap = PiecesHeap()
    trimming = Trimming(heap)
    heap.whole_bytes = FREE_BYTES_MIN - 1
    assert not trimming.look()
    heap.whole_bytes, heap.pieces_bytes = FREE_BYTES_MIN, 100 * MIB
    assert trimming.look()
    assert not trimming.look(), "what is left is in pieces"
    heap.pieces_bytes = 50 * MIB  # some of them were used
    assert not trimming.look()
    heap.whole_bytes = FREE_BYTES_MIN
    assert trimming.look()


def test_the_heap_of_this_process_can_be_asked_and_trimmed() -> None:
    heap = GlibcHeap()
    assert 0 < heap.free_bytes() < 1 << 40
    heap.trim()


def test_cycles_that_a_serving_process_drops_are_still_collected() -> None:
    usual = gc.get_threshold()
    try:
        collect_less_often()
        assert gc.get_freeze_count() > 0
        collections = gc.get_stats()[0]["collections"]
        for _ in range(2 * NEW_OBJECTS_MIN):
            cycle: list[object] = []
            cycle.append(cycle)
        assert 1 <= gc.get_stats()[0]["collections"] - collections <= 3
    finally:
        gc.set_threshold(*usual)
        gc.unfreeze()
