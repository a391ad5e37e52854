"""A broker that tiers, trims and erases, step by step, and says what it was told is stored.

Usage: tiering_child.py DIRECTORY ACKS. Each line of ACKS is a JSON array: ["stored", end],
["erasing"], ["erased"].
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from pathlib import Path

from penstock.app.aio import AsyncBroker
from tests.history.world import SEGMENT_BYTES, TOPIC, keep

# In records of Alice that are erased, and in no other; no compression changes it.
SECRET = random.Random("alice").randbytes(24)
ROUNDS = 4
ROUND_RECORDS = 120
ERASED_END = ROUNDS * ROUND_RECORDS
RECORD_BYTES = 700


def payload(offset: int) -> bytes:
    """What the record at an offset holds: it does not compress, and no two are the same."""
    body = b"%d " % offset + random.Random(offset).randbytes(RECORD_BYTES)
    return SECRET + body if is_erased(offset) else body


def is_erased(offset: int) -> bool:
    """Is it there when the order is given?"""
    return is_alice(offset) and offset < ERASED_END


def is_alice(offset: int) -> bool:
    return offset % 10 == 3


def name_of(offset: int) -> str:
    return f"{TOPIC}/alice" if is_alice(offset) else f"{TOPIC}/bob"


async def publish(broker: AsyncBroker, first: int, acks: Path) -> None:
    with acks.open("ab", buffering=0) as told:
        for offset in range(first, first + ROUND_RECORDS):
            assert await broker.publish(payload(offset), TOPIC, name=name_of(offset)) == offset
            if offset % 10 == 9:
                told.write(json.dumps(["stored", offset + 1]).encode() + b"\n")


async def main(root: Path, acks: Path) -> None:
    settings = {
        "upkeep_s": 3_600.0,
        "segment_bytes": SEGMENT_BYTES,
        "history_url": str(root / "history"),
        "disk_free_percent_min": 0,
    }
    async with AsyncBroker(root / "data", **settings) as broker:
        await broker.create_topic(TOPIC, history=True, retention_bytes=SEGMENT_BYTES)
        for number in range(ROUNDS):
            await publish(broker, number * ROUND_RECORDS, acks)
            await keep(broker)
        with acks.open("ab", buffering=0) as told:
            told.write(b'["erasing"]\n')
            await broker.erase(f"{TOPIC}/alice", TOPIC)
            told.write(b'["erased"]\n')
        await publish(broker, ERASED_END, acks)
        await keep(broker)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
