"""Is erasing acknowledged only when no file of the catalog has an erased retained message?"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.app.aio import AsyncBroker
from penstock.broker.topic import erasing
from penstock.catalog.session.retained import RetainedRow
from penstock.catalog.session.saving import Checkpoint
from penstock.log.files.upkeep.ordered import ERASE_NAME
from penstock.model.errors import UnavailableError
from tests.history.test_erasing import files_with

TOPIC = "orders"
SECRET = b"what nobody may find any more" * 40
READS = """
import sqlite3, sys
catalog = sqlite3.connect(sys.argv[1], isolation_level=None)
catalog.execute("begin")
print(len(catalog.execute("select * from retained").fetchall()), flush=True)
sys.stdin.read()
"""


@contextmanager
def reader_of(catalog: Path) -> Iterator[None]:
    """Another program, which is in the middle of reading the catalog."""
    with subprocess.Popen(
        [sys.executable, "-c", READS, str(catalog)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as program:
        assert program.stdin is not None and program.stdout is not None
        try:
            assert program.stdout.readline() == b"1\n"
            yield
        finally:
            program.stdin.close()


@pytest.fixture
def catalog(tmp_path: Path) -> Path:
    return tmp_path / "catalog.db"


def wal(catalog: Path) -> bytes:
    # Read by itself: closing another file of the catalog drops the locks of this process on it.
    return Path(f"{catalog}-wal").read_bytes()


def has_orders(root: Path) -> bool:
    """Is there an order to erase that is not finished?"""
    return any(root.rglob(ERASE_NAME))


async def retain(broker: AsyncBroker) -> None:
    """What the catalog has of a retained message."""
    await broker.create_topic(TOPIC)
    await broker.publish(SECRET, TOPIC, name=f"{TOPIC}/alice")
    topic = broker.engine.topics.get(TOPIC)
    row = RetainedRow(f"{TOPIC}/alice", topic.id, 0, 1, 0, 1, 0, "alice", (), SECRET)
    point = Checkpoint()
    point.retained.append(row)
    await broker.engine.session_catalog.save(point)


async def test_erasing_waits_for_a_program_that_reads_the_catalog(
    tmp_path: Path, catalog: Path
) -> None:
    async with AsyncBroker(tmp_path) as broker:
        await retain(broker)
        with reader_of(catalog):
            work = asyncio.create_task(broker.erase(f"{TOPIC}/alice", TOPIC))
            await broker.publish("others go on", TOPIC)
            done, _ = await asyncio.wait([work], timeout=0.3)
            assert not done
        assert (await work).retained == 1
    assert files_with(tmp_path, SECRET) == []


async def test_erasing_is_not_acknowledged_while_a_program_reads_the_catalog(
    tmp_path: Path, catalog: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasing, "SCRUB_TRIES_MAX", 2)
    async with AsyncBroker(tmp_path, upkeep_s=3_600.0) as broker:
        await retain(broker)
        with reader_of(catalog):
            with pytest.raises(UnavailableError, match=r"another program .* order is stored"):
                await broker.erase("#", TOPIC)
            assert SECRET in wal(catalog), "what the test is about"
            assert has_orders(tmp_path), "the next start does not forget it"
            await broker.engine.erasing.go_on()
            await broker.engine.erasing.wait_done()
            (trouble,) = broker.engine.upkeep.troubles.values()
            assert "not erased yet: another program reads the catalog" in trouble
        await broker.engine.erasing.go_on()
        await broker.engine.erasing.wait_done()
        assert wal(catalog) == b""
        assert not has_orders(tmp_path) and not broker.engine.upkeep.troubles
    assert files_with(tmp_path, SECRET) == []


async def test_the_next_start_finishes_erasing_that_a_reader_of_the_catalog_held_up(
    tmp_path: Path, catalog: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasing, "SCRUB_TRIES_MAX", 1)
    async with AsyncBroker(tmp_path, upkeep_s=3_600.0) as broker:
        await retain(broker)
        with reader_of(catalog):
            with pytest.raises(UnavailableError, match="order is stored"):
                await broker.erase("#", TOPIC)
            await broker.close()
    async with AsyncBroker(tmp_path) as broker:
        await broker.engine.erasing.wait_done()
        assert not has_orders(tmp_path)
    assert files_with(tmp_path, SECRET) == []
