"""Does the table of a history name every file exactly once, and refuse what somebody else did?"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from penstock.log.format.batch import Batch
from penstock.log.history.files import EncodedFile, FileFacts, encode_file
from penstock.log.history.manifest import (
    Manifest,
    create_manifest,
    file_facts,
    open_manifest,
)
from penstock.log.history.orders import TableFacts
from penstock.log.history.place import HistoryRoot, TablePlace
from penstock.log.history.reading.orders import LIST, Order
from penstock.log.history.reading.serving import carry_out
from penstock.log.history.reading.tables import Tables
from penstock.log.history.schema import SCHEMA
from penstock.log.history.storage import DirectoryStorage, storage_of
from penstock.log.interface import LogIdentity
from penstock.model.errors import CorruptError, RefusedError, UnavailableError
from tests.log.files.segments import plain_run
from tests.log.format.batch_model import TOPIC, ModelLog, T

FACTS = TableFacts(TOPIC, 7, "life")


class TableWorld:
    """A log of a hundred records in memory, and a table that takes parts of it."""

    def __init__(self, path: Path) -> None:
        self.storage = DirectoryStorage(path / "table")
        self.model = ModelLog()
        self.batches: list[Batch] = [
            self.model.batch([plain_run(f"n/{i % 3}", [b"%d" % i] * 10, 1_000)]) for i in range(10)
        ]

    def file(self, base: int, end: int) -> EncodedFile:
        return encode_file(self.batches, base, end, FileFacts(TOPIC, 7, 2))

    def opened(self) -> Manifest:
        manifest = open_manifest(self.storage)
        assert manifest is not None
        return manifest


@pytest.fixture
def world(tmp_path: Path) -> TableWorld:
    return TableWorld(tmp_path)


def test_a_table_says_after_reopening_what_was_added(world: TableWorld) -> None:
    assert open_manifest(world.storage) is None
    manifest = create_manifest(world.storage, FACTS)
    assert (manifest.first, manifest.end, manifest.files) == (0, 0, [])
    for base, end in ((5, 20), (20, 100)):
        manifest.add(world.file(base, end), 2)
    for found in (manifest, world.opened()):
        assert [(file.name.base, file.name.end) for file in found.files] == [(5, 20), (20, 100)]
        assert (found.first, found.end, found.epoch, found.facts) == (5, 100, 2, FACTS)
        assert found.files[0].first_timestamp == world.model.records[5].timestamp > T
        assert found.files[1].last_timestamp == world.model.records[99].timestamp
        assert file_facts(found, 4) == FileFacts(TOPIC, 7, 4)
    found.open_file(found.files[0]).verify()
    assert DeltaTable(world.storage.uri).to_pyarrow_table().num_rows == 95


def test_a_file_that_does_not_follow_is_refused_and_one_that_is_there_is_fine(
    world: TableWorld,
) -> None:
    manifest = create_manifest(world.storage, FACTS)
    manifest.add(world.file(0, 20), 2)
    with pytest.raises(RefusedError, match="ends at offset 20: a file that begins at 30"):
        manifest.add(world.file(30, 40), 2)
    manifest.add(world.file(0, 20), 2)
    assert manifest.end == 20 and len(manifest.files) == 1


class GarblingStorage(DirectoryStorage):
    """Stores one wrong bit of every history file."""

    def put(self, name: str, data: pa.Buffer) -> None:
        garbled = bytearray(data)
        garbled[len(garbled) // 2] ^= 1
        super().put(name, pa.py_buffer(garbled))


def test_a_file_that_the_store_changes_is_not_named(world: TableWorld) -> None:
    manifest = create_manifest(world.storage, FACTS)
    manifest.storage = GarblingStorage(world.storage.path)
    with pytest.raises(CorruptError, match="the store gives back other bytes than it was given"):
        manifest.add(world.file(0, 20), 2)
    assert (world.opened().files, world.opened().end) == ([], 0)


def test_of_two_writers_only_one_adds_the_same_range(world: TableWorld) -> None:
    first = create_manifest(world.storage, FACTS)
    second = world.opened()
    first.add(world.file(0, 20), 2)
    with pytest.raises(RefusedError, match="ends at offset 20"):
        second.add(world.file(0, 30), 2)
    # As if it had looked before the other one committed.
    second.refresh = lambda: None  # type: ignore[method-assign]
    second.end, second.files = 0, []
    second._table.load_as_version(0)
    with pytest.raises(UnavailableError, match="somebody else writes the history"):
        second.add(world.file(0, 30), 2)
    assert [file.name.end for file in world.opened().files] == [20]


def test_only_what_a_dead_writer_left_is_removed(world: TableWorld) -> None:
    manifest = create_manifest(world.storage, FACTS)
    manifest.add(world.file(0, 20), 2)
    orphan = world.file(20, 40)
    world.storage.put(str(orphan.name), orphan.data)
    world.storage.put(f"{orphan.name}.tmp", orphan.data)
    world.storage.put("notes.txt", pa.py_buffer(b"mine"))
    assert manifest.remove_orphans() == [str(orphan.name), f"{orphan.name}.tmp"]
    assert world.storage.names() == [str(manifest.files[0].name), "notes.txt"]


def test_oldest_files_leave_the_table_and_its_end_stays(world: TableWorld) -> None:
    manifest = create_manifest(world.storage, FACTS)
    for base in (0, 50):
        manifest.add(world.file(base, base + 50), 2)
    manifest.remove(manifest.files[:1])
    assert (manifest.first, manifest.end) == (50, 100)
    manifest.remove(manifest.files)
    assert (manifest.first, manifest.end) == (100, 100)
    assert (world.opened().first, world.opened().end) == (100, 100)
    assert len(world.storage.names()) == 2  # readers of older versions may use them for a week
    assert manifest.vacuum() == []


def test_rows_that_somebody_else_added_are_refused_and_named(world: TableWorld) -> None:
    manifest = create_manifest(world.storage, FACTS)
    manifest.add(world.file(0, 20), 2)
    rows = manifest.open_file(manifest.files[0]).parquet.read()
    write_deltalake(world.storage.uri, rows, mode="append")
    with pytest.raises(RefusedError, match="has the file 'part-.*which Penstock did not write"):
        world.opened()


def test_a_table_of_something_else_is_not_taken_for_a_history(world: TableWorld) -> None:
    DeltaTable.create(world.storage.uri, SCHEMA)
    with pytest.raises(RefusedError, match="is not the history of a topic"):
        world.opened()


def test_a_missing_or_damaged_file_is_named(world: TableWorld) -> None:
    manifest = create_manifest(world.storage, FACTS)
    manifest.add(world.file(0, 20), 2)
    path = world.storage.path / str(manifest.files[0].name)
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptError, match=f"{path.name}: the footer does not match"):
        manifest.open_file(manifest.files[0])
    path.unlink()
    with pytest.raises(CorruptError, match=f"{path.name} is missing"):
        manifest.open_file(manifest.files[0])


def test_what_a_store_that_is_away_says_is_one_line_without_colours() -> None:
    options = {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        "max_retries": "0",
    }
    with pytest.raises(UnavailableError) as away:
        open_manifest(storage_of(TablePlace("s3://bucket/table", options)))
    told = str(away.value)
    assert told.isprintable() and "127.0.0.1:1" in told, told
    order = Order(1, LIST, LogIdentity("default", 7, TOPIC))
    answer, _ = carry_out(Tables(HistoryRoot("s3://bucket", options)), order)
    assert answer.error.isprintable() and "127.0.0.1:1" in answer.error


def test_other_programs_read_bounds_from_the_table(world: TableWorld) -> None:
    manifest = create_manifest(world.storage, FACTS)
    manifest.add(world.file(10, 20), 2)
    commit = (world.storage.path / "_delta_log" / f"{1:020}.json").read_text()
    (added,) = [json.loads(line)["add"] for line in commit.splitlines() if '"add"' in line]
    stats = json.loads(added["stats"])
    assert stats["numRecords"] == 10
    assert (stats["minValues"]["offset"], stats["maxValues"]["offset"]) == (10, 19)
