"""`clean`: Delta tables without what is over: too old, expired, or replaced by something newer.

The broker trims its own logs; this is for the tables that jobs make of them. Run it again and
again, or let the broker do so (`[spark.schedule]`).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.core.durations import seconds
from penstock.model.clock import SystemClock
from penstock.pipeline.jobs import (
    LOCAL,
    LateSession,
    Progress,
    Report,
    duration,
    ignore_progress,
)
from penstock.pipeline.packages import check_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SAYS: Final = "remove old, expired or replaced rows from Delta tables; merge and remove files"
VACUUM: Final = "7d"  # as Delta tables have it: for readers of an older version of the table


def clean(
    tables: str | Path | Sequence[str | Path],
    *,
    older_than: str | timedelta | None = None,
    latest: bool = False,
    vacuum: str | timedelta = VACUUM,
    spark: SparkSession | None = None,
    master: str = LOCAL,
    report: Report = ignore_progress,
) -> Progress:
    """Clean tables; `rows` of the outcome are those that went.

    Rows stamped longer ago than `older_than` go, rows that have expired, and with `latest` all but
    the newest of each name. Small files are merged; files that no version of the table younger than
    `vacuum` names are removed.
    """
    check_spark()
    from penstock.pipeline.jobs.clean.cleaning import CleanTable, Keep

    now_us = SystemClock().now_us()
    since_us = None
    if older_than is not None:
        since_us = now_us - round(seconds("older_than", older_than) * 1e6)
    vacuum_s = seconds("vacuum", vacuum)
    paths = [tables] if isinstance(tables, str | Path) else list(tables)
    began_s = time.monotonic()
    dropped = kept = merged = removed = commits = 0
    done = Progress(0, 0, 0.0)
    with LateSession(spark, master) as session:
        for path in paths:
            report(replace(done, says=f"looking at {path}"))
            table = CleanTable(session, Path(path))
            expires_us = now_us if table.has("expires_at") else None
            went, left = table.drop(Keep(since_us, expires_us, latest))
            dropped, kept = dropped + went, kept + left
            merged += table.merge()
            removed += table.vacuum(vacuum_s)
            commits += table.commits
            rate = dropped / max(time.monotonic() - began_s, 1e-3)
            says = f"{kept:,} rows stay · {merged} files merged · {removed} files removed"
            done = Progress(dropped, commits, rate, says=says)
            report(done)
    return done


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tables", metavar="TABLE", nargs="+", help="directories of Delta tables")
    parser.add_argument(
        "--older-than",
        metavar="AGE",
        type=duration,
        help="remove rows older than this, such as 30d",
    )
    parser.add_argument(
        "--latest", action="store_true", help="keep only the newest record of each name"
    )
    parser.add_argument(
        "--vacuum",
        metavar="AGE",
        type=duration,
        default=VACUUM,
        help=f"remove files that no version of the table younger than AGE uses ({VACUUM})",
    )


def run(options: argparse.Namespace, report: Report) -> Progress:
    return clean(
        options.tables,
        older_than=options.older_than,
        latest=options.latest,
        vacuum=options.vacuum,
        master=options.master,
        report=report,
    )
