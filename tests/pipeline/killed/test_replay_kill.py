"""Is every record replayed exactly once although the driver is killed again and again?"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from penstock import Broker
from tests.pipeline.killed.drivers import ROUNDS, SEED, kill_again_and_again, run_to_the_end

RECORDS = 600 + 900 * ROUNDS  # at 300 a second


@pytest.mark.java
@pytest.mark.timeout(300 + 120 * ROUNDS)
def test_a_topic_holds_every_record_once_and_in_order_after_its_driver_was_killed(
    tmp_path: Path,
) -> None:
    print(f"PENSTOCK_SEED={SEED}")
    data = tmp_path / "data"
    with Broker(data) as broker:
        broker.create_topic("in")
        broker.create_topic("out")
        broker.publish_many([str(number) for number in range(RECORDS)], "in")
    arguments = (
        "tests.pipeline.killed.replaying_child",
        str(data),
        str(tmp_path / "checkpoint"),
        str(tmp_path / "scratch"),
    )
    deaths = kill_again_and_again(random.Random(SEED), *arguments, longest_s=10.0)
    run_to_the_end(*arguments)
    with Broker(data) as broker:
        found = [int(record.payload) for record in broker.read("out")]
    assert found == list(range(RECORDS)), deaths
