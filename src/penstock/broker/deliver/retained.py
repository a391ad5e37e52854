"""Retained messages: the newest of each name, for later subscribers.

A view over the logs: it follows the commits, and the checkpoint saves it together with the levels
it has seen. After a crash the logs are read from there, so it is never older or newer than they.

Names are in memory. Payloads are until the checkpoint has saved them, and then as far as a cache
has room; else they are read from the catalog, since the log may drop a record that is retained.
Publishers wait while too many payloads are not saved yet.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from penstock.broker.access.owners import Amounts
from penstock.broker.access.quotas import Quotas
from penstock.broker.deliver.admitted import Admitted
from penstock.catalog.session.retained import RetainedHead, RetainedRow, head_of
from penstock.catalog.session.saving import Checkpoint
from penstock.core.delivery.run import Run
from penstock.core.erasure import Erasure
from penstock.core.naming.nametree import NameTree
from penstock.core.quotas import RETAINED, RETAINED_BYTES
from penstock.log.format.batch import Batch
from penstock.log.format.batch_bytes import FLAGS
from penstock.model.errors import QuotaExceeded
from penstock.model.limits import MIB
from penstock.model.record import RETAIN
from penstock.model.timeline import Timeline

ROW_BYTES: Final = 768  # a message and its place in the tree, payload and name aside; measured
TERMS_SPARE: Final = 1_000  # terms of messages that were replaced since, before they are cleared
UNSAVED_BYTES_MAX: Final = 32 * MIB  # payloads that wait for the checkpoint; then publishers wait
CACHE_BYTES_MAX: Final = 32 * MIB  # payloads that are in the catalog, too
NAMES_AT_ONCE: Final = 500  # looked at, before others get their turn
FETCHES_MAX: Final = 4  # from the catalog at once
FETCH_BYTES_MAX: Final = 1 * MIB  # of one, unless a single message is larger

FetchRetained = Callable[[Sequence[str]], Awaitable[list[RetainedRow]]]


class Retained:
    """The newest retained message of each name. An empty payload deletes, and so does time."""

    def __init__(
        self, clock: Timeline, fetch: FetchRetained, save_soon: Callable[[], None]
    ) -> None:
        self._clock = clock
        self._fetch = fetch
        self._save_soon = save_soon  # asks for a checkpoint before its time
        self.payload_bytes = 0  # of all of them, wherever they are
        self._head_bytes = 0  # about how much memory they take without their payloads
        self._messages: dict[str, RetainedHead] = {}
        self._names = NameTree()
        self._unsaved: dict[str, RetainedRow] = {}  # not known to be in the catalog
        self._unsaved_bytes = 0
        self._cache: OrderedDict[str, RetainedRow] = OrderedDict()  # saved; oldest use goes first
        self._cache_bytes = 0
        self._admitted = Admitted()
        self._amounts = Amounts()  # of those who published them
        self._is_used = False  # the cache, since `release_unused` was called last
        self._fetching = asyncio.Semaphore(FETCHES_MAX)
        self._changed: set[str] = set()  # since the last checkpoint was taken
        self._taken: set[str] = set()  # by the one that is being saved
        self._terms: list[tuple[int, str]] = []  # a heap of (until when, name); some are outdated

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def bytes(self) -> int:
        """About how much memory they take."""
        return self._head_bytes + self._unsaved_bytes + self._cache_bytes

    @property
    def is_congested(self) -> bool:
        """Are so many payloads not saved yet that publishers should wait?"""
        return self._unsaved_bytes > UNSAVED_BYTES_MAX

    def load(self, heads: list[RetainedHead]) -> None:
        """Take over what the catalog has."""
        for head in heads:
            self._put(head)

    def exceeded(self, quotas: Quotas, run: Run, owner: str | None) -> QuotaExceeded | None:
        """Why a run may not be retained; None if there is room for it, or it deletes.

        What is admitted counts from now on, so that many at once cannot exceed the quota.
        """
        size = run.lengths[-1]
        if not size:
            return None
        now_us = self._clock.steady_us()
        self._admitted.forget_old(now_us)
        try:
            self._check(quotas, run.name, size)
            if owner is not None:
                self._check_owner(quotas, run.name, size, owner)
        except QuotaExceeded as exceeded:
            return exceeded
        self._admitted.add(run.name, size, owner, now_us, self._messages.get(run.name))
        return None

    def _check(self, quotas: Quotas, name: str, size: int) -> None:
        """Of the tenant. What is replaced makes room."""
        admitted, head, waiting = self._admitted, self._messages.get(name), self._admitted.get(name)
        if head is None and waiting is None:
            quotas.check(RETAINED, len(self._messages) + len(admitted.names))
        replaced = (head.payload_bytes if head else 0) + (waiting.size if waiting else 0)
        quotas.check(RETAINED_BYTES, self.payload_bytes + admitted.bytes - replaced, size)

    def _check_owner(self, quotas: Quotas, name: str, size: int, owner: str) -> None:
        held, on_way = self._amounts, self._admitted.amounts
        head, waiting = self._messages.get(name), self._admitted.get(name)
        replaced, is_more = 0, True
        if head is not None and head.owner == owner:
            replaced, is_more = head.payload_bytes, False
        if waiting is not None and waiting.owner == owner:
            replaced, is_more = replaced + waiting.size, False
        if is_more:
            quotas.check_user(RETAINED, held.count_of(owner) + on_way.count_of(owner))
        has = held.bytes_of(owner) + on_way.bytes_of(owner) - replaced
        quotas.check_user(RETAINED_BYTES, has, size)

    def give_up(self, name: str) -> None:
        """What was admitted under this name is not published after all."""
        self._admitted.remove(name)

    def follow(self, topic_id: int, batch: Batch) -> None:
        """Take over what a committed batch retains."""
        h = batch.header
        if not h.flags & FLAGS and not h.record_flags & RETAIN:
            return
        for record in batch.records("", h.base_offset, h.end_offset):
            if not record.retain:
                continue
            self._changed.add(record.name)
            waiting, head = self._admitted.remove(record.name), self._messages.get(record.name)
            # Of several on their way, the first to arrive brings the newest owner along.
            owner = waiting.owner if waiting is not None else head.owner if head else None
            if not record.payload:
                if head is not None:
                    self._remove(record.name)
                continue
            row = RetainedRow(
                name=record.name,
                topic_id=topic_id,
                offset=record.offset,
                timestamp=record.timestamp,
                expires_at=record.expires_at or 0,
                qos=record.qos,
                kind=record.kind,
                publisher=record.publisher,
                headers=record.headers,
                payload=record.payload,
                owner=owner,
            )
            self._put(head_of(row))
            self._unsaved[row.name] = row
            self._unsaved_bytes += _body_bytes(row)
        if self.is_congested:
            self._save_soon()

    def _put(self, head: RetainedHead) -> None:
        before = self._messages.get(head.name)
        if before is None:
            self._names.add(head.name)
        else:
            self._let_go(before)
        self._messages[head.name] = head
        self._head_bytes += _head_bytes(head)
        self.payload_bytes += head.payload_bytes
        self._amounts.add(head.owner, 1, head.payload_bytes)
        if head.expires_at:
            heappush(self._terms, (self._until_us(head), head.name))
            if len(self._terms) > 2 * len(self._messages) + TERMS_SPARE:
                heads = self._messages.values()
                self._terms = [(self._until_us(one), one.name) for one in heads if one.expires_at]
                heapify(self._terms)

    def _let_go(self, head: RetainedHead) -> None:
        """It is deleted or replaced: neither it nor what is held of its payload counts any more."""
        self._head_bytes -= _head_bytes(head)
        self.payload_bytes -= head.payload_bytes
        self._amounts.add(head.owner, -1, -head.payload_bytes)
        unsaved = self._unsaved.pop(head.name, None)
        if unsaved is not None:
            self._unsaved_bytes -= _body_bytes(unsaved)
        cached = self._cache.pop(head.name, None)
        if cached is not None:
            self._cache_bytes -= _body_bytes(cached)

    def _until_us(self, head: RetainedHead) -> int:
        return self._clock.until_us(head.timestamp, head.expires_at)

    def _is_expired(self, head: RetainedHead) -> bool:
        return head.expires_at != 0 and self._until_us(head) <= self._clock.steady_us()

    def _remove(self, name: str) -> None:
        self._let_go(self._messages.pop(name))
        self._names.remove(name)

    def expire(self) -> None:
        """Forget what has expired; the next checkpoint removes it from the catalog too."""
        terms, now_us = self._terms, self._clock.steady_us()
        while terms and terms[0][0] <= now_us:
            _, name = heappop(terms)
            head = self._messages.get(name)
            if head is not None and self._is_expired(head):
                self._remove(name)
                self._changed.add(name)

    def get(self, name: str) -> RetainedHead | None:
        """The retained message of a name without its payload, unless it has expired."""
        head = self._messages.get(name)
        return None if head is None or self._is_expired(head) else head

    def matching(self, filter: str) -> Iterator[str]:
        """Names with a retained message that a filter matches; lazy, so it can be done in parts."""
        return self._names.matching(filter)

    def forget_topic(self, topic_id: int) -> None:
        """The topic is gone and its retained messages with it."""
        for name in [head.name for head in self._messages.values() if head.topic_id == topic_id]:
            self._remove(name)
            self._changed.add(name)

    async def erased_names(self, topic_id: int, erasure: Erasure) -> list[str]:
        """The names whose retained message is one of these records."""
        found = []
        for at, name in enumerate(self.matching(erasure.names)):
            if at % NAMES_AT_ONCE == NAMES_AT_ONCE - 1:
                await asyncio.sleep(0)
            head = self._messages.get(name)
            if head is None or head.topic_id != topic_id:
                continue
            if erasure.has(name, head.offset, head.timestamp):
                found.append(name)
        return found

    def erase(self, names: Sequence[str], erasure: Erasure) -> None:
        """Forget what `erased_names` found, unless it was replaced since."""
        for name in names:
            head = self._messages.get(name)
            if head is not None and erasure.has(name, head.offset, head.timestamp):
                self._remove(name)
                self._changed.add(name)

    # Payloads

    def held(self, head: RetainedHead) -> RetainedRow | None:
        """The message with its payload, if that is in memory."""
        row = self._unsaved.get(head.name)
        if row is None:
            row = self._cache.get(head.name)
            if row is not None:
                self._cache.move_to_end(head.name)
                self._is_used = True
        return row if row is not None and row.offset == head.offset else None

    async def fetch(self, head: RetainedHead, next_names: Sequence[str]) -> RetainedRow | None:
        """The message with its payload, from the catalog; None if it is gone or replaced by now.

        Those of `next_names` come along into the cache, as far as they are small.
        """
        async with self._fetching:
            held = self.held(head)
            if held is not None:
                return held
            rows = await self._fetch(self._missing(head, next_names))
        found = None
        for row in rows:
            self._hold(row)
            if row.name == head.name and row.offset == head.offset:
                found = row
        return found

    def _missing(self, head: RetainedHead, next_names: Sequence[str]) -> list[str]:
        """The name of a message, and next ones that are not in memory either."""
        names, size = [head.name], head.payload_bytes
        for name in next_names:
            another = self._messages.get(name)
            if another is not None and name not in self._unsaved and name not in self._cache:
                size += another.payload_bytes
                if size > FETCH_BYTES_MAX:
                    break
                names.append(name)
        return names

    def _hold(self, row: RetainedRow) -> None:
        """Keep a message that is in the catalog at hand, unless it was replaced since."""
        head = self._messages.get(row.name)
        size = _body_bytes(row)
        is_current = head is not None and head.offset == row.offset
        if not is_current or row.name in self._unsaved or row.name in self._cache:
            return
        self._cache[row.name] = row
        self._cache_bytes += size
        self._is_used = True
        while self._cache_bytes > CACHE_BYTES_MAX:
            _, oldest = self._cache.popitem(last=False)
            self._cache_bytes -= _body_bytes(oldest)

    def release_unused(self) -> None:
        """Give back the payloads that are in the catalog if nobody has wanted one for a while."""
        if not self._is_used:
            self._cache.clear()
            self._cache_bytes = 0
        self._is_used = False

    # The checkpoint

    def take_changes(self, point: Checkpoint) -> bool:
        self.expire()
        self._taken, self._changed = self._changed, set()
        for name in self._taken:
            row = self._unsaved.get(name)
            if row is not None:
                point.retained.append(row)
            else:
                point.forgotten.append(name)
        return bool(self._taken)

    def settle(self, *, is_saved: bool) -> None:
        if not is_saved:
            self._changed |= self._taken
        for name in self._taken - self._changed:
            row = self._unsaved.pop(name, None)
            if row is not None:
                self._unsaved_bytes -= _body_bytes(row)
                self._hold(row)
        self._taken = set()


def _head_bytes(head: RetainedHead) -> int:
    return ROW_BYTES + 2 * len(head.name)


def _body_bytes(row: RetainedRow) -> int:
    return len(row.payload) + sum(len(key) + len(value) for key, value in row.headers)
