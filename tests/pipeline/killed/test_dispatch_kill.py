"""Does the table hold every delivery exactly once although its driver is killed again and again?"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from deltalake import DeltaTable

from penstock.mqtt.packets import Subscription
from tests.doors.hosted import Hosted
from tests.pipeline.jobs.test_spark_dispatch import leave, publish
from tests.pipeline.killed.drivers import (
    BATCHES,
    ROUNDS,
    SEED,
    kill_again_and_again,
    run_to_the_end,
)

RECORDS = 100 * BATCHES
CLIENTS = ("one", "other")


@pytest.mark.java
@pytest.mark.timeout(300 + 120 * ROUNDS)
def test_a_table_holds_every_delivery_once_after_its_driver_was_killed(tmp_path: Path) -> None:
    print(f"PENSTOCK_SEED={SEED}")
    data, to = tmp_path / "data", tmp_path / "to"
    with Hosted(data) as broker:
        for client in CLIENTS:
            leave(broker, client, Subscription("x/#", 1))
        publish(broker, *["x/y"] * RECORDS)
    arguments = (
        "tests.pipeline.killed.dispatching_child",
        str(data),
        str(to),
        str(tmp_path / "scratch"),
    )
    deaths = kill_again_and_again(random.Random(SEED), *arguments, longest_s=15.0)
    run_to_the_end(*arguments)
    rows = DeltaTable(str(to / "deliveries")).to_pyarrow_table().to_pylist()
    found = sorted((row["client_id"], row["offset"]) for row in rows)
    assert found == [(client, at) for client in CLIENTS for at in range(RECORDS)], deaths
    waiting = DeltaTable(str(to / "waiting")).to_pyarrow_table().to_pylist()
    assert {row["client_id"]: row["waiting"] for row in waiting} == dict.fromkeys(CLIENTS, RECORDS)
