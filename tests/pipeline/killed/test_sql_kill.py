"""Do the sinks of a declared pipeline hold every row once although it is killed again and again?"""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from penstock import Broker
from tests.pipeline.killed.drivers import (
    BATCHES,
    ROUNDS,
    SEED,
    kill_again_and_again,
    run_to_the_end,
)
from tests.pipeline.killed.test_sink_kill import problems

RECORDS = 100 * BATCHES  # one a second
WINDOW = 20  # records

FLOW = """
[pipeline]
partitions = 2

[sources.numbers]
topic = "in"
payload = "at timestamp, n int"
event_time = "payload.at"
watermark = "1s"
batch_records = 100

[steps.windows]
sql = '''
SELECT concat('sum/', date_format(window.start, 'HHmmss')) AS name,
       sum(payload.n) AS total, count(*) AS numbers
FROM numbers GROUP BY window(event_time, '20 seconds')
'''

[steps.plain]
sql = "SELECT offset, payload.n FROM numbers"

[sinks.topic]
step = "windows"
topic = "out"

[sinks.table]
step = "plain"
table = "./table"
"""


def reading(n: int) -> dict[str, Any]:
    return {"at": f"{datetime(2026, 1, 1, 10) + timedelta(seconds=n)}Z", "n": n}


@pytest.mark.java
@pytest.mark.timeout(300 + 120 * ROUNDS)
def test_topic_and_table_hold_every_row_once_after_the_driver_was_killed(tmp_path: Path) -> None:
    print(f"PENSTOCK_SEED={SEED}")
    data, file = tmp_path / "data", tmp_path / "flow.toml"
    file.write_text(FLOW)
    with Broker(data, segment_bytes="64 KiB") as broker:
        broker.create_topic("in")
        broker.create_topic("out")
        broker.publish_many([reading(n) for n in range(RECORDS)], "in")
    arguments = ("tests.pipeline.killed.sql_child", str(data), str(file), str(tmp_path / "scratch"))
    deaths = kill_again_and_again(random.Random(SEED), *arguments, longest_s=20.0)
    run_to_the_end(*arguments)
    rows = DeltaTable(str(tmp_path / "table")).to_pyarrow_table().to_pylist()
    found = sorted((row["offset"], row["n"]) for row in rows)
    assert found == [(n, n) for n in range(RECORDS)], deaths
    with Broker(data) as broker:
        sums = sorted((one.value["total"], one.value["numbers"]) for one in broker.read("out"))
    # The watermark stays a second behind: nothing has completed the last full window.
    starts = range(0, RECORDS - WINDOW, WINDOW)
    wanted = [(sum(range(start, start + WINDOW)), WINDOW) for start in starts]
    assert sums == wanted, deaths
    assert problems(data) == []
