"""Batches that were encoded elsewhere and wait for a place in a log.

Their columns and payloads are written as they are; only the header is new. They take turns with
what publishers append, so neither waits for ever.
"""

from __future__ import annotations

from collections import deque

from penstock.log.format import batch_bytes as fmt
from penstock.log.format.batch import Batch
from penstock.log.format.builder import BatchBuilder
from penstock.log.interface import Waiter
from penstock.model.errors import CorruptError


class Placing:
    """The batches that wait, in order."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Batch, Waiter | None]] = deque()
        self.had_last_turn = False

    def add(self, batch: Batch, waiter: Waiter | None, pending: BatchBuilder) -> None:
        if not self.waiting and not pending.is_empty:
            # Readers may have it by the fast lane already: it keeps its place before the batch.
            self.had_last_turn = True
        self.waiting.append((batch, waiter))

    def is_due(self, pending: BatchBuilder) -> bool:
        """Whether the next commit takes one of these, rather than what publishers appended."""
        is_due = bool(self.waiting) and (pending.is_empty or not self.had_last_turn)
        self.had_last_turn = is_due
        return is_due

    def take(self) -> tuple[Batch, Waiter | None]:
        return self.waiting.popleft()

    def give_up(self) -> list[Waiter | None]:
        """Forget all of them; who waited."""
        waiters = [waiter for _, waiter in self.waiting]
        self.waiting.clear()
        return waiters


def check_placeable(batch: Batch) -> None:
    """CorruptError unless a new header is all that the batch needs."""
    if batch.header.flags & (fmt.TIMES | fmt.WIDE_TIMES):
        raise CorruptError("a batch that brings its own times cannot be placed")
    if batch.header.count == 0:
        raise CorruptError("a batch without records cannot be placed")


def place(batch: Batch, epoch: int, base_offset: int, prev_checksum: int, stamp: int) -> None:
    """Give the batch its place: all its records are received now."""
    header = batch.header
    header.epoch = epoch
    batch.move_to(base_offset)
    header.prev_checksum = prev_checksum
    header.base_timestamp = header.last_timestamp = stamp
