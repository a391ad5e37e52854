"""Is everything that was acknowledged there after kill -9 of the process that committed it?"""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.catalog.catalog import Catalog
from penstock.catalog.database.sqlite import SqliteDatabase
from penstock.catalog.database.thread import InlineRunner

CHILD = Path(__file__).parent / "committing_child.py"
ROUNDS = 12
ACKS_MAX = 400


def acknowledged_before_kill(path: Path, acks: int) -> list[str]:
    """Lines the child wrote before it was killed, after `acks` of them at the earliest."""
    with subprocess.Popen([sys.executable, str(CHILD), str(path)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(acks)]
        child.kill()
        lines += child.stdout.readlines()
    return [line.decode().strip() for line in lines if line.endswith(b"\n")]


async def contents(path: Path) -> tuple[set[int], dict[str, int], int]:
    catalog = await Catalog.open(InlineRunner(SqliteDatabase(path)))
    topics, _, consumers = await catalog.load()
    next_id = await catalog.reserve_topic_id()
    await catalog.close()
    ids = {int(row.topic_id) for row in topics}
    return ids, {row.consumer: row.next_offset for row in consumers}, next_id


def assert_intact(path: Path) -> None:
    connection = sqlite3.connect(path)
    assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
    assert connection.execute("pragma foreign_key_check").fetchall() == []
    connection.close()


@pytest.mark.slow
async def test_every_acknowledged_change_survives_kill_9(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    path = tmp_path / "catalog.db"
    topics: set[int] = set()
    positions: dict[str, int] = {}
    for _ in range(ROUNDS):
        lines = acknowledged_before_kill(path, chance.randrange(1, ACKS_MAX))
        for line in lines:
            kind, *values = line.split()
            if kind == "topic":
                topic_id = int(values[0])
                assert topic_id not in topics, "an id was handed out twice"
                topics.add(topic_id)
            else:
                positions[values[0]] = int(values[1])
        stored_topics, stored_positions, next_id = await contents(path)
        assert topics <= stored_topics
        assert all(stored_positions[consumer] >= at for consumer, at in positions.items())
        # One save may have been stored whose acknowledgement the kill cut off.
        assert all(stored_positions[consumer] <= at + 1 for consumer, at in positions.items())
        assert next_id > max(stored_topics)
        assert_intact(path)
        topics, positions = stored_topics, stored_positions
    assert len(topics) > ROUNDS
