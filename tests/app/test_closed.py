"""Is a closed data directory listed as a broker would list it, without being touched?"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random

import pytest

from penstock import AsyncBroker, Broker
from penstock.app.closed import read_topics
from penstock.catalog.outside import CATALOG_NAME
from penstock.log.files.directory import STORAGE_NAME
from penstock.log.files.layout import AREA


@pytest.fixture
async def data(tmp_path: Path) -> AsyncIterator[Path]:
    """A directory with topics of several kinds, closed in order."""
    path = tmp_path / "data"
    async with AsyncBroker(path) as broker:
        await broker.create_topic("Empty", retention_age=None)
        await broker.create_topic("loose", durability="os", retention_bytes="1 MiB")
        await broker.publish_many(range(10), "loose")
        await broker.create_topic("long", segment_bytes="64 KiB", retention_bytes="256 KiB")
        noise = Random(1)  # lz4 finds nothing in it
        for _ in range(6):
            await broker.publish_many([noise.randbytes(10_000) for _ in range(7)], "long")
        await broker.engine.upkeep.look_after_all()
        await broker.publish("newest", "long")
    yield path


def contents(path: Path) -> dict[Path, tuple[int, bytes]]:
    return {
        file: (file.stat().st_mtime_ns, file.read_bytes())
        for file in path.rglob("*")
        if file.is_file()
    }


def test_a_closed_directory_is_listed_as_a_broker_lists_it(data: Path) -> None:
    before = contents(data)
    found = read_topics(data)
    assert contents(data) == before
    with Broker(data) as broker:
        assert found == broker.topics()
    assert read_topics(data) == found
    assert found is not None and found[-1].first_offset > 0
    assert len(list(_log(data, "long").glob("*.log"))) > 2  # closed ones beside the newest


def test_no_topic_is_an_answer(tmp_path: Path) -> None:
    Broker(tmp_path / "data").close()
    assert read_topics(tmp_path / "data") == []


def test_a_directory_that_somebody_has_open_is_not_read(data: Path) -> None:
    with Broker(data):
        assert read_topics(data) is None
    assert read_topics(data) is not None


def _log(data: Path, name: str) -> Path:
    (found,) = (data / "default").glob(f"{name}-*")
    return found


def _flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(content)


def _change_catalog(data: Path, sql: str) -> None:
    connection = sqlite3.connect(data / CATALOG_NAME)
    connection.execute(sql)
    connection.commit()
    connection.close()


def _copy_log(data: Path) -> None:
    shutil.copytree(_log(data, "loose"), data / "default" / "loose-99")


FINDINGS: dict[str, Callable[[Path], object]] = {
    "no directory": shutil.rmtree,
    "no catalog": lambda data: (data / CATALOG_NAME).unlink(),
    "a catalog that is no database": lambda data: (data / CATALOG_NAME).write_text("text" * 999),
    "a catalog that was not closed": lambda data: (data / f"{CATALOG_NAME}-wal").touch(),
    "a catalog of another version": lambda data: _change_catalog(
        data, "insert into schema_version values (99999)"
    ),
    "a log that no row speaks of": _copy_log,
    "a row without its log": lambda data: shutil.rmtree(_log(data, "loose")),
    "topics kept elsewhere": lambda data: (data / STORAGE_NAME).write_text("{}"),
    "staged records": lambda data: (data / AREA).mkdir(),
    "damaged facts": lambda data: _flip(_log(data, "loose") / "topic.json", 20),
    "no end": lambda data: (_log(data, "loose") / "end").unlink(),
    "a damaged end": lambda data: _flip(_log(data, "loose") / "end", 10),
    "a damaged record": lambda data: _flip(max(_log(data, "loose").glob("*.log")), -1),
    "a damaged header": lambda data: _flip(max(_log(data, "loose").glob("*.log")), 0),
    "damage in an older segment": lambda data: _flip(min(_log(data, "long").glob("*.log")), -1),
}


@pytest.mark.parametrize("finding", FINDINGS)
def test_what_takes_a_broker_is_left_to_a_broker(data: Path, finding: str) -> None:
    FINDINGS[finding](data)
    assert read_topics(data) is None


def test_a_directory_that_was_not_closed_in_order_is_left_to_a_broker(data: Path) -> None:
    copy = data.with_name("copy")
    with Broker(data) as broker:
        broker.publish("x", "loose")
        shutil.copytree(data, copy)
    for file in copy.glob(f"{CATALOG_NAME}-*"):
        file.unlink()
    assert read_topics(copy) is None
