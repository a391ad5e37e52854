"""Can another account of this machine read what a broker stores, whatever the umask is?"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.catalog.reports import RunReport
from penstock.log.staging import StagingArea
from penstock.model.runs import RUNNING, PipelineRun
from tests.doors.served import Served
from tests.doors.users import add_users
from tests.doors.wire import Wire
from tests.http.asking import Asking


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(root: Path) -> dict[str, int]:
    """Every file and directory that is not for its owner alone -> its mode."""
    found = {}
    for path in [root, *root.rglob("*")]:
        wanted = 0o700 if path.is_dir() else 0o600
        mode = path.stat().st_mode & 0o7777
        if mode != wanted:
            found[str(path.relative_to(root))] = mode
    return found


def use(data: Path) -> None:
    """A broker that has been used through every door."""
    with Served(data) as broker:
        with Asking(broker.http_port) as client:
            assert client.ask("PUT", "/v1/topics/orders").status in (200, 201)
            for _ in range(3):
                client.ask("POST", "/v1/topics/orders/records", {"payload": "x" * 1_000})
        with Wire(broker.port, "kept") as wire:
            wire.connect(clean=False)
            wire.subscribe("a/#", qos=1)
            wire.publish("a/b", b"x", 1)
            wire.receive()  # else it comes again, before the answer to the next SUBSCRIBE
            wire.settle()
        assert (data / "catalog.db-wal").exists() and modes(data) == {}


def test_all_that_a_broker_writes_is_for_its_user_alone(tmp_path: Path, umask: int) -> None:
    use(tmp_path / "data")
    assert modes(tmp_path / "data") == {}


def test_what_commands_and_jobs_write_is_for_their_user_alone(tmp_path: Path, umask: int) -> None:
    data = tmp_path / "data"
    add_users(data, alice="wonder")
    StagingArea(data).begin("source", 1, "0", 1).finish()
    with RunReport(data, PipelineRun("one", "stats", [], RUNNING, 0, 0)) as report:
        report.tell(report.run)
        assert modes(data) == {}


def test_a_directory_of_an_earlier_version_is_closed_to_others(tmp_path: Path) -> None:
    data = tmp_path / "data"
    use(data)
    for path in [data, *data.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    use(data)
    assert modes(data) == {}
    data.chmod(0o755)
    add_users(data, alice="wonder")
    assert modes(data) == {}


def test_files_of_others_in_the_directory_are_left_alone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    use(data)
    data.chmod(0o755)
    (data / "catalog.db").chmod(0o644)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o755)
    (data / "link").symlink_to(elsewhere)
    (data / "notes").mkdir(mode=0o755)
    (data / "notes" / "mine.txt").touch(0o644)
    before = {path: path.stat().st_mode for path in (data, elsewhere, *(data / "notes").rglob("*"))}
    with Served(data):
        pass
    assert {path: path.stat().st_mode for path in before} == before
    assert (data / "catalog.db").stat().st_mode & 0o777 == 0o600
