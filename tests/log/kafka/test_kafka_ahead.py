"""Is the next chunk of a partition there when its reader comes, and only then?"""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest

from penstock.log.cache import ChunkCache
from penstock.log.format.batch import Batch
from penstock.log.format.builder import BatchBuilder
from penstock.log.kafka.ahead import AHEAD_BYTES_MAX, LOGS_MAX, AheadChunks
from penstock.model.errors import UnavailableError
from penstock.model.limits import MIB
from tests.appends import add

END = 1_000
CHUNK = 10  # offsets
PER_BATCH = 5


class Fetches:
    """A partition with END records of `size` bytes; says what was fetched, and waits for it."""

    def __init__(self, size: int = 1) -> None:
        self.starts: list[int] = []
        self._payload = bytes(size)
        self._came: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)
        self.broken_from = END

    async def fetch(self, offset: int) -> list[Batch]:
        self.starts.append(offset)
        self._came[offset].set()
        if offset >= self.broken_from:
            raise UnavailableError("no server")
        found = []
        for base in range(offset // PER_BATCH * PER_BATCH, min(offset + CHUNK, END), PER_BATCH):
            builder = BatchBuilder(0)
            add(builder, "n", [self._payload] * PER_BATCH, 0, 1)
            found.append(builder.encode(1, base, 0))
        return found

    async def wait(self, offset: int) -> None:
        await self._came[offset].wait()


def made(fetches: Fetches, busy: set[AheadChunks] | None = None) -> AheadChunks:
    return AheadChunks(ChunkCache(24 * MIB), fetches.fetch, set() if busy is None else busy)


async def others_done() -> None:
    """Until nothing is fetched any more."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_reader_that_goes_on_finds_the_next_chunks_fetched() -> None:
    fetches = Fetches(size=MIB // CHUNK)
    chunks = made(fetches)
    await chunks.read(0, END)
    assert fetches.starts == [0], "one read tells nothing of the next one"
    await chunks.read(10, END)
    await fetches.wait(20)
    await fetches.wait(70)
    before = len(fetches.starts)
    found = await chunks.read(20, END)
    assert [batch.base_offset for batch in found] == [20, 25]
    assert len(fetches.starts) == before
    chunks.close()


async def test_no_more_is_fetched_ahead_than_is_allowed_and_nothing_past_the_end() -> None:
    size = MIB // CHUNK
    fetches = Fetches(size)
    chunks = made(fetches)
    await chunks.read(0, END)
    await chunks.read(10, END)
    await others_done()
    assert (len(fetches.starts) - 2) * CHUNK * size <= AHEAD_BYTES_MAX + MIB
    chunks = made(fetches := Fetches())
    await chunks.read(0, 40)
    await chunks.read(10, 40)
    await others_done()
    assert fetches.starts == [0, 10, 20, 30]


async def test_readers_that_jump_are_not_read_ahead() -> None:
    fetches = Fetches()
    chunks = made(fetches)
    for offset in (0, 500, 100, 700):
        await chunks.read(offset, END)
    await others_done()
    assert fetches.starts == [0, 500, 100, 700]


async def test_only_a_few_logs_are_read_ahead_at_once() -> None:
    busy: set[AheadChunks] = set()
    every = [(made(fetches, busy), fetches) for fetches in [Fetches() for _ in range(5)]]
    for chunks, _ in every:
        await chunks.read(0, 40)
    await asyncio.gather(*[chunks.read(10, 40) for chunks, _ in every])
    assert len(busy) == LOGS_MAX
    await others_done()
    assert not busy
    assert sum([len(fetches.starts) > 2 for _, fetches in every]) == LOGS_MAX


async def test_small_pages_inside_of_a_chunk_are_not_fetched_again() -> None:
    fetches = Fetches()
    chunks = made(fetches)
    for offset in range(10):
        found = await chunks.read(offset, CHUNK)
        assert found[0].base_offset <= offset < found[0].end_offset
        assert found[-1].end_offset == CHUNK
    assert fetches.starts == [0]
    chunks.forget()
    await chunks.read(7, CHUNK)
    assert fetches.starts == [0, 7]


async def test_what_could_not_be_fetched_ahead_is_told_to_who_reads_it() -> None:
    fetches = Fetches()
    fetches.broken_from = 20
    chunks = made(fetches)
    await chunks.read(0, END)
    await chunks.read(10, END)
    await others_done()
    with pytest.raises(UnavailableError):
        await chunks.read(20, END)
    fetches.broken_from = END
    assert (await chunks.read(20, END))[0].base_offset == 20
