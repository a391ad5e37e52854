"""Submissions with an idempotency key: sent again they are answered again, and stored once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.broker.publish.submissions import Submissions
from penstock.broker.publish.used_keys import DIGEST_BITS, Keys, key_mark, part_key
from penstock.broker.queue.consumers import read_matching
from penstock.broker.topic.parts import runs_by_part
from penstock.broker.topic.topics import Topic
from penstock.catalog.queue.keys import KeyRow
from penstock.core.access import Principal
from penstock.core.delivery.run import Run
from penstock.model.errors import Gap


@dataclass(frozen=True, slots=True)
class Once:
    """Where messages lie that were stored once."""

    offset: int
    count: int
    is_repeat: bool


class StoringOnce:
    """Submissions with a key."""

    def __init__(self, keys: Keys, submissions: Submissions) -> None:
        self._keys = keys
        self._submissions = submissions

    async def store(
        self, principal: Principal, topic: Topic, runs: Sequence[Run], key: str, digest: bytes
    ) -> Once | None:
        """Durable on return. None when the key was used for something else before."""
        asked = _number(digest)
        row = await self._keys.enter(topic.id, key)
        try:
            is_repeat = row is not None
            if row is None:
                row = await self._submit(principal, topic, runs, key, asked)
        finally:
            self._keys.leave(topic.id, key)
        return Once(row.first_offset, row.count, is_repeat) if row.digest == asked else None

    async def store_part(
        self,
        principal: Principal,
        topic: Topic,
        runs: Sequence[Run],
        key: str,
        part: int,
        digest: bytes,
    ) -> Once | None:
        """One message of a request with this key whose outcome its sender does not know.

        If that request stored its messages, this one lies among them. If not, it is stored now, and
        the request is refused should it still come. None when the key was used for something else.
        """
        row = await self._keys.enter(topic.id, key)
        try:
            if row is not None and row.count > 0:
                is_in_it = part < row.count
                return Once(row.first_offset + part, 1, is_repeat=True) if is_in_it else None
            spent = "" if row is not None else key
            asked, own = _number(digest), part_key(key, part)
            own_row = await self._keys.enter(topic.id, own)
            try:
                is_repeat = own_row is not None
                if own_row is None:
                    own_row = await self._submit(
                        principal, topic, runs, key=own, digest=asked, spent=spent
                    )
            finally:
                self._keys.leave(topic.id, own)
        finally:
            self._keys.leave(topic.id, key)
        return Once(own_row.first_offset, 1, is_repeat) if own_row.digest == asked else None

    async def store_parts(
        self, principal: Principal, topic: Topic, runs: Sequence[Run], key: str, digest: bytes
    ) -> tuple[dict[int, int], bool] | None:
        """As `store`, for runs of several parts: the first offset by part id, and if all repeat.

        Every part has a mark of its own: sent again, the request stores what is still missing.
        """
        known = await self._keys.digests(topic.id, len(topic.parts), key)
        if known - {_number(digest)}:
            return None
        groups = runs_by_part(topic, runs)
        works = [self.store(principal, part, own, key, digest) for part, own in groups]
        answers = await asyncio.gather(*works)
        firsts: dict[int, int] = {}
        for (part, _), once in zip(groups, answers, strict=True):
            if once is None:
                return None
            firsts[part.id] = once.offset
        return firsts, all(once is not None and once.is_repeat for once in answers)

    async def store_message(
        self,
        principal: Principal,
        topic: Topic,
        run: Run,
        key: str,
        number: int,
        digest: bytes,
    ) -> tuple[int, bool] | None:
        """As `store_part`, in a topic of several parts: its offset, and if it was stored before."""
        part = topic.part_of(run.name)
        row = await self._keys.enter(part.id, key)
        self._keys.leave(part.id, key)
        if row is not None and row.count:
            # All that the request had for this part is there; which one it is, its bytes tell.
            end = row.first_offset + row.count
            try:
                records, _ = await read_matching(part, row.first_offset, end, None, None)
            except Gap:
                return row.first_offset, True  # retention has taken it since
            start = run.starts[0]
            payload = bytes(run.data[start : start + run.lengths[0]])
            for record in records:
                if record.name == run.name and record.payload == payload:
                    return record.offset, True
            return None
        once = await self.store_part(principal, part, [run], key=key, part=number, digest=digest)
        return None if once is None else (once.offset, once.is_repeat)

    async def _submit(
        self,
        principal: Principal,
        topic: Topic,
        runs: Sequence[Run],
        key: str,
        digest: int,
        spent: str = "",
    ) -> KeyRow:
        """From now on the key `spent` stores nothing."""
        done: asyncio.Future[KeyRow] = asyncio.get_running_loop().create_future()
        count = sum([run.count for run in runs])

        def stored(offset: int, error: Exception | None) -> None:
            if error is None:
                row = self._keys.note(topic.id, key, digest, offset, count)
                if spent:
                    self._keys.note(topic.id, spent, 0, offset, 0)
                if not done.done():
                    done.set_result(row)
            elif not done.done():
                done.set_exception(error)

        marks = [key_mark(key, digest, count)]
        if spent:
            marks.append(key_mark(spent, 0, 0))
        self._submissions.submit(principal, topic, runs, stored, marks)
        return await done


def _number(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "big") >> 64 - DIGEST_BITS
