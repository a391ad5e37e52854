"""Declares topics and moves positions until it is killed, printing what the catalog acknowledged.

Lines: `topic <id>` once the row is durable, `position <consumer> <next offset>` once it is saved.
"""

from __future__ import annotations

import asyncio
import os
import sys

from penstock.catalog.catalog import Catalog, TopicRow
from penstock.catalog.database.sqlite import SqliteDatabase
from penstock.catalog.database.thread import CatalogThread
from penstock.model.record import DEFAULT_TENANT, TopicId

HOLDER = TopicId(1)  # the topic whose consumers move; the first life declares it
MOVERS = 4
DECLARERS = 8


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())  # at once: what lies in a buffer was not acknowledged


async def declare_for_ever(catalog: Catalog) -> None:
    while True:
        topic_id = await catalog.reserve_topic_id()
        name = f"topic {topic_id}"
        await catalog.insert_topic(TopicRow(DEFAULT_TENANT, topic_id, name, name, "{}", 1))
        say(f"topic {topic_id}")


async def move_for_ever(catalog: Catalog, consumer: str, next_offset: int) -> None:
    while True:
        next_offset += 1
        await catalog.save_positions([(DEFAULT_TENANT, HOLDER, consumer, 1, next_offset)])
        say(f"position {consumer} {next_offset}")


async def main(path: str) -> None:
    catalog = await Catalog.open(await CatalogThread.start(lambda: SqliteDatabase(path)))
    topics, _, consumers = await catalog.load()
    if not topics:
        assert await catalog.reserve_topic_id() == HOLDER
        await catalog.insert_topic(TopicRow(DEFAULT_TENANT, HOLDER, "holder", "holder", "{}", 1))
    offsets = {row.consumer: row.next_offset for row in consumers}
    for consumer in map(str, range(MOVERS)):
        if consumer not in offsets:
            await catalog.insert_consumer(HOLDER, consumer, 1, 0)
            offsets[consumer] = 0
    await asyncio.gather(
        *(declare_for_ever(catalog) for _ in range(DECLARERS)),
        *(move_for_ever(catalog, consumer, offset) for consumer, offset in offsets.items()),
    )


asyncio.run(main(sys.argv[1]))
