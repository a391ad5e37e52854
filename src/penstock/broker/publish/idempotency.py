"""Submissions with an idempotency key: sent again they are answered again, and stored once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.broker.publish.submissions import Submissions
from penstock.broker.publish.used_keys import DIGEST_BITS, Keys, key_mark, part_key
from penstock.broker.topics import Topic
from penstock.catalog.keys import KeyRow
from penstock.core.access import Principal
from penstock.core.run import Run


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
                    own_row = await self._submit(principal, topic, runs, own, asked, spent)
            finally:
                self._keys.leave(topic.id, own)
        finally:
            self._keys.leave(topic.id, key)
        return Once(own_row.first_offset, 1, is_repeat) if own_row.digest == asked else None

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
