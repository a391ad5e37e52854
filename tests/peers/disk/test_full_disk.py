"""Does a full disk refuse publishes and nothing else, and is all well again once there is space?

On a small tmpfs, which takes root to mount.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import Broker, UnavailableError
from penstock.log.files.disk import RealDisk
from penstock.log.files.endfile import read_end
from penstock.log.files.layout import find_logs, log_directory
from penstock.log.files.segment import segment_path
from penstock.log.files.upkeep.verify import verify_log
from penstock.model.limits import KIB, MIB
from tests.peers.disk import filling_child

RESUME_S_MAX = 30.0  # far more than it takes; a bound, not a measure

SmallDisk = Callable[[int], Path]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A file system of so many bytes, of which the mount point is returned."""
    mounted: list[Path] = []

    def mount(size: int) -> Path:
        folder = tmp_path / f"disk-{len(mounted)}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (
            f"{done.stderr.strip()}: mounting takes root; or run the tests under `unshare -rm`"
        )
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


class Ballast:
    """A file of somebody else that takes up space."""

    def __init__(self, disk: Path) -> None:
        self._path = disk / "ballast"

    def take(self, size: int) -> None:
        with self._path.open("ab") as file:
            file.write(bytes(size))

    def take_all(self) -> None:
        """Until not a single page is left."""
        with self._path.open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4 * KIB))
            except OSError as full:
                assert full.errno == errno.ENOSPC

    def drop(self) -> None:
        self._path.unlink()


def payload(offset: int) -> bytes:
    """Recognisable, of any size, and not to be compressed."""
    return random.Random(offset).randbytes(offset * 977 % 20_000)


def publish_until_refused(broker: Broker, topic: str, start: int) -> tuple[int, str]:
    """(the end that was acknowledged, what the refusal said)"""
    for offset in range(start, start + 100_000):
        try:
            assert broker.publish(payload(offset), topic) == offset
        except UnavailableError as refusal:
            return offset, str(refusal)
    raise AssertionError("never refused")


def publish_when_possible(broker: Broker, topic: str, offset: int) -> None:
    """Keep trying, as a publisher does, until the broker takes it."""
    give_up_s = time.monotonic() + RESUME_S_MAX
    while True:
        try:
            assert broker.publish(payload(offset), topic) == offset
            return
        except UnavailableError:
            assert time.monotonic() < give_up_s, "publishing did not resume"
            time.sleep(0.01)


def check_records(broker: Broker, topic: str, end: int) -> None:
    records = broker.read(topic)
    assert [record.offset for record in records] == list(range(end))
    assert [record.payload for record in records] == [payload(n) for n in range(end)]


def check_files(directory: Path) -> None:
    for identity in find_logs(RealDisk(), directory):
        assert verify_log(RealDisk(), log_directory(directory, identity)).problems == []


def check_cut_back(directory: Path) -> None:
    """What a refused publish had written is gone, and its space free."""
    end = read_end(RealDisk(), directory)
    assert end is not None
    assert segment_path(directory, end.segment_base).stat().st_size == end.position


@pytest.mark.parametrize("percent", [0, 5])
@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_publishing_is_refused_on_a_full_disk_and_resumes_by_itself(
    small_disk: SmallDisk, percent: float, durability: str
) -> None:
    disk = small_disk(8 * MIB)
    ballast = Ballast(disk)
    ballast.take(4 * MIB)
    settings = {"disk_free_percent_min": percent, "upkeep_s": 0.02, "segment_bytes": MIB}
    with Broker(disk / "data", **settings) as broker:
        broker.create_topic("orders", durability=durability)
        broker.subscribe("billing", "orders")
        broker.subscribe("audit", "orders")
        end, refusal = publish_until_refused(broker, "orders", 0)
        assert "disk" in refusal and "nothing was stored" in refusal
        assert end > 50
        if percent == 0:
            check_cut_back(disk / "data" / "default" / "orders-1")
        check_records(broker, "orders", end)
        while broker.consume("billing", "orders", limit=20, commit=False):
            broker.commit("billing", "orders")
        broker.seek("audit", "orders", 7)
        ballast.drop()
        publish_when_possible(broker, "orders", end)
        check_records(broker, "orders", end + 1)
    check_files(disk / "data")
    with Broker(disk / "data", **settings) as broker:
        check_records(broker, "orders", end + 1)
        positions = {one.consumer: one.next_offset for one in broker.consumers("orders")}
        assert positions == {"billing": end, "audit": 7}


def test_by_default_publishing_stops_before_the_disk_is_full(small_disk: SmallDisk) -> None:
    disk = small_disk(8 * MIB)
    with Broker(disk / "data", upkeep_s=0.02) as broker:
        broker.create_topic("orders")
        free = shutil.disk_usage(disk).free
        Ballast(disk).take(free - 8 * MIB * 7 // 100)  # a little more than the 5 % stay free
        end, refusal = 0, ""
        while "5 %" not in refusal:  # the disk itself may be the first to refuse
            end, refusal = publish_until_refused(broker, "orders", end)
        assert "disk_free_percent_min" in refusal


def test_positions_of_many_consumers_are_saved_when_not_a_byte_is_free(
    small_disk: SmallDisk,
) -> None:
    disk = small_disk(8 * MIB)
    names = [f"consumer-{n}" for n in range(300)]
    with Broker(disk / "data", disk_free_percent_min=0, position_save_s_max=60) as broker:
        broker.create_topic("orders")
        broker.publish_many([payload(n) for n in range(50)], "orders")
        for name in names:
            broker.subscribe(name, "orders")
        Ballast(disk).take_all()
        for n, name in enumerate(names):
            broker.consume(name, "orders", limit=1 + n % 40, commit=False)
            broker.commit(name, "orders")
        with pytest.raises(UnavailableError, match="disk is full"):
            broker.publish(bytes(MIB), "orders")
    with Broker(disk / "data", disk_free_percent_min=0) as broker:
        positions = {one.consumer: one.next_offset for one in broker.consumers("orders")}
        assert positions == {name: 1 + n % 40 for n, name in enumerate(names)}
    check_files(disk / "data")


def test_settings_can_be_changed_when_not_a_byte_is_free(small_disk: SmallDisk) -> None:
    disk = small_disk(8 * MIB)
    with Broker(disk / "data", disk_free_percent_min=0) as broker:
        broker.create_topic("orders")
        broker.subscribe("billing", "orders")
        Ballast(disk).take_all()
        for _ in range(50):  # until the catalog needs no more space
            broker.seek("billing", "orders", 0)
        Ballast(disk).take_all()
        broker.alter_topic("orders", retention_bytes=MIB)
    with Broker(disk / "data", disk_free_percent_min=0) as broker:
        assert broker.topics()[0].retention_bytes == MIB


def test_trimming_makes_room_on_a_full_disk(small_disk: SmallDisk) -> None:
    disk = small_disk(4 * MIB)
    settings = {"disk_free_percent_min": 0, "upkeep_s": 0.02, "segment_bytes": 256 * KIB}
    with Broker(disk / "data", **settings) as broker:
        broker.create_topic("orders")
        end, _ = publish_until_refused(broker, "orders", 0)
        broker.alter_topic("orders", retention_bytes=MIB)
        give_up_s = time.monotonic() + RESUME_S_MAX
        while (first := broker.topics()[0].first_offset) == 0:
            assert time.monotonic() < give_up_s, "nothing was trimmed"
            time.sleep(0.01)
        publish_when_possible(broker, "orders", end)
        records = broker.read("orders")
        assert [record.payload for record in records] == [payload(n) for n in range(first, end + 1)]
    check_files(disk / "data")


def test_broker_starts_and_works_in_a_few_mib(small_disk: SmallDisk) -> None:
    disk = small_disk(2 * MIB)
    for start in (0, 20):
        with Broker(disk / "data") as broker:
            broker.create_topic("orders", exist_ok=True)
            for offset in range(start, start + 20):
                broker.publish(payload(offset), "orders")
            check_records(broker, "orders", start + 20)
    check_files(disk / "data")


def test_killed_on_a_full_disk_the_broker_opens_there_again(small_disk: SmallDisk) -> None:
    disk = small_disk(8 * MIB)
    Ballast(disk).take(4 * MIB)
    child = subprocess.Popen(
        [sys.executable, str(filling_child.__file__), str(disk / "data")], stdout=subprocess.PIPE
    )
    ends = dict.fromkeys(filling_child.TOPICS, 0)
    committed = dict.fromkeys(filling_child.TOPICS, 0)
    refusals: list[str] = []
    assert child.stdout is not None
    for line in child.stdout:
        word, _, rest = line.decode().partition(" ")
        if word == "full":
            refusals.append(rest)
        else:
            topic, number = rest.split()
            (ends if word == "published" else committed)[topic] = int(number)
        if min(committed.values()) >= 5:
            break
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    Ballast(disk).take_all()
    assert len(refusals) >= 10 and all("disk is full" in refusal for refusal in refusals)
    with Broker(disk / "data", disk_free_percent_min=0) as broker:
        for topic in filling_child.TOPICS:
            payloads = [record.payload for record in broker.read(topic)]
            assert len(payloads) >= ends[topic] > 20
            assert payloads == [filling_child.message(topic, n) for n in range(len(payloads))]
            (consumer,) = broker.consumers(topic)
            assert consumer.next_offset >= committed[topic]
            broker.consume("billing", topic, limit=3)
            broker.commit("billing", topic)
        Ballast(disk).drop()
        for topic in filling_child.TOPICS:
            broker.publish(b"there is space", topic)
    check_files(disk / "data")
