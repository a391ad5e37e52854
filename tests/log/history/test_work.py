"""Does a table hold each record once, whoever carries out an order and however often?"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from deltalake import DeltaTable

from penstock.log.history.child import HistoryWriter, WriterLock
from penstock.log.history.files import FileFacts, encode_file
from penstock.log.history.orders import SegmentSpan, TableFacts, TableState, Write
from penstock.log.history.place import TablePlace
from penstock.log.history.storage import DirectoryStorage
from penstock.log.history.work import Tables, read_segments
from tests.log.files.segments import plain_run, write_model
from tests.log.format.batch_model import TOPIC, ModelLog
from tests.waiting import wait_until

RECORDS = 30


class OrderWorld:
    """One segment, a place for its table, and the order to write it there."""

    def __init__(self, root: Path) -> None:
        self.storage = DirectoryStorage(root / "table")
        self.lock = root / "lock"
        self.held = WriterLock()
        runs = [[plain_run("n", [b"%d" % number])] for number in range(RECORDS)]
        path = write_model(root, ModelLog(), runs).path
        self._segment = SegmentSpan(str(path), 0, RECORDS)

    def order(self, end: int = RECORDS) -> Write:
        place = TablePlace(self.storage.uri)
        facts = TableFacts(TOPIC, 7, "life")
        return Write(place, facts, [self._segment], 0, end, 1, str(self.lock))

    def perform(self, order: Write) -> TableState:
        """As a process does that has just been started and has the lock."""
        state = Tables(self.held).perform(order)
        assert state is not None
        return state

    def leave_orphan(self) -> None:
        """As a writer that was killed before its commit."""
        facts = FileFacts(TOPIC, 7, 1)
        file = encode_file(read_segments([self._segment], 20), 20, RECORDS, facts)
        self.storage.put(str(file.name), file.data)
        self.storage.put(f"{file.name}.tmp", file.data)

    def rows(self) -> list[tuple[int, bytes]]:
        table = DeltaTable(self.storage.uri).to_pyarrow_table(columns=["offset", "payload"])
        return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))

    def check_each_once(self) -> None:
        assert self.rows() == [(number, b"%d" % number) for number in range(RECORDS)]


@pytest.fixture
def world(tmp_path: Path) -> OrderWorld:
    return OrderWorld(tmp_path)


def test_an_order_that_an_earlier_process_carried_out_changes_nothing(world: OrderWorld) -> None:
    assert world.perform(world.order(20)).end == 20
    first = world.perform(world.order())
    assert (first.end, first.files) == (RECORDS, 2)
    assert world.perform(world.order()) == first
    assert world.perform(world.order(20)) == first
    world.check_each_once()


def test_what_a_killed_writer_left_is_removed_by_the_next_one(world: OrderWorld) -> None:
    world.perform(world.order(20))
    world.leave_orphan()
    world.perform(world.order(25))
    assert len(world.storage.names()) == 2, "the files that the table names"
    world.perform(world.order())
    world.check_each_once()


@pytest.mark.slow
def test_a_writer_waits_for_one_that_has_begun(world: OrderWorld) -> None:
    """Else it would remove as an orphan what the other one is about to name."""
    world.perform(world.order(20))
    world.leave_orphan()
    writer = HistoryWriter()
    states: list[TableState | None] = []
    asking = threading.Thread(target=lambda: states.append(writer.ask(world.order())), daemon=True)
    asking.start()
    wait_until(lambda: is_waited_for(world.lock))
    assert len(world.storage.names()) == 3 and not states
    (fd,) = world.held._fds.values()
    os.close(fd)
    asking.join()
    writer.close()
    assert [state.end for state in states if state] == [RECORDS]
    world.check_each_once()


def is_waited_for(path: Path) -> bool:
    """Does some process wait for the lock of a file?"""
    inode = f":{path.stat().st_ino} "
    lines = Path("/proc/locks").read_text().splitlines()
    return any("-> FLOCK" in line and inode in line for line in lines)
