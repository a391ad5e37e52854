"""Is a data directory open once, freed by any kind of death, and kind to small disks?"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from penstock.core.delivery.run import run_of
from penstock.log.files.directory import (
    LOCK_NAME,
    RESERVE_BYTES_MAX,
    RESERVE_NAME,
    RESERVE_STEP,
    DataDirectory,
    read_holder,
)
from penstock.log.files.disk import RealDisk
from penstock.log.files.layout import find_logs
from penstock.log.interface import LogIdentity
from penstock.model.errors import UnavailableError
from tests.appends import append
from tests.log.files.stores import IDENTITY, StoreWorld, open_world, read_all

HOLD = """
import sys
from pathlib import Path
from penstock.log.files.directory import DataDirectory
directory = DataDirectory(Path(sys.argv[1]))
directory.take()
directory.announce(sys.argv[2:])
print("held", flush=True)
sys.stdin.read()
directory.release()
"""


def hold_elsewhere(path: Path, *addresses: str) -> subprocess.Popen[str]:
    """Another process that has the directory open until its standard input closes."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path), *addresses],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        text=True,
    )
    assert child.stdout is not None and child.stdout.readline() == "held\n"
    return child


def finish(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.communicate()


def test_a_second_opening_in_this_process_is_refused(tmp_path: Path) -> None:
    first, second = DataDirectory(tmp_path), DataDirectory(tmp_path)
    first.take()
    with pytest.raises(UnavailableError, match="open in this process.*close it there first"):
        second.take()
    assert read_holder(tmp_path) == {"pid": os.getpid(), "addresses": []}
    first.release()
    assert read_holder(tmp_path) is None
    second.take()
    second.release()


def test_an_opening_in_another_process_is_refused_with_its_pid_and_addresses(
    tmp_path: Path,
) -> None:
    child = hold_elsewhere(tmp_path, "mqtt://127.0.0.1:1883", "http://127.0.0.1:8090")
    try:
        with pytest.raises(UnavailableError) as refused:
            DataDirectory(tmp_path).take()
        text = str(refused.value)
        assert f"process {child.pid}" in text and str(tmp_path) in text
        assert "mqtt://127.0.0.1:1883, http://127.0.0.1:8090" in text
        holder = read_holder(tmp_path)
        assert holder is not None and holder["pid"] == child.pid
    finally:
        finish(child)


def test_the_lock_goes_with_a_process_that_is_killed(tmp_path: Path) -> None:
    child = hold_elsewhere(tmp_path)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert str(child.pid) in (tmp_path / LOCK_NAME).read_text(), "its words are still there"
    assert read_holder(tmp_path) is None, "and do not count"
    directory = DataDirectory(tmp_path)
    directory.take()
    holder = read_holder(tmp_path)
    assert holder is not None and holder["pid"] == os.getpid()
    directory.release()


def test_the_lock_is_not_inherited_by_programs_that_are_started(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    directory.take()
    child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        directory.release()
        assert child.poll() is None
        again = DataDirectory(tmp_path)
        again.take()
        holder = read_holder(tmp_path)
        assert holder is not None and holder["pid"] == os.getpid()
        again.release()
    finally:
        child.kill()
        child.wait()


def test_somebody_who_only_looks_keeps_nobody_from_opening(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    directory.take()
    directory.release()
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            read_holder(tmp_path)

    lookers = [threading.Thread(target=look) for _ in range(2)]
    for looker in lookers:
        looker.start()
    try:
        for _ in range(100):
            directory.take()
            holder = read_holder(tmp_path)
            assert holder is not None and holder["pid"] == os.getpid()
            directory.release()
    finally:
        stop.set()
        for looker in lookers:
            looker.join()


def test_a_damaged_lock_file_is_still_a_lock(tmp_path: Path) -> None:
    fd = os.open(tmp_path / LOCK_NAME, os.O_RDWR | os.O_CREAT)
    os.write(fd, b"not json")
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert read_holder(tmp_path) == {}
    with pytest.raises(UnavailableError, match="process unknown"):
        DataDirectory(tmp_path).take()
    os.close(fd)


def test_a_directory_that_cannot_be_made_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UnavailableError, match="cannot be opened: Not a directory"):
        DataDirectory(tmp_path / "file" / "data").take()
    assert read_holder(tmp_path / "nowhere") is None


def test_the_directory_and_its_parents_are_made(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path / "a" / "b")
    directory.take()
    assert (tmp_path / "a" / "b" / LOCK_NAME).exists()
    directory.release()


# The reserve


class Space:
    """What statvfs tells of a file system with this much space left."""

    f_frsize = 4096

    def __init__(self, free_bytes: int) -> None:
        self.f_bavail = free_bytes // self.f_frsize


def set_free(monkeypatch: pytest.MonkeyPatch, free_bytes: int) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: Space(free_bytes))


def test_the_reserve_is_set_aside_and_given_back_in_steps(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    directory.take()
    directory.set_reserve()
    path = tmp_path / RESERVE_NAME
    assert path.stat().st_size == RESERVE_BYTES_MAX
    assert path.stat().st_blocks * 512 >= RESERVE_BYTES_MAX, "the space is really taken"
    sizes = []
    while directory.free_reserve():
        sizes.append(path.stat().st_size)
    assert sizes == sorted(sizes, reverse=True) and sizes[-1] == 0
    assert all(size % RESERVE_STEP == 0 for size in sizes)
    directory.set_reserve()
    assert path.stat().st_size == RESERVE_BYTES_MAX
    directory.release()


@pytest.mark.parametrize("free_mib", [0, 1, 8, 40])
def test_the_reserve_shrinks_with_free_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_mib: int
) -> None:
    directory = DataDirectory(tmp_path)
    directory.take()
    set_free(monkeypatch, free_mib << 20)
    directory.set_reserve()
    path = tmp_path / RESERVE_NAME
    size = path.stat().st_size if path.exists() else 0
    assert size <= (free_mib << 20) // 8 and size < RESERVE_BYTES_MAX
    assert size > 0 or free_mib <= 1
    assert directory.free_reserve() is (size > 0)
    directory.release()


def test_a_reserve_from_an_earlier_run_is_kept_on_a_disk_that_is_full_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    DataDirectory(tmp_path).set_reserve()
    set_free(monkeypatch, 0)
    directory = DataDirectory(tmp_path)
    directory.set_reserve()
    assert (tmp_path / RESERVE_NAME).stat().st_size == RESERVE_BYTES_MAX
    assert directory.free_reserve()


# What else lies there


async def test_files_that_are_not_ours_are_left_alone(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        log = await world.create()
        await append(log, run_of("n", [b"x"]))
        await log.close()
    directory = tmp_path / "default" / "orders-1"
    strangers = {
        tmp_path / "notes.txt": b"mine",
        tmp_path / "default" / "backup.tar": b"mine",
        tmp_path / "default" / "not a log-7" / "data": b"mine",
        directory / "README": b"mine",
        directory / "1.log": b"mine",  # not twenty digits
        directory / f"{7:020d}.log.bak": b"mine",
        directory / "x.sealing": b"mine",
        directory / "mine.log.tmp": b"mine",
    }
    for path, data in strangers.items():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)

    async with open_world(tmp_path) as world:
        world.store.finish_deletions()
        assert world.store.list() == [IDENTITY]
        log = await world.store.open(IDENTITY, (await world.store.describe(IDENTITY))[1])
        await append(log, run_of("n", [b"y"]))
        assert [r.payload for r in await read_all(log)] == [b"x", b"y"]
        await log.seal_closed()
        await log.close()
        assert world.problems() == []
    assert {path: path.read_bytes() for path in strangers} == strangers


def test_a_directory_without_topic_json_is_no_log(tmp_path: Path) -> None:
    (tmp_path / "default" / "half-3").mkdir(parents=True)
    (tmp_path / "default" / "half-3" / f"{0:020d}.log").write_bytes(b"")
    (tmp_path / "default" / "whole-with-dashes-12").mkdir()
    (tmp_path / "default" / "whole-with-dashes-12" / "topic.json").write_text("{}")
    assert find_logs(RealDisk(), tmp_path) == [LogIdentity("default", 12, "whole-with-dashes")]


async def test_what_a_crash_left_of_a_deletion_is_finished(world: StoreWorld) -> None:
    log = await world.create()
    await log.close()
    doomed = world.directory.with_name(world.directory.name + ".deleted")
    world.directory.rename(doomed)
    assert world.store.list() == []
    world.store.finish_deletions()
    assert not doomed.exists()
