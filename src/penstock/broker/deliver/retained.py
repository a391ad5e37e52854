"""Retained messages: the newest of each name, for later subscribers.

A view over the logs: it follows the commits, and the checkpoint saves it together with the levels
it has seen. After a crash the logs are read from there, so it is never older or newer than they.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Final

from penstock.broker.quotas import Quotas
from penstock.catalog.retained import RetainedRow
from penstock.catalog.sessions import Checkpoint
from penstock.core.nametree import NameTree
from penstock.core.quotas import RETAINED, RETAINED_BYTES
from penstock.core.run import Run
from penstock.log.format.batch import Batch
from penstock.model.errors import QuotaExceeded
from penstock.model.record import RETAIN
from penstock.model.timeline import Timeline

ROW_BYTES: Final = 768  # a message and its place in the tree, payload and name aside; measured
TERMS_SPARE: Final = 1_000  # terms of messages that were replaced since, before they are cleared


class Retained:
    """The newest retained message of each name. An empty payload deletes, and so does time."""

    def __init__(self, clock: Timeline) -> None:
        self._clock = clock
        self.bytes = 0  # about how much memory they take
        self.payload_bytes = 0  # of them
        self._messages: dict[str, RetainedRow] = {}
        self._names = NameTree()
        self._changed: set[str] = set()  # since the last checkpoint was taken
        self._taken: set[str] = set()  # by the one that is being saved
        self._terms: list[tuple[int, str]] = []  # a heap of (until when, name); some are outdated

    def __len__(self) -> int:
        return len(self._messages)

    def load(self, rows: list[RetainedRow]) -> None:
        for row in rows:
            self._put(row)

    def follow(self, topic_id: int, batch: Batch) -> None:
        """Take over what a committed batch retains."""
        h = batch.header
        if batch.plan.flags < 0 and not h.record_flags & RETAIN:
            return
        for record in batch.records("", h.base_offset, h.end_offset):
            if not record.retain:
                continue
            self._changed.add(record.name)
            if not record.payload:
                if record.name in self._messages:
                    self._remove(record.name)
                continue
            self._put(
                RetainedRow(
                    record.name,
                    topic_id,
                    record.offset,
                    record.timestamp,
                    record.expires_at or 0,
                    record.qos,
                    record.kind,
                    record.publisher,
                    record.headers,
                    record.payload,
                )
            )

    def exceeded(self, quotas: Quotas, run: Run) -> QuotaExceeded | None:
        """Why a run may not be retained; None if there is room for it, or it deletes."""
        size = run.lengths[-1]
        if not size:
            return None
        try:
            if run.name not in self._messages:
                quotas.check(RETAINED, len(self._messages))
            quotas.check(RETAINED_BYTES, self.payload_bytes, size)
        except QuotaExceeded as exceeded:
            return exceeded
        return None

    def _put(self, row: RetainedRow) -> None:
        before = self._messages.get(row.name)
        if before is None:
            self._names.add(row.name)
        else:
            self.bytes -= _size(before)
            self.payload_bytes -= len(before.payload)
        self._messages[row.name] = row
        self.bytes += _size(row)
        self.payload_bytes += len(row.payload)
        if row.expires_at:
            heappush(self._terms, (self._until_us(row), row.name))
            if len(self._terms) > 2 * len(self._messages) + TERMS_SPARE:
                rows = self._messages.values()
                self._terms = [(self._until_us(one), one.name) for one in rows if one.expires_at]
                heapify(self._terms)

    def _until_us(self, row: RetainedRow) -> int:
        return self._clock.until_us(row.timestamp, row.expires_at)

    def _is_expired(self, row: RetainedRow) -> bool:
        return row.expires_at != 0 and self._until_us(row) <= self._clock.steady_us()

    def _remove(self, name: str) -> None:
        row = self._messages.pop(name)
        self.bytes -= _size(row)
        self.payload_bytes -= len(row.payload)
        self._names.remove(name)

    def expire(self) -> None:
        """Forget what has expired; the next checkpoint removes it from the catalog too."""
        terms, now_us = self._terms, self._clock.steady_us()
        while terms and terms[0][0] <= now_us:
            _, name = heappop(terms)
            row = self._messages.get(name)
            if row is not None and self._is_expired(row):
                self._remove(name)
                self._changed.add(name)

    def get(self, name: str) -> RetainedRow | None:
        """The retained message of a name, unless it has expired."""
        row = self._messages.get(name)
        return None if row is None or self._is_expired(row) else row

    def matching(self, filter: str) -> Iterator[str]:
        """Names with a retained message that a filter matches; lazy, so it can be done in parts."""
        return self._names.matching(filter)

    def forget_topic(self, topic_id: int) -> None:
        """The topic is gone and its retained messages with it."""
        for name in [row.name for row in self._messages.values() if row.topic_id == topic_id]:
            self._remove(name)
            self._changed.add(name)

    def take_changes(self, point: Checkpoint) -> bool:
        self.expire()
        self._taken, self._changed = self._changed, set()
        for name in self._taken:
            row = self._messages.get(name)
            if row is not None:
                point.retained.append(row)
            else:
                point.forgotten.append(name)
        return bool(self._taken)

    def settle(self, *, is_saved: bool) -> None:
        if not is_saved:
            self._changed |= self._taken
        self._taken = set()

    def release_unused(self) -> None:
        """Nothing: these are the messages themselves."""


def _size(row: RetainedRow) -> int:
    return ROW_BYTES + len(row.payload) + 2 * len(row.name)
