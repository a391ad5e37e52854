"""Does an archive become the history of its topic, and is one that does not fit refused?"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from penstock import Broker
from penstock.cli.main import main
from penstock.model.record import Record
from penstock.pipeline import archive
from tests.waiting import wait_until

pytestmark = pytest.mark.slow
COUNT = 400


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A topic in small segments."""
    path = tmp_path / "data"
    with Broker(path, segment_bytes="64 KiB", upkeep_s=3_600.0) as broker:
        broker.create_topic("Orders", retention_age="unlimited")
        for number in range(COUNT):
            headers = {"k": "v"} if number % 2 else None
            payload = f"{number} ".encode() + bytes(1_000)
            broker.publish(payload, "orders", name=f"orders/{number % 3}", headers=headers)
    archive("Orders", tmp_path / "archive", path=path)
    return path


def records(data: Path) -> list[Record]:
    with Broker(data, history_url=str(data.parent / "history")) as broker:
        return broker.read("orders", start=0)


def trim(data: Path, count: int) -> None:
    for path in sorted((data / "default" / "orders-1").glob("*.log"))[:count]:
        path.unlink()


def run(data: Path, *more: str, table: str = "default/orders-1") -> int:
    url = str(data.parent / "history")
    place = ("--at", str(data), "--url", url)
    return main(["history", "import", table, str(data.parent / "archive"), *place, *more])


def test_an_archive_becomes_the_history_that_readers_go_on_into(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = records(data)
    trim(data, 2)
    assert run(data, "--dry-run") == 0
    assert "would import offsets 0 to 399 of topic Orders" in capsys.readouterr().out
    assert not (data.parent / "history").exists()
    assert run(data) == 0
    found = records(data)
    assert [(r.offset, r.timestamp, r.name, r.payload, r.headers) for r in found] == [
        (r.offset, r.timestamp, r.name, r.payload, r.headers) for r in before
    ]
    url = str(data.parent / "history")
    assert main(["log", "verify", "--history", "--at", str(data), "--url", url]) == 0
    assert run(data) == 1
    assert "has a history already" in capsys.readouterr().err


def test_an_archive_that_does_not_fit_is_refused_with_the_reason(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(data, table="default/other-1") == 1
    assert "has no topic 'default/other-1'" in capsys.readouterr().err
    table = DeltaTable(str(data.parent / "archive"))
    rows = table.to_pyarrow_table()
    table.delete("offset = 7")
    assert run(data) == 1
    assert "offset 6 is followed by 8" in capsys.readouterr().err
    table.delete("offset >= 8")
    table.delete("offset < 7")
    write_deltalake(table, rows.slice(0, 0), mode="append")
    assert run(data) == 1
    assert "has no records of topic 'Orders' with id 1" in capsys.readouterr().err
    assert not (data.parent / "history").exists()


def test_an_archive_that_ends_before_the_log_begins_is_refused(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trim(data, 3)
    DeltaTable(str(data.parent / "archive")).delete("offset >= 50")
    assert run(data) == 1
    assert "must reach the first record of the log" in capsys.readouterr().err


def test_the_archive_of_another_topic_is_refused(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = DeltaTable(str(data.parent / "archive"))
    table.update(predicate="offset = 399", new_values={"name": "orders/other"})
    assert run(data) == 1
    assert "different records at offset 399" in capsys.readouterr().err


def test_an_import_that_was_killed_is_repeated_by_the_same_command(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = records(data)
    trim(data, 2)
    table = data.parent / "history" / "default" / "orders-1"
    # Killed after the table was made, with a file that no commit names, and with some named.
    for commits in range(4):
        kill_import_at(data, commits)
        with Broker(data, history_url=str(data.parent / "history"), upkeep_s=0.02) as broker:
            broker.alter_topic("orders", history=True)
            wait_until(lambda: "was interrupted" in trouble_of(broker))
    assert len(DeltaTable(str(table)).file_uris()) >= 2
    assert run(data) == 0
    found = records(data)
    assert [(r.offset, r.timestamp, r.payload) for r in found] == [
        (r.offset, r.timestamp, r.payload) for r in before
    ]
    named = {Path(uri).name for uri in DeltaTable(str(table)).file_uris()}
    assert {path.name for path in table.glob("*.parquet*")} == named
    assert run(data) == 1
    assert "has a history already" in capsys.readouterr().err


def trouble_of(broker: Broker) -> str:
    (topic,) = broker.topics()
    return "" if topic.history is None else topic.history.trouble


def kill_import_at(data: Path, commits: int) -> None:
    """Import in files of 100 rows, and end like kill -9 before a commit, its file being stored."""
    program = f"""
import os
from penstock.cli.main import main
from penstock.log.history import importing, manifest
importing.FILE_ROWS = 100
commit, done = manifest.Manifest._commit, []
def dying(*arguments):
    if len(done) == {min(commits, 1)}:
        os._exit(9)
    done.append(commit(*arguments))
manifest.Manifest._commit = dying
if {commits} == 0:
    importing.create_manifest = lambda *arguments: os._exit(9)
main(["history", "import", "default/orders-1", {str(data.parent / "archive")!r},
      "--at", {str(data)!r}, "--url", {str(data.parent / "history")!r}])
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 9
