"""Do jobs read records that only the history has?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from penstock.mqtt.packets import Subscription
from penstock.pipeline import dispatch, sql, stats
from tests.doors.hosted import Hosted
from tests.history.cooling import cool
from tests.pipeline.declared.declaring import COPY, Declare, rows_of, values
from tests.pipeline.jobs.test_spark_dispatch import leave, publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_jobs_read_records_that_only_the_history_has(
    spark: SparkSession, tmp_path: Path, declare: Declare
) -> None:
    data = tmp_path / "data"
    with Hosted(data, history__url=str(tmp_path / "history")) as broker:
        for topic in ("sensors", "out"):
            broker.run(lambda server, topic=topic: server.broker.create_topic(topic, history=True))
        leave(broker, "away", Subscription("sensors/#", 1))
        broker.run(lambda server: server.broker.bind("sensors/#", "sensors"))
        publish(broker, "sensors/1", "sensors/2", "sensors/1")
        broker.run(lambda server: cool(server, "sensors"))
        found = dispatch(path=data, to=tmp_path / "sent", spark=spark)
        assert found.waiting == {"away": 3}
    sent = rows_of(tmp_path / "sent" / "deliveries")
    assert sorted(row["offset"] for row in sent) == [0, 1, 2]
    assert sql(declare(COPY), path=data, once=True, spark=spark).rows == 3
    assert values(data) == ['{"n": 0}', '{"n": 1}', '{"n": 2}']
    done = stats("sensors", tmp_path / "stats", path=data, start=0, chart=False, spark=spark)
    assert done.rows == 3
