"""Idempotency keys that were used, and what they stored.

A key is a mark of the first message it stored, so both are durable together; after a
crash the marks are followed from the last checkpoint. A key counts for KEPT_S, unless its user or
tenant has more keys than a quota allows: then the users with the most keys lose their oldest ones.
"""

from __future__ import annotations

import asyncio
import struct
from functools import partial
from typing import Final

from penstock.broker.access.quotas import Quotas
from penstock.catalog.queue.keys import KeyCatalog, KeyRow
from penstock.catalog.session.saving import Checkpoint
from penstock.core.quotas import IDEMPOTENCY_KEYS, fair_share
from penstock.log.format.batch import Batch
from penstock.log.format.marks import MARK_IDEMPOTENCY_KEY, Mark
from penstock.model.errors import UnavailableError
from penstock.model.timeline import Timeline

KEPT_S: Final = 86_400
EXPIRE_EVERY_S: Final = 60.0
TRIM_EVERY_S: Final = 600.0
TRIM_PART: Final = 10  # or after so many new ones: this part of a quota
UNSAVED_MAX: Final = 100_000  # keys since the last checkpoint; more are rejected
DIGEST_BITS: Final = 63  # SQL's integers have a sign

_HEAD: Final = struct.Struct(">IQ")  # how many messages, digest; the key follows

Slot = tuple[int, str]  # topic id, key


def key_mark(key: str, digest: int, count: int) -> Mark:
    """Beside the first of `count` messages."""
    return Mark(MARK_IDEMPOTENCY_KEY, _HEAD.pack(count, digest) + key.encode(), 0)


def part_key(key: str, part: int) -> str:
    """The key of one message of a request; a client's own key holds no line feed."""
    return f"{key}\n{part}"


def key_row(topic_id: int, batch: Batch, mark: Mark, clock: Timeline) -> KeyRow:
    """What a mark in a log says of a key."""
    count, digest = _HEAD.unpack_from(mark.key)
    return KeyRow(
        topic_id=topic_id,
        key=mark.key[_HEAD.size :].decode(),
        digest=digest,
        first_offset=batch.base_offset + mark.index,
        count=count,
        stored_at=clock.steady_at(batch.header.last_timestamp),
    )


class Keys:
    """The keys of all topics: new ones here, older ones in the catalog."""

    def __init__(self, catalog: KeyCatalog, clock: Timeline, quotas: Quotas) -> None:
        self._catalog = catalog
        self._quotas = quotas
        self._clock = clock
        self._unsaved: dict[Slot, KeyRow] = {}
        self._saving: dict[Slot, KeyRow] = {}  # handed to a checkpoint that is being written
        self._busy: dict[Slot, asyncio.Future[None]] = {}  # a request with this key is under way
        self._expired_s = -EXPIRE_EVERY_S
        self._trimmed_s = clock.monotonic_s()
        self._new_count = 0  # saved since then

    # Requests

    async def enter(self, topic_id: int, key: str) -> KeyRow | None:
        """What this key stored, if it did; then `leave`. One request with a key at a time."""
        slot = (topic_id, key)
        while slot in self._busy:
            await asyncio.shield(self._busy[slot])
        self._busy[slot] = asyncio.get_running_loop().create_future()
        try:
            row = self._unsaved.get(slot) or self._saving.get(slot)
            if row is None:
                row = await self._catalog.find(topic_id, key)
            if row is not None and row.stored_at > self._oldest_us():
                return row
            if len(self._unsaved) >= UNSAVED_MAX:
                raise UnavailableError("too many new idempotency keys at once: try again")
            return None
        except BaseException:
            self.leave(topic_id, key)
            raise

    async def digests(self, topic_id: int, partitions: int, key: str) -> set[int]:
        """Of what this key was used for, in all partitions of a topic."""
        found = {
            row.topic_id: row for row in await self._catalog.find_all(topic_id, partitions, key)
        }
        for rows in (self._saving, self._unsaved):
            for number in range(topic_id, topic_id + partitions):
                row = rows.get((number, key))
                if row is not None:
                    found[number] = row
        oldest_us = self._oldest_us()
        return {row.digest for row in found.values() if row.stored_at > oldest_us}

    def leave(self, topic_id: int, key: str) -> None:
        self._busy.pop((topic_id, key)).set_result(None)

    def note(self, topic_id: int, key: str, digest: int, offset: int, count: int) -> KeyRow:
        """Its messages are durable; called before a checkpoint can see that."""
        row = KeyRow(
            topic_id=topic_id,
            key=key,
            digest=digest,
            first_offset=offset,
            count=count,
            stored_at=self._clock.steady_us(),
        )
        self._unsaved[topic_id, key] = row
        return row

    # The view

    def follow(self, topic_id: int, batch: Batch, mark: Mark) -> None:
        """A mark found in a log."""
        row = key_row(topic_id, batch, mark, self._clock)
        self._unsaved[topic_id, row.key] = row

    def take_changes(self, point: Checkpoint) -> bool:
        self._saving, self._unsaved = self._unsaved, {}
        self._new_count += len(self._saving)
        point.keys = list(self._saving.values())
        return bool(self._saving)

    def settle(self, *, is_saved: bool) -> None:
        if not is_saved:
            self._unsaved = self._saving | self._unsaved
        self._saving = {}

    def forget_topic(self, topic_id: int) -> None:
        self._unsaved = {slot: row for slot, row in self._unsaved.items() if slot[0] != topic_id}

    async def expire(self) -> None:
        """Remove expired keys; called now and then."""
        now_s = self._clock.monotonic_s()
        if now_s - self._expired_s >= EXPIRE_EVERY_S:
            self._expired_s = now_s
            await self._catalog.expire(self._oldest_us())
        limits = self._quotas.limits(IDEMPOTENCY_KEYS)
        known = [limit for limit in limits if limit is not None]
        if not known:
            return
        if now_s - self._trimmed_s >= TRIM_EVERY_S or self._new_count > min(known) // TRIM_PART:
            self._trimmed_s, self._new_count = now_s, 0
            forgotten = await self._catalog.trim(partial(fair_share, *limits))
            self._quotas.count(IDEMPOTENCY_KEYS, forgotten)

    def _oldest_us(self) -> int:
        return self._clock.steady_us() - KEPT_S * 1_000_000
