"""The rows of the table: reading, pruning, aggregating, archiving, writing."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.measure import Bar, Figure, Row, alternate
from bench.run import Bench
from bench.spark.dispatch import dispatch_rows
from bench.spark.latency import latency_rows
from bench.spark.table import batch_rows, nothing_rows, table_rows
from bench.spark.tables import TOPIC, Tables, drain, seconds
from penstock.pipeline import archive

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TWO: Final = "timestamp timestamp, name string"


def _row(
    tables: Tables,
    bench: Bench,
    scenario: str,
    bar: Bar,
    ours: Callable[[], float],
    theirs: tuple[str, Callable[[], float]],
) -> Row:
    """Seconds of ours beside seconds of theirs; a first turn of each warms both up."""
    name, reference = theirs
    reference()
    ours()
    taken = alternate({"ours": ours, name: reference}, bench.rounds)
    figure = Figure.of(taken["ours"], taken[name])
    beside = Figure.of(taken[name]).value
    return Row(
        f"{scenario}, {tables.records / 1e6:g} M records",
        "s",
        {"value": figure},
        (name, beside),
        bar,
    )


def scan_rows(tables: Tables, bench: Bench) -> Iterator[Row]:
    bar = Bar(1.5, at_most=True, goal=1.0)
    yield _row(
        tables,
        bench,
        "full scan against Parquet (snappy), names mixed",
        bar,
        lambda: drain(tables.mixed_topic()),
        ("Parquet", lambda: drain(tables.mixed_rows())),
    )
    yield _row(
        tables,
        bench,
        "full scan against Parquet (snappy), a name 1,000 times in a row",
        bar,
        lambda: drain(tables.topic()),
        ("Parquet", lambda: drain(tables.rows())),
    )


def pruned_rows(tables: Tables, bench: Bench) -> Iterator[Row]:
    bar = Bar(2.0, at_most=True, goal=1.2)
    yield _row(
        tables,
        bench,
        "two columns (timestamp, name) against Parquet, names mixed",
        bar,
        lambda: drain(tables.mixed_topic(TWO)),
        ("Parquet", lambda: drain(tables.mixed_rows().select("timestamp", "name"))),
    )
    yield _row(
        tables,
        bench,
        "two columns (timestamp, name) against Parquet, a name 1,000 times in a row",
        bar,
        lambda: drain(tables.topic(TWO)),
        ("Parquet", lambda: drain(tables.rows().select("timestamp", "name"))),
    )


def window_rows(tables: Tables, bench: Bench) -> Iterator[Row]:
    from pyspark.sql.functions import window

    def minutes(rows: DataFrame) -> DataFrame:
        return rows.groupBy(window("timestamp", "1 minute"), "name").count()

    yield _row(
        tables,
        bench,
        "1-minute windows per name against Parquet",
        Bar(1.1, at_most=True, is_required=False, goal=1.0),
        lambda: drain(minutes(tables.topic(TWO))),
        ("Parquet", lambda: drain(minutes(tables.rows()))),
    )


def archive_rows(tables: Tables, bench: Bench) -> Iterator[Row]:
    def ours() -> float:
        table = tables.fresh("table")
        took_s = seconds(
            lambda: archive(
                TOPIC, table, path=tables.sealed, spark=tables.spark, batch_records=10**9
            )
        )
        shutil.rmtree(table)
        return took_s

    def copy() -> float:
        path = tables.fresh("copy")
        took_s = seconds(lambda: tables.archived_rows().write.parquet(str(path)))
        shutil.rmtree(path)
        return took_s

    yield _row(
        tables,
        bench,
        "archive to Delta against Spark copying Parquet of its columns to Parquet",
        Bar(1.2, at_most=True, goal=1.0),
        ours,
        ("copy", copy),
    )


def sink_rows(tables: Tables, bench: Bench) -> Iterator[Row]:
    def write(save: Callable[[Path], None], path: Path) -> float:
        took_s = seconds(lambda: save(path))
        shutil.rmtree(path)
        return took_s

    def into_topic(path: Path) -> None:
        rows = tables.rows().select("payload", "name")
        rows.write.format("penstock").mode("append").save(str(path), topic=TOPIC)

    def into_parquet(path: Path) -> None:
        tables.rows().select("payload", "name").write.parquet(str(path))

    yield _row(
        tables,
        bench,
        "writing into a topic (synced) against writing Parquet (not synced)",
        Bar(1.5, at_most=True, is_required=False, goal=1.2),
        lambda: write(into_topic, tables.empty_topic()),
        ("Parquet", lambda: write(into_parquet, tables.fresh("parquet"))),
    )


def url_rows(tables: Tables, bench: Bench) -> Iterator[Row]:
    yield _row(
        tables,
        bench,
        "full scan by address against the files",
        Bar(1.3, at_most=True, goal=1.1),
        lambda: drain(tables.remote_topic()),
        ("path", lambda: drain(tables.topic())),
    )
    yield _row(
        tables,
        bench,
        "two columns by address against the files",
        Bar(1.3, at_most=True, is_required=False, goal=1.1),
        lambda: drain(tables.remote_topic(TWO)),
        ("path", lambda: drain(tables.topic(TWO))),
    )


def url_sink_rows(tables: Tables, bench: Bench) -> Iterator[Row]:
    def write(**where: str) -> float:
        rows = tables.rows().select("payload", "name")
        return seconds(
            lambda: rows.write.format("penstock").mode("append").save(topic=TOPIC, **where)
        )

    def into_files() -> float:
        path = tables.empty_topic()
        took_s = write(path=str(path))
        shutil.rmtree(path)
        return took_s

    def into_broker() -> float:
        path = tables.empty_topic()
        url = tables.serve(path)
        took_s = write(url=url)
        tables.close()
        shutil.rmtree(path)
        return took_s

    yield _row(
        tables,
        bench,
        "writing into a topic by address against into its files",
        Bar(1.5, at_most=True, is_required=False),
        into_broker,
        ("path", into_files),
    )


def active_rows(tables: Tables, bench: Bench) -> Iterator[Row]:
    yield _row(
        tables,
        bench,
        "active segment of batches of 10 records against sealed segments",
        Bar(3.0, at_most=True, is_required=False, goal=2.0),
        lambda: drain(tables.small_topic()),
        ("sealed", lambda: drain(tables.topic())),
    )


PARTS: Final[dict[str, Callable[[Tables, Bench], Iterator[Row]]]] = {
    "table": table_rows,
    "scan": scan_rows,
    "pruned": pruned_rows,
    "window": window_rows,
    "archive": archive_rows,
    "batches": batch_rows,
    "nothing": nothing_rows,
    "sink": sink_rows,
    "url": url_rows,
    "address": url_sink_rows,
    "active": active_rows,
    "latency": latency_rows,
    "dispatch": dispatch_rows,
}
