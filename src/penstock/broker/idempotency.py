"""Submissions with an idempotency key: sent again they are answered again, and stored once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.broker.keys import DIGEST_BITS, Keys, key_mark
from penstock.broker.runs import Run
from penstock.broker.submissions import Submissions
from penstock.broker.topics import Topic
from penstock.catalog.keys import KeyRow
from penstock.core.access import Principal


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
        asked = int.from_bytes(digest[:8], "big") >> 64 - DIGEST_BITS
        row = await self._keys.enter(topic.id, key)
        try:
            is_repeat = row is not None
            if row is None:
                row = await self._submit(principal, topic, runs, key, asked)
        finally:
            self._keys.leave(topic.id, key)
        return Once(row.first_offset, row.count, is_repeat) if row.digest == asked else None

    async def _submit(
        self, principal: Principal, topic: Topic, runs: Sequence[Run], key: str, digest: int
    ) -> KeyRow:
        done: asyncio.Future[KeyRow] = asyncio.get_running_loop().create_future()
        count = sum([run.count for run in runs])

        def stored(offset: int, error: Exception | None) -> None:
            if error is None:
                row = self._keys.note(topic.id, key, digest, offset, count)
                if not done.done():
                    done.set_result(row)
            elif not done.done():
                done.set_exception(error)

        marks = [key_mark(key, digest, count)]
        self._submissions.submit(principal, topic, runs, stored, marks)
        return await done
