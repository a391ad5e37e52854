"""Opening and closing: one broker per directory, settings, and life after close."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import AsyncBroker, Broker, InvalidSetting, RefusedError, UnavailableError

HOLD = """
import sys
from penstock import Broker
broker = Broker(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


def test_the_default_directory_is_penstock_data_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Broker() as broker:
        broker.create_topic("t")
    assert (tmp_path / "penstock_data" / "default" / "t-1" / "topic.json").is_file()


def test_a_directory_may_be_a_text_and_is_made_with_its_parents(tmp_path: Path) -> None:
    with Broker(str(tmp_path / "a" / "b")) as broker:
        assert broker.topics() == []


def test_a_directory_that_cannot_be_made_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnavailableError, match="file"):
        Broker(tmp_path / "file" / "data")


async def test_a_second_broker_in_this_process_is_refused_and_the_first_goes_on(
    tmp_path: Path,
) -> None:
    with Broker(tmp_path) as first:
        first.create_topic("t")
        with pytest.raises(
            UnavailableError, match="is open in this process.*only one process at a time"
        ):
            Broker(tmp_path)
        with pytest.raises(UnavailableError, match="this process"):
            async with AsyncBroker(tmp_path):
                pass
        first.publish("x", "t")
    with Broker(tmp_path) as second:
        assert second.size("t") == 1


def test_a_broker_in_another_process_is_named_by_its_pid(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdin is not None and holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"open\n"
        with pytest.raises(UnavailableError, match=f"is open in process {holder.pid}:"):
            Broker(tmp_path)
    finally:
        holder.kill()
        holder.communicate()
    with Broker(tmp_path) as broker:  # a dead process holds nothing
        assert broker.topics() == []


def test_a_program_that_never_closes_its_broker_still_ends(tmp_path: Path) -> None:
    program = (
        "import sys; from penstock import Broker; b = Broker(sys.argv[1]); b.create_topic('t');"
        "b.publish('x', 't'); s = b.stream('t', start=0); print(next(s).value)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "x\n", "")
    with Broker(tmp_path) as broker:
        assert broker.size("t") == 1


def test_closing_twice_is_fine_and_use_after_close_is_refused(broker: Broker) -> None:
    broker.create_topic("t")
    stream = broker.stream("t")
    broker.close()
    broker.close()
    with pytest.raises(UnavailableError, match="closed"):
        broker.publish("x", "t")
    for call in (broker.topics, lambda: broker.size("t"), lambda: broker.stream("t")):
        with pytest.raises(UnavailableError, match="closed"):
            call()
    assert list(stream) == []


def test_closing_from_several_threads_at_once_is_fine(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    threads = [threading.Thread(target=broker.close) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    Broker(tmp_path).close()


async def test_an_async_broker_must_be_open(tmp_path: Path) -> None:
    broker = AsyncBroker(tmp_path)
    with pytest.raises(UnavailableError, match="never opened"):
        await broker.topics()
    await broker.open()
    await broker.open()
    await broker.create_topic("t")
    await broker.close()
    await broker.close()
    with pytest.raises(UnavailableError):
        await broker.publish("x", "t")
    async with broker:  # the same one may be opened again
        assert [one.topic for one in await broker.topics()] == ["t"]


def test_memory_keeps_nothing_and_touches_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Broker.memory() as one, Broker.memory(payload_bytes_max=5) as other:
        one.create_topic("t")
        assert other.topics() == []
        one.publish("longer", "t")
    with Broker.memory() as again:
        assert again.topics() == []
    assert list(tmp_path.iterdir()) == []


# Settings


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"durabilty": "os"}, "did you mean 'durability'"),
        ({"colour": 1}, "known are durability, retention_age"),
        ({"durability": "maybe"}, "'fsync' acknowledges"),
        ({"retention_age": "5x"}, "'7d'"),
        ({"retention_age": 0}, "above 0"),
        ({"retention_age": True}, "above 0"),
        ({"retention_bytes": "1 XB"}, "64 MiB"),
        ({"retention_bytes": 1.5}, "whole number"),
        ({"segment_bytes": 100}, "at least 64 KiB"),
        ({"payload_bytes_max": "17 MiB"}, "too large"),
        ({"disk_free_percent_min": 100}, "percentage"),
        ({"position_saves_max": 0}, "above 0"),
        ({"upkeep_s": -1}, "above 0"),
    ],
)
def test_a_setting_that_is_wrong_is_refused_with_the_way_out(
    tmp_path: Path, settings: dict[str, Any], says: str
) -> None:
    for make in (lambda: Broker(tmp_path / "data", **settings), lambda: Broker.memory(**settings)):
        with pytest.raises(InvalidSetting, match=re.escape(says)):
            make()
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("given", "seconds"),
    [("90s", 90), ("1h30m", 5_400), ("7d", 604_800), (1.5, 1.5), (timedelta(hours=1), 3_600)],
)
def test_durations_may_be_written_in_several_ways(
    broker: Broker, given: Any, seconds: float
) -> None:
    broker.create_topic("t", retention_age=given)
    assert broker.topics()[0].retention_age == seconds


def test_a_topic_takes_only_settings_of_topics(broker: Broker) -> None:
    with pytest.raises(InvalidSetting, match="'upkeep_s' is unknown"):
        broker.create_topic("t", upkeep_s=5)
    with pytest.raises(InvalidSetting):
        broker.create_topic("t", durability="maybe")
    assert broker.topics() == []
    broker.create_topic("t")
    with pytest.raises(InvalidSetting, match="did you mean 'retention_age'"):
        broker.alter_topic("t", retention_agee=5)


def test_too_little_free_space_refuses_publishes_and_nothing_else(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        broker.create_topic("t")
        broker.publish("before", "t")
        broker.subscribe("c", "t")
    with Broker(tmp_path, disk_free_percent_min=99.9999) as broker:
        with pytest.raises(UnavailableError, match="% of the disk is free") as refused:
            broker.publish("x", "t")
        assert refused.value.retry_after_s > 0
        assert [r.value for r in broker.consume("c", "t")] == ["before"]
        broker.commit("c", "t")


# Errors


def test_every_error_is_public_and_belongs_to_its_family() -> None:
    refused = [
        "TopicExists",
        "TopicNotFound",
        "InvalidTopic",
        "AlreadySubscribed",
        "NotSubscribed",
        "Gap",
        "TooLarge",
        "NotAuthorized",
    ]
    assert all(issubclass(getattr(penstock, name), RefusedError) for name in refused)
    families = ["PeerError", "RefusedError", "UnavailableError", "CorruptError"]
    for name in families:
        family = getattr(penstock, name)
        assert issubclass(family, penstock.PenstockError)
        assert not any(
            issubclass(family, getattr(penstock, other)) for other in families if other != name
        )


def test_the_lock_names_this_process_while_it_is_open(tmp_path: Path) -> None:
    with Broker(tmp_path):
        assert f'"pid":{os.getpid()}' in (tmp_path / "lock").read_text()
    assert (tmp_path / "lock").read_text() == ""
