"""Chunks that are read while what they belong to changes: who is given which?"""

from __future__ import annotations

import asyncio

from penstock.log.cache import ChunkCache
from penstock.log.format.batch import Batch
from penstock.log.format.builder import BatchBuilder
from penstock.log.loading import ChunkLoader
from penstock.model.limits import MIB
from tests.appends import add


def a_batch(payload: bytes) -> Batch:
    builder = BatchBuilder(0)
    add(builder, "n", [payload], 0, 1)
    return builder.encode(1, 0, 0)


class Reads:
    """Each read gives the next batch, once it may."""

    def __init__(self, *payloads: bytes) -> None:
        self._batches = [a_batch(payload) for payload in payloads]
        self.begun = 0
        self.has_begun = asyncio.Event()
        self.may_end = asyncio.Event()

    async def read(self) -> list[Batch]:
        self.begun += 1
        self.has_begun.set()
        batch = self._batches.pop(0)
        await self.may_end.wait()
        return [batch]


async def test_a_chunk_that_is_forgotten_while_it_is_read_is_read_again_for_the_next() -> None:
    owner = object()
    reads = Reads(b"void", b"good")
    loader = ChunkLoader(ChunkCache(MIB), asyncio.get_running_loop())
    early = asyncio.ensure_future(loader.load(owner, 0, reads.read))
    await reads.has_begun.wait()
    loader.forget(owner)
    assert not loader.has(owner, 0)
    reads.may_end.set()
    (stale,) = await early
    assert stale.payloads(0, 1) == [b"void"]
    (fresh,) = await loader.load(owner, 0, reads.read)
    assert fresh.payloads(0, 1) == [b"good"]
    assert loader.has(owner, 0)


async def test_a_chunk_is_read_once_for_all_who_ask_meanwhile() -> None:
    owner = object()
    reads = Reads(b"once")
    reads.may_end.set()
    loader = ChunkLoader(ChunkCache(MIB), asyncio.get_running_loop())
    found = await asyncio.gather(*[loader.load(owner, 0, reads.read) for _ in range(5)])
    assert [batches[0].payloads(0, 1) for batches in found] == [[b"once"]] * 5
    assert reads.begun == loader.loads == 1
