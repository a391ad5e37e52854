"""Is every record written exactly once although whoever writes is killed again and again?"""

from __future__ import annotations

import random
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from penstock import Broker
from penstock.log.files.disk import RealDisk
from penstock.log.files.upkeep.verify import verify_log
from penstock.log.staging.area import AREA
from tests.doors.served import Served
from tests.pipeline.killed.drivers import (
    BATCHES,
    ROUNDS,
    SEED,
    has_ended_within,
    kill,
    kill_again_and_again,
    run_to_its_death,
    run_to_the_end,
    start,
)
from tests.pipeline.killed.handing_child import ROWS, TOTAL

RECORDS = 100 * BATCHES  # of the copy, in micro-batches of 100


def problems(data: Path) -> list[str]:
    found = []
    for directory in (data / "default").iterdir():
        found += [str(one) for one in verify_log(RealDisk(), directory).problems]
    return found


@pytest.mark.slow
def test_what_is_handed_over_counts_once_although_the_process_is_killed_at_any_moment(
    tmp_path: Path,
) -> None:
    print(f"PENSTOCK_SEED={SEED}")
    data = tmp_path / "data"
    with Broker(data, segment_bytes="64 KiB") as broker:
        broker.create_topic("out")
        broker.create_topic("other")
    arguments = ("tests.pipeline.killed.handing_child", str(data), str(tmp_path / "note"))
    chance = random.Random(SEED)
    deaths = kill_again_and_again(chance, *arguments, rounds=25, longest_s=0.7)
    run_to_the_end(*arguments)
    assert deaths > 5
    wanted = {f"{number}/{row}" for number in range(TOTAL) for row in range(ROWS)}
    with Broker(data) as broker:
        found = [record.value for topic in ("out", "other") for record in broker.read(topic)]
    assert len(found) == len(wanted)
    assert set(found) == wanted
    assert problems(data) == []


def copy_arguments(tmp_path: Path, where: str) -> tuple[str, ...]:
    places = (str(tmp_path / "checkpoint"), str(tmp_path / "scratch"))
    return ("tests.pipeline.killed.copying_child", where, *places)


def prepare(data: Path) -> None:
    with Broker(data, segment_bytes="64 KiB") as broker:
        broker.create_topic("in")
        broker.create_topic("out")
        broker.publish_many([str(number) for number in range(RECORDS)], "in")


def check_copy(data: Path, deaths: object = "") -> None:
    """Every record is there, once; the log is whole; nothing is left to be taken in."""
    with Broker(data) as broker:
        found = broker.read("out")
    assert sorted(int(record.value) for record in found) == list(range(RECORDS)), deaths
    assert {record.name for record in found} == {f"copy/{number}" for number in range(RECORDS)}
    assert problems(data) == []
    assert list((data / AREA).rglob("manifest.json")) == []


def die_beside_the_hand_over(*arguments: str) -> None:
    """All is staged and not handed over; then handed over, and Spark has not noted it."""
    run_to_its_death(*arguments, "before", "2")
    run_to_its_death(*arguments, "after", "3")


@pytest.mark.java
@pytest.mark.timeout(600 + 120 * ROUNDS)
def test_a_topic_holds_every_record_once_after_its_driver_was_killed(tmp_path: Path) -> None:
    print(f"PENSTOCK_SEED={SEED}")
    data = tmp_path / "data"
    prepare(data)
    arguments = copy_arguments(tmp_path, str(data))
    die_beside_the_hand_over(*arguments)
    chance = random.Random(SEED)
    deaths = kill_again_and_again(chance, *arguments, rounds=ROUNDS - 1, longest_s=8.0)
    run_to_the_end(*arguments)
    check_copy(data, deaths)


@pytest.mark.java
@pytest.mark.timeout(600 + 120 * ROUNDS)
def test_a_running_broker_holds_every_record_once_after_driver_and_broker_were_killed(
    tmp_path: Path,
) -> None:
    print(f"PENSTOCK_SEED={SEED}")
    data = tmp_path / "data"
    prepare(data)
    chance = random.Random(SEED)
    deaths = []
    with Served(data) as served:
        arguments = copy_arguments(tmp_path, f"http://127.0.0.1:{served.http_port}")
        die_beside_the_hand_over(*arguments)
        for _ in range(ROUNDS):
            driver = start(*arguments)
            if chance.random() < 0.5 and not has_ended_within(driver, chance.uniform(0, 2)):
                served.kill()
                served.start()
                deaths.append("broker")
            if driver.returncode is None:
                try:
                    driver.communicate(timeout=chance.uniform(0, 8))
                except subprocess.TimeoutExpired:
                    kill(driver)
                    deaths.append("driver")
        run_to_the_end(*arguments)
        served.stop()
    print(f"killed: {Counter(deaths)}")
    check_copy(data, deaths)
