"""Is every record written exactly once although whoever writes is killed again and again?"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from penstock import Broker
from penstock.log.files import RealDisk
from penstock.log.verify import verify_log
from tests.pipeline.drivers import ROUNDS, SEED, kill_again_and_again, run_to_the_end
from tests.pipeline.handing_child import ROWS, TOTAL

RECORDS = 1_000  # of the copy: micro-batches of 100


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
    arguments = ("tests.pipeline.handing_child", str(data), str(tmp_path / "note"))
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


@pytest.mark.java
@pytest.mark.timeout(300 + 120 * ROUNDS)
def test_a_topic_holds_every_record_once_after_its_driver_was_killed(tmp_path: Path) -> None:
    print(f"PENSTOCK_SEED={SEED}")
    data = tmp_path / "data"
    with Broker(data, segment_bytes="64 KiB") as broker:
        broker.create_topic("in")
        broker.create_topic("out")
        broker.publish_many([str(number) for number in range(RECORDS)], "in")
    arguments = (
        "tests.pipeline.copying_child",
        str(data),
        str(tmp_path / "checkpoint"),
        str(tmp_path / "scratch"),
    )
    deaths = kill_again_and_again(random.Random(SEED), *arguments)
    run_to_the_end(*arguments)
    with Broker(data) as broker:
        found = broker.read("out")
    assert sorted(int(record.value) for record in found) == list(range(RECORDS)), deaths
    assert {record.name for record in found} == {f"copy/{number}" for number in range(RECORDS)}
    assert problems(data) == []
