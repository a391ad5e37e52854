"""Does an archive hold every record exactly once although its driver is killed again and again?"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from deltalake import DeltaTable

from penstock import Broker
from tests.pipeline.drivers import ROUNDS, SEED, kill_again_and_again, run_to_the_end

RECORDS = 1_000


@pytest.mark.java
@pytest.mark.timeout(300 + 120 * ROUNDS)
def test_a_table_holds_every_record_once_after_its_driver_was_killed(tmp_path: Path) -> None:
    print(f"PENSTOCK_SEED={SEED}")
    data, table = tmp_path / "data", tmp_path / "table"
    with Broker(data) as broker:
        broker.create_topic("in")
        broker.publish_many([str(number) for number in range(RECORDS)], "in")
    arguments = ("tests.pipeline.archiving_child", str(data), str(table), str(tmp_path / "scratch"))
    deaths = kill_again_and_again(random.Random(SEED), *arguments, longest_s=15.0)
    run_to_the_end(*arguments)
    rows = DeltaTable(str(table)).to_pyarrow_table(columns=["offset", "payload"]).to_pylist()
    found = sorted((row["offset"], int(row["payload"])) for row in rows)
    assert found == [(number, number) for number in range(RECORDS)], deaths
