"""The worker's side: topics that are sealed or only in a history, and turns of writing one."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, Final

from bench.http.talks import texts
from bench.mqtt.servers import TICK_S
from penstock import AsyncBroker
from penstock.log.files.disk import RealDisk
from penstock.log.files.layout import find_logs, log_directory
from penstock.log.files.segment import segment_bases, segment_path
from penstock.log.history.orders import SegmentSpan, TableFacts, Write
from penstock.log.history.place import HistoryRoot
from penstock.log.history.tier import HistoryTier

SEALED: Final = "sealed"
COLD: Final = "cold"
LIVE: Final = "live"
FILE_RECORDS: Final = 1_800_000  # of a history file: 64 MiB of sealed segments
BATCH: Final = 1_000
POOL: Final = 100_000  # different payloads
PUBLISHERS: Final = 16
FUTURE_US: Final = 1 << 60  # every record is older
NEVER_S: Final = 3_600.0

_open: dict[str, Any] = {}
_tables: Final = itertools.count()


def build(data: str, url: str, count: int, topics: list[str]) -> None:
    """The same records in each topic, sealed; those of COLD are in its history only."""
    asyncio.run(_build(data, url, count, topics))


async def _build(data: str, url: str, count: int, topics: list[str]) -> None:
    settings = {"durability": "os", "upkeep_s": NEVER_S, "history_url": url}
    payloads = [text.encode() for text in texts(min(count, POOL))]
    async with AsyncBroker(data, **settings) as broker:
        for topic in topics:
            await broker.create_topic(topic, history=True)
            for first in range(0, count, BATCH):
                at = first % len(payloads)
                await broker.publish_many(payloads[at : at + BATCH], topic)
            log = broker.engine.topics.get(topic).log
            await log.trim(FUTURE_US, None)  # closes the newest segment: nothing may go yet
            await log.seal_closed()
            if topic == COLD:
                await log.tier(FUTURE_US, None)
                await log.trim(FUTURE_US, None)
                assert log.hot_first >= count, "everything is cold"


def open_tiering(data: str, url: str) -> int:
    """A broker that publishes to LIVE, and a writer of histories; records of one turn."""
    _open["runner"] = runner = asyncio.Runner()
    disk = RealDisk()
    directory = next(
        log_directory(Path(data), one) for one in find_logs(disk, Path(data)) if one.slug == SEALED
    )
    bases = segment_bases(disk, directory)
    end = max(base for base in bases if base <= FILE_RECORDS)
    _open["spans"] = [
        SegmentSpan(str(segment_path(directory, base).absolute()), base, following)
        for base, following in itertools.pairwise(bases)
        if following <= end
    ]
    _open["tier"] = HistoryTier(HistoryRoot(url), Path(data), disk)
    _open["broker"] = runner.run(_open_broker(data, url))
    return end


async def _open_broker(data: str, url: str) -> AsyncBroker:
    broker = await AsyncBroker(data, upkeep_s=NEVER_S, history_url=url).open()
    await broker.create_topic(LIVE)
    return broker


def close_tiering() -> None:
    with _open.pop("runner") as runner:
        runner.run(_open.pop("broker").close())
        _open.pop("tier").close()


def tier_alone() -> float:
    """CPU seconds of this process and its children while they write one file."""
    before_s = time.process_time() + _children_s()
    _open["runner"].run(_write())
    return time.process_time() + _children_s() - before_s


def publish_idle(turn_s: float) -> tuple[float, float]:
    """Messages per second, and the 99th percentile of milliseconds until one is acknowledged."""
    found: tuple[float, float] = _open["runner"].run(_publish(asyncio.sleep(turn_s)))
    return found


def publish_beside() -> tuple[float, float]:
    """As `publish_idle`, while one file is written."""
    found: tuple[float, float] = _open["runner"].run(_publish(_write()))
    return found


async def _write() -> None:
    """The sealed segments as the first file of a table, which is a new one each time."""
    tier: HistoryTier = _open["tier"]
    spans: list[SegmentSpan] = _open["spans"]
    number = next(_tables)
    facts = TableFacts(SEALED, number, "bench")
    place = tier.root.table(f"bench/{SEALED}-{number}")
    await tier.ask(Write(place, facts, spans, 0, spans[-1].end_offset, 1, tier.lock))


async def _publish(until: Awaitable[None]) -> tuple[float, float]:
    broker: AsyncBroker = _open["broker"]
    payload = texts(1)[0].encode()
    taken_s: list[float] = []
    is_over = False

    async def one() -> None:
        while not is_over:
            begin_s = time.perf_counter()
            await broker.publish(payload, LIVE)
            taken_s.append(time.perf_counter() - begin_s)

    begin_s = time.perf_counter()
    tasks = [asyncio.create_task(one()) for _ in range(PUBLISHERS)]
    await until
    is_over = True
    await asyncio.gather(*tasks)
    rate = len(taken_s) / (time.perf_counter() - begin_s)
    return rate, sorted(taken_s)[len(taken_s) * 99 // 100] * 1_000


def _children_s() -> float:
    """Processor time that the children of this process have used so far."""
    ticks = 0
    for path in Path("/proc/self/task").glob("*/children"):
        for pid in path.read_text().split():
            stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(stat[11]) + int(stat[12])
    return ticks * TICK_S
