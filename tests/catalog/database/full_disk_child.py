"""Fills the small file system it is given, and goes on saving positions there with a reserve file.

Prints one JSON object with what it saw; the test judges.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from penstock.catalog.catalog import Catalog, TopicRow
from penstock.catalog.database.sqlite import SqliteDatabase
from penstock.catalog.database.thread import CatalogThread
from penstock.model.errors import DiskFull
from penstock.model.record import DEFAULT_TENANT, TopicId

RESERVE_BYTES = 128 * 1024
CONSUMERS = 20
SAVES = 300  # together they are far larger than the reserve, if each took space for good
TOPICS_MAX = 1_000  # more than the reserve holds


def fill(path: Path) -> None:
    try:
        with path.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4_096))
    except OSError:
        return


async def open_catalog(directory: Path, reserve: Path) -> Catalog:
    def free_reserve() -> bool:
        found = reserve.exists()
        reserve.unlink(missing_ok=True)
        return found

    path = directory / "catalog.db"
    thread = await CatalogThread.start(lambda: SqliteDatabase(path), on_full=free_reserve)
    return await Catalog.open(thread)


async def declare(catalog: Catalog, name: str) -> TopicId:
    topic_id = await catalog.reserve_topic_id()
    await catalog.insert_topic(TopicRow(DEFAULT_TENANT, topic_id, name, name * 50, "{}", 1))
    return topic_id


async def declare_until_full(catalog: Catalog) -> tuple[list[TopicId], bool]:
    """The ids of the topics that were acknowledged, and whether one was refused."""
    acknowledged: list[TopicId] = []
    for n in range(TOPICS_MAX):
        try:
            acknowledged.append(await declare(catalog, f"topic {n}"))
        except DiskFull:
            return acknowledged, True
    return acknowledged, False


async def main(directory: Path) -> None:
    reserve = directory / "reserve"
    reserve.write_bytes(bytes(RESERVE_BYTES))
    catalog = await open_catalog(directory, reserve)
    first = await declare(catalog, "first")
    for n in range(CONSUMERS):
        await catalog.insert_consumer(first, str(n), 1, 0)
    # Opened again, the database holds its pages. What is only in the WAL when the disk fills up
    # has to find room in the reserve too.
    await catalog.close()
    catalog = await open_catalog(directory, reserve)
    fill(directory / "filler")
    for offset in range(1, SAVES + 1):
        await catalog.save_positions(
            [(DEFAULT_TENANT, first, str(n), 1, offset) for n in range(CONSUMERS)]
        )
    declared, refused = await declare_until_full(catalog)
    (directory / "filler").unlink()
    declared.append(await declare(catalog, "after"))
    await catalog.close()
    catalog = await open_catalog(directory, reserve)
    topics, _, consumers = await catalog.load()
    await catalog.close()
    seen = {
        "refused": refused,
        "lost": sorted(set(declared) - {row.topic_id for row in topics}),
        "positions": sorted({row.next_offset for row in consumers}),
    }
    print(json.dumps(seen))


asyncio.run(main(Path(sys.argv[1])))
