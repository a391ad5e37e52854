"""Is a backup one moment of a broker, whole or not there, and is a restored broker that broker?"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import pytest

from penstock import Broker
from penstock.app.aio import AsyncBroker
from penstock.app.backup.copying import copy_snapshot, held, open_source
from penstock.app.backup.restoring import choose_moment, restore
from penstock.broker.upkeep.snapshots import TRIES_BESIDE
from penstock.cli.main import main
from penstock.log.files.disk import RealDisk
from penstock.log.files.layout import find_logs, log_directory
from penstock.log.files.upkeep.moment import SNAPSHOTS, LogFiles, LogMoment, link_log
from penstock.log.files.upkeep.verify import verify_log
from penstock.model.errors import RefusedError
from penstock.mqtt.kinds import MQTT_5
from tests.doors.served import Served
from tests.doors.wire import Wire, connect_kept
from tests.waiting import WAIT_S, wait_until

SMALL = {"PENSTOCK_LOG__SEGMENT_BYTES": "256KiB", "PENSTOCK_LOG__UPKEEP_EVERY": "100ms"}
PENSTOCK = (sys.executable, "-m", "penstock.cli.main")


def run(capfd: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    capfd.readouterr()
    code = main([str(one) for one in arguments])
    return code, *capfd.readouterr()


def verify(data: Path) -> None:
    logs = find_logs(RealDisk(), data)
    assert logs
    for log in logs:
        assert not verify_log(RealDisk(), log_directory(data, log)).problems


def payloads(broker: Broker, topic: str) -> list[bytes]:
    found: list[bytes] = []
    for record in broker.read(topic, start=0):
        found.append(record.payload)
    return found


class Traffic:
    """Publishes n to `a`, and when that is acknowledged n to `b`, until it is stopped."""

    def __init__(self, port: int) -> None:
        self.acked = 0  # in both
        self._is_over = threading.Event()
        self._port = port
        self._thread = threading.Thread(target=self._publish, daemon=True)
        self._thread.start()

    def _publish(self) -> None:
        with Wire(self._port, "traffic") as wire:
            wire.connect()
            number = 0
            while not self._is_over.is_set():
                for topic in ("a", "b"):
                    wire.publish(f"{topic}/x", b"%d" % number + b"." * 2_000, 1)
                number += 1
                self.acked = number

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(20)
        assert not self._thread.is_alive()


def test_a_backup_under_load_has_all_that_was_acknowledged_and_no_effect_without_its_cause(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data, kept = tmp_path / "data", tmp_path / "kept"
    with Served(data, "--allow-anonymous", env=os.environ | SMALL) as served:
        for topic in ("a", "b", "quiet"):
            assert run(capfd, "topic", "create", topic, "--at", data)[0] == 0
        away, _ = connect_kept(served.port, "away", MQTT_5)
        away.subscribe("a/#", qos=1)
        away.close()
        with Wire(served.port, "keeps") as keeps:
            keeps.connect()
            keeps.publish("quiet/state", b"on", 1, retain=True)
        (tmp_path / "secret").write_text("a long password")
        secret = ("--password-file", tmp_path / "secret")
        assert run(capfd, "user", "add", "ada", *secret, "--at", data)[0] == 0
        traffic = Traffic(served.port)
        acked_before = []
        for _ in range(3):
            wait_until(lambda: traffic.acked > 200 * (len(acked_before) + 1))
            acked_before.append(traffic.acked)
            assert run(capfd, "backup", kept, "--at", data)[0] == 0
        assert run(capfd, "backup", tmp_path / "one.tar.zst", "--at", data)[0] == 0
        traffic.stop()
        assert not (data / SNAPSHOTS).exists() or not list((data / SNAPSHOTS).iterdir())
    moments = open_source(kept).moments()
    assert len(moments) == 3
    for number, (acked, moment) in enumerate(zip(acked_before, moments, strict=True)):
        target = tmp_path / f"restored-{number}"
        assert run(capfd, "restore", kept, target, "--moment", moment)[0] == 0
        check_restored(target, acked)
    assert run(capfd, "restore", tmp_path / "one.tar.zst", tmp_path / "unpacked")[0] == 0
    check_restored(tmp_path / "unpacked", acked_before[-1])
    check_session(tmp_path / "unpacked")


def check_restored(data: Path, acked: int) -> None:
    verify(data)
    with Broker(data) as broker:
        a, b = ([int(one.rstrip(b".")) for one in payloads(broker, topic)] for topic in ("a", "b"))
        assert a == list(range(len(a)))
        assert b == list(range(len(b)))
        assert acked <= len(b) <= len(a) <= len(b) + 1
        assert {topic.topic: topic.epoch for topic in broker.topics()}["a"] == 2


def check_session(data: Path) -> None:
    with Served(data, "--allow-anonymous") as served:
        with Wire(served.port, "looks", MQTT_5) as looks:
            looks.connect()
            looks.subscribe("quiet/#", qos=1)
            assert looks.receive().payload == b"on"
        away, was_there = connect_kept(served.port, "away", MQTT_5)
        assert was_there
        with away:
            assert [int(away.receive().payload.rstrip(b".")) for _ in range(200)] == list(
                range(200)
            )
        users = subprocess.run(
            [*PENSTOCK, "user", "list", "--json", "--at", str(data)], capture_output=True, text=True
        )
        assert "ada" in users.stdout


def filled(data: Path, count: int, **settings: Any) -> None:
    with Broker(data, **settings) as broker:
        broker.create_topic("t", exist_ok=True)
        broker.publish_many(messages=[os.urandom(10_000) for _ in range(count)], topic="t")


def test_a_second_backup_copies_only_what_is_new(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data, kept = tmp_path / "data", tmp_path / "kept"
    for _ in range(5):
        filled(data, 100, segment_bytes="1MiB")
    (first,) = [json.loads(run(capfd, "backup", kept, "--at", data, "--json")[1])]
    assert first["new_bytes"] == first["bytes"] > 5_000_000
    before = {one: one.stat().st_ino for one in (kept / "segments").rglob("*.log")}
    same = json.loads(run(capfd, "backup", kept, "--at", data, "--json")[1])
    assert same["new_files"] == 1  # the catalog
    filled(data, 20, segment_bytes="1MiB")
    second = json.loads(run(capfd, "backup", kept, "--at", data, "--json")[1])
    assert 200_000 < second["new_bytes"] < first["bytes"] / 2
    after = {one: one.stat().st_ino for one in (kept / "segments").rglob("*.log")}
    assert before.items() <= after.items()


def test_old_moments_and_the_files_that_only_they_had_are_removed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data, kept = tmp_path / "data", tmp_path / "kept"
    for _ in range(3):
        filled(data, 5)
        assert run(capfd, "backup", kept, "--at", data, "--keep", 2)[0] == 0
    listed = json.loads(run(capfd, "restore", kept, "--list", "--json")[1])
    assert [one["records"] for one in listed] == [10, 15]
    assert len(list((kept / "segments").rglob("*.log"))) == 2
    assert run(capfd, "restore", kept, "--check")[0] == 0


def test_a_backup_that_is_killed_counts_for_nothing_and_the_next_one_is_whole(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data, kept = tmp_path / "data", tmp_path / "kept"
    filled(data, 10)
    assert run(capfd, "backup", kept, "--at", data)[0] == 0
    filled(data, 600)
    with Served(data):
        command = [*PENSTOCK, "backup", str(kept), "--at", str(data), "--rate", "1"]
        process = subprocess.Popen(command)
        wait_until(lambda: list((kept / "segments").rglob("*.tmp")))
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert list((kept / "moments").glob("*.partial"))
        listed = json.loads(run(capfd, "restore", kept, "--list", "--json")[1])
        assert [one["records"] for one in listed] == [10]
        assert run(capfd, "restore", kept, tmp_path / "old")[0] == 0
        assert run(capfd, "backup", kept, "--at", data)[0] == 0
    assert not (data / SNAPSHOTS).exists()
    assert not list(kept.rglob("*.partial")) and not list(kept.rglob("*.tmp"))
    assert run(capfd, "restore", kept, tmp_path / "new")[0] == 0
    with Broker(tmp_path / "new") as broker:
        assert len(payloads(broker, "t")) == 610


def test_an_archive_that_is_killed_or_cut_is_not_taken_for_a_whole_one(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data, archive = tmp_path / "data", tmp_path / "one.tar.zst"
    filled(data, 600)
    command = [*PENSTOCK, "backup", str(archive), "--at", str(data), "--rate", "1"]
    process = subprocess.Popen(command)
    wait_until(lambda: list(tmp_path.glob("*.partial")))
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not archive.exists()
    assert run(capfd, "backup", archive, "--at", data)[0] == 0
    whole = archive.read_bytes()
    archive.write_bytes(whole[: len(whole) // 2])
    code, _, err = run(capfd, "restore", archive, tmp_path / "r")
    assert code == 1 and "is not complete" in err
    archive.write_bytes(whole[:1000] + b"x" + whole[1001:])
    code, _, err = run(capfd, "restore", archive, tmp_path / "r")
    assert code == 1 and "damaged" in err
    assert not list((tmp_path / "r").iterdir())


def test_other_programs_read_the_archive(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    import cramjam

    data, archive = tmp_path / "data", tmp_path / "one.tar.zst"
    filled(data, 300)
    assert run(capfd, "backup", archive, "--at", data)[0] == 0
    # Whole, and as one stream: what any zstd program does.
    packed = archive.read_bytes()
    table = int.from_bytes(packed[-9:-5], "little") * 8 + 8 + 9
    raw = tmp_path / "raw.tar"
    raw.write_bytes(bytes(cramjam.zstd.decompress(packed[:-table])))
    with tarfile.open(raw) as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # not in 3.11.0
        tar.extractall(tmp_path / "unpacked")
    assert run(capfd, "restore", tmp_path / "unpacked", tmp_path / "r")[0] == 0


def test_a_damaged_file_is_named_and_nothing_of_the_restore_is_left(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data, kept, target = tmp_path / "data", tmp_path / "kept", tmp_path / "target"
    filled(data, 10)
    assert run(capfd, "backup", kept, "--at", data)[0] == 0
    (segment,) = (kept / "segments").rglob("*.log")
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(content)
    for arguments in (["--check"], [target]):
        code, _, err = run(capfd, "restore", kept, *arguments)
        assert code == 1 and segment.name in err and "is damaged" in err
    assert not list(target.iterdir())
    segment.unlink()
    code, _, err = run(capfd, "restore", kept, target)
    assert code == 1 and "is missing" in err


def test_a_restore_needs_an_empty_directory_and_no_broker_opens_half_of_one(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data, kept = tmp_path / "data", tmp_path / "kept"
    filled(data, 1)
    assert run(capfd, "backup", kept, "--at", data)[0] == 0
    code, _, err = run(capfd, "restore", kept, data)
    assert code == 1 and "is not empty" in err
    mount = tmp_path / "mount"
    (mount / "lost+found").mkdir(parents=True)
    assert run(capfd, "restore", kept, mount)[0] == 0
    (mount / "restoring").touch()
    code, _, err = run(capfd, "consume", "t", "--at", mount)
    assert code == 1 and "was not restored completely" in err


def test_what_cannot_be_backed_up_says_what_to_do(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    filled(data, 1)
    filled(other, 1)
    kept = tmp_path / "kept"
    assert run(capfd, "backup", kept, "--at", data)[0] == 0
    for arguments, code, problem in (
        ([kept, "--at", "http://127.0.0.1:1"], 2, "on the broker's machine"),
        ([tmp_path / "x.tar.gz", "--at", data], 1, "written as .tar.zst only"),
        ([data, "--at", data], 1, "is not empty and not a backup"),
        ([kept, "--at", other], 1, "backups of another data directory"),
        ([kept, "--at", tmp_path / "nothing"], 1, "does not exist"),
    ):
        ended, _, err = run(capfd, "backup", *arguments)
        assert ended == code and problem in err, err
    (data / "storage.json").write_text('{"catalog": "postgres", "log": "kafka"}')
    code, _, err = run(capfd, "backup", kept, "--at", data)
    assert code == 1 and "in Kafka" in err
    monkeypatch.setitem(sys.modules, "cramjam", None)
    code, _, err = run(capfd, "backup", tmp_path / "y.tar.zst", "--at", other)
    assert code == 1 and "pip install 'penstock[backup]'" in err


async def test_a_snapshot_stays_while_it_is_held_and_goes_with_its_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.broker.upkeep.snapshots.HOLD_S", 0.05)
    async with AsyncBroker(tmp_path / "data") as broker:
        snapshots = broker.tenants.snapshots
        path = tmp_path / "data" / SNAPSHOTS / await snapshots.take()
        with held(path):
            await snapshots.take()  # another one, which nobody holds
            await asyncio.to_thread(wait_until, lambda: len(list(path.parent.iterdir())) == 1)
            assert (path / "catalog.db").exists()
        await asyncio.to_thread(wait_until, lambda: not path.exists())
        with pytest.raises(RefusedError, match="there is no snapshot"):
            await snapshots.drop(path.name)


async def test_a_topic_that_seals_during_every_try_does_not_prevent_a_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    async with AsyncBroker(tmp_path / "data", segment_bytes="64KiB", upkeep_s=3_600) as broker:
        await broker.create_topic("busy")
        log = broker.engine.topics.find("busy").log
        fillings: list[Future[int]] = []

        async def fill_and_seal() -> int:
            for _ in range(2):  # a segment is closed when the next message does not fit
                messages = [os.urandom(8_000) for _ in range(20)]
                await broker.publish_many(messages=messages, topic="busy")
            return await log.seal_closed()

        def link_late(root: Path, tenant: str, files: LogFiles) -> LogMoment:
            if files.directory.name.startswith("busy"):
                fillings.append(asyncio.run_coroutine_threadsafe(fill_and_seal(), loop))
                wait(fillings[:TRIES_BESIDE], WAIT_S)
                wait(fillings[TRIES_BESIDE:], 0.5)  # goes on when the snapshot has its files
            return link_log(root, tenant, files)

        monkeypatch.setattr("penstock.broker.upkeep.snapshots.link_log", link_late)
        name = await broker.tenants.snapshots.take()
        assert (tmp_path / "data" / SNAPSHOTS / name / "catalog.db").exists()
        assert len(fillings) == TRIES_BESIDE + 1
        assert all([await asyncio.wrap_future(filling) for filling in fillings])


async def test_topics_that_come_go_and_seal_meanwhile_never_tear_a_snapshot(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    async with AsyncBroker(data, segment_bytes="64KiB", upkeep_s=0.02) as broker:
        await broker.create_topic("busy")
        is_over = False

        async def come_and_go(name: str) -> None:
            while not is_over:
                await broker.create_topic(name)
                await broker.publish(message=b"x", topic=name)
                await broker.delete_topic(name)

        async def publish() -> None:
            while not is_over:
                messages = [os.urandom(8_000) for _ in range(10)]
                await broker.publish_many(messages=messages, topic="busy")

        tasks = [asyncio.create_task(come_and_go(name)) for name in ("k", "l", "m")]
        tasks.append(asyncio.create_task(publish()))
        for number in range(8):
            name = await broker.tenants.snapshots.take()
            await asyncio.to_thread(
                copy_snapshot, data / SNAPSHOTS / name, tmp_path / "kept", lambda count: None, 99
            )
            await broker.tenants.snapshots.drop(name)
            manifest = choose_moment(open_source(tmp_path / "kept"), "")
            target = tmp_path / f"r{number}"
            restore(open_source(tmp_path / "kept"), manifest, target, lambda count: None)
            verify(target)
            async with AsyncBroker(target) as restored:
                assert not [one for one in await restored.topics() if not one.is_available]
                assert len(await restored.topics()) == len(manifest.logs)
        is_over = True
        await asyncio.gather(*tasks)
