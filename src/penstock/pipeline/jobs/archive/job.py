"""`archive`: topics into a Delta table, partitioned by date, each record exactly once.

Catches up and ends, or follows. The table says where to go on, so a job that was killed is simply
started again.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.model.errors import InvalidSetting
from penstock.pipeline.connecting import origin_of
from penstock.pipeline.delta.following import BATCH_RECORDS, DATE, Follower, life_columns
from penstock.pipeline.delta.looking import places_if_all_followed
from penstock.pipeline.jobs import (
    LOCAL,
    LateSession,
    Progress,
    Report,
    add_batch_arguments,
    check_directory,
    ignore_progress,
    stopped_by_signals,
)
from penstock.pipeline.packages import check_spark
from penstock.pipeline.source.options import Connection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.pipeline.source.offsets import Places

SAYS: Final = "copy topics into a Delta table, partitioned by date"
EVERY_S: Final = 10.0
COLUMNS: Final = (  # what of a record is archived
    "topic string, partition int, offset long, timestamp timestamp, name string,"
    " headers map<string,string>, payload binary, publisher string, expires_at timestamp"
)


def archive(
    topics: str | Sequence[str],
    table: str | Path,
    *,
    path: str | Path = "./penstock_data",
    url: str = "",
    user: str = "",
    password: str = "",
    token: str = "",
    tenant: str = "",
    follow: bool = False,
    every_s: float = EVERY_S,
    batch_records: int = BATCH_RECORDS,
    fail_on_data_loss: bool = True,
    spark: SparkSession | None = None,
    master: str = LOCAL,
    report: Report = ignore_progress,
    stop: threading.Event | None = None,
) -> Progress:
    """Archive topics into the Delta table `table`; what was done.

    The records are in the data directory `path`, or at the address `url` of a running broker.
    Goes on where the table ends. Without `follow` up to the ends that the topics have now; else
    until `stop` is set, adding what came every `every_s` seconds. Spark is started for batches that
    are worth it; a session that is given or open already is always used.
    """
    check_spark()
    if every_s <= 0:
        raise InvalidSetting(f"every_s {every_s!r} must be above 0")
    names = tuple([topics] if isinstance(topics, str) else topics)
    files = None if url else Path(path).absolute()
    connection = Connection(files, url, user, password=password, token=token, tenant=tenant)
    check_directory(Path(table))
    # An unknown topic leaves no table behind.
    states = origin_of(connection).states(names)
    if not follow and (places := places_if_all_followed(Path(table), states)) is not None:
        return Progress(0, 0, 0.0, {topic: place.offset for topic, place in places.items()})
    from penstock.pipeline.delta.table import ArchiveTable

    with LateSession(spark, master) as session:
        follower = Follower(
            session,
            connection,
            ArchiveTable(Path(table)),
            names,
            batch_records,
            columns=COLUMNS,
            shape=_rows,
            copies_records=True,
            fails_on_loss=fail_on_data_loss,
        )
        return follower.follow(report, every_s if follow else None, stop or threading.Event())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topics", metavar="TOPIC", nargs="+", help="topics to archive")
    parser.add_argument("--to", metavar="TABLE", required=True, help="directory of the table")
    parser.add_argument(
        "--follow", action="store_true", help="continue with new records until Ctrl-C"
    )
    parser.add_argument(
        "--every",
        metavar="SECONDS",
        type=float,
        default=EVERY_S,
        help="with --follow: commit every SECONDS (10)",
    )
    add_batch_arguments(parser, BATCH_RECORDS)


def run(options: argparse.Namespace, report: Report) -> Progress:
    ending = stopped_by_signals() if options.follow else nullcontext()
    with ending as stop:
        return archive(
            options.topics,
            options.to,
            **options.place,
            follow=options.follow,
            every_s=options.every,
            batch_records=options.batch_records,
            fail_on_data_loss=not options.skip_lost,
            master=options.master,
            report=report,
            stop=stop,
        )


def _rows(records: DataFrame, places: Places) -> DataFrame:
    """Records of these topics as rows of the archive."""
    return records.selectExpr("*", DATE, *life_columns(places))
