"""A topic with history as a table of Spark, against the same rows in plain Parquet; and jobs."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from bench.measure import Bar, Figure, Row, alternate
from bench.run import Bench
from bench.spark.tables import TOPIC, Tables, drain, seconds
from penstock import Broker
from penstock.log.files.disk import RealDisk, write_file
from penstock.log.files.layout import find_logs, log_directory
from penstock.log.files.reader import FileReader
from penstock.log.files.segment import segment_bases, segment_path
from penstock.log.history.files import encode_file
from penstock.log.history.manifest import TableFacts, create_manifest, file_facts
from penstock.log.history.place import HistoryRoot, note_root
from penstock.log.history.storage import storage_of
from penstock.log.history.tier import LIFE_NAME, Known
from penstock.pipeline import archive, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HOT: Final = 0.02  # of the records are only in the log
FILE_RECORDS: Final = 1_800_000  # of a history file: 64 MiB of sealed segments
LATE: Final = 0.05  # of the time is asked for
NAME: Final = "sensors/7/temp"
BATCHES: Final = 10


def tier(data: Path, copy: Path, records: int) -> Path:
    """A copy of a data directory whose topic has all but the newest records in its history only."""
    shutil.copytree(data, copy)
    disk = RealDisk()
    (identity,) = find_logs(disk, copy)
    directory = log_directory(copy, identity)
    root = HistoryRoot(str(copy / "history"))
    note_root(disk, copy, root)
    facts = TableFacts(TOPIC, identity.topic_id, "bench")
    manifest = create_manifest(storage_of(root.place(identity)), facts)
    reader = FileReader(disk, directory)
    until = records - int(HOT * records)
    for base in range(0, until, FILE_RECORDS):
        end = min(base + FILE_RECORDS, until)
        batches = reader.batches(base, end)
        manifest.add(encode_file(batches, base, end, file_facts(manifest, 1)), 1)
    write_file(disk, directory / LIFE_NAME, msgspec.json.encode(Known(facts.life, until)))
    for base, following in pairwise(segment_bases(disk, directory)):
        if following <= until:
            segment_path(directory, base).unlink()
    return copy


Shape = Callable[["DataFrame"], "DataFrame"]


def table_rows(tables: Tables, bench: Bench) -> Iterator[Row]:
    yield from _Compared(tables, bench, "names mixed", tables.mixed, tables.mixed_rows).rows()
    kind = "a name 1,000 times in a row"
    yield from _Compared(tables, bench, kind, tables.sealed, tables.rows).rows()


class _Compared:
    """One tiered topic, and its rows in plain Parquet. Planning is part of each figure."""

    def __init__(
        self, tables: Tables, bench: Bench, kind: str, data: Path, plain: Callable[[], DataFrame]
    ) -> None:
        self._tables = tables
        self._rounds = bench.rounds
        self._kind = kind
        self._plain = plain
        plain()  # is made of the data
        self._tiered = tier(data, tables.fresh("tiered"), tables.records)

    def rows(self) -> Iterator[Row]:
        yield self._row("full scan", Bar(1.2, at_most=True, goal=1.05), lambda rows: rows)
        yield self._row(
            "timestamp and name",
            Bar(1.4, at_most=True, goal=1.1),
            lambda rows: rows.select("timestamp", "name"),
        )
        yield self._row(
            "one name of 1,000",
            Bar(0.55, at_most=True, goal=0.2),
            lambda rows: rows.where(f"name = '{NAME}'"),
            NAME,
        )
        late = _late(self._plain())
        yield self._row(
            "the last 5 % by time",
            Bar(1.0, at_most=True),
            lambda rows: rows.where(f"timestamp >= timestamp_micros({late})"),
        )
        shutil.rmtree(self._tiered)

    def _row(self, scenario: str, bar: Bar, shape: Shape, names: str | None = None) -> Row:
        spark, path = self._tables.spark, self._tiered

        def ours() -> float:
            def work() -> None:
                rows = table(spark, TOPIC, path=path, names=names)
                drain(rows if names else shape(rows))

            return seconds(work)

        def theirs() -> float:
            return seconds(lambda: drain(shape(self._plain())))

        theirs()
        ours()
        taken = alternate({"ours": ours, "Parquet": theirs}, self._rounds)
        count = self._tables.records / 1e6
        return Row(
            f"table, {scenario}, {self._kind}, {count:g} M records, 98 % cold",
            "s",
            {"value": Figure.of(taken["ours"], taken["Parquet"])},
            ("Parquet", Figure.of(taken["Parquet"]).value),
            bar,
        )


def _late(rows: DataFrame) -> int:
    bounds = rows.selectExpr("min(unix_micros(timestamp))", "max(unix_micros(timestamp))")
    first, last = bounds.collect()[0]
    return int(last - LATE * (last - first))


def batch_rows(tables: Tables, bench: Bench) -> Iterator[Row]:
    """Each batch after the first must not cost more than the first."""
    each = -(-tables.records // BATCHES)

    def ours() -> float:
        to = tables.fresh("table")
        took_s = seconds(
            lambda: archive(TOPIC, to, path=tables.sealed, spark=tables.spark, batch_records=each)
        )
        shutil.rmtree(to)
        return took_s

    def copies() -> float:
        to = tables.fresh("copies")

        def copy(number: int) -> None:
            rows = tables.archived_rows().where(f"offset >= {number * each}")
            part = rows.where(f"offset < {(number + 1) * each}")
            part.write.parquet(str(to / str(number)))

        took_s = seconds(lambda: [copy(number) for number in range(BATCHES)])
        shutil.rmtree(to)
        return took_s

    copies()
    ours()
    taken = alternate({"ours": ours, "copies": copies}, bench.rounds)
    yield Row(
        f"archive in ten batches against ten copies of Parquet, {tables.records / 1e6:g} M records",
        "s",
        {"value": Figure.of(taken["ours"], taken["copies"])},
        ("copies", Figure.of(taken["copies"]).value),
        Bar(1.2, at_most=True, goal=1.0),
    )


PIPELINE: Final = """
[sources.records]
topic = "{topic}"
[sinks.copy]
step = "records"
table = "./copy"
"""


def nothing_rows(tables: Tables, bench: Bench) -> Iterator[Row]:
    """CPU seconds of commands that find nothing new; the bar is in seconds."""
    data = tables.empty_topic()
    with Broker(data) as broker:
        broker.publish_many([b"x"] * 100, TOPIC)
    file = data / "copy.toml"
    file.write_text(PIPELINE.format(topic=TOPIC))
    jobs = {"archive": [TOPIC, "--to", str(tables.fresh("table"))], "sql": [str(file)]}
    for name, arguments in jobs.items():
        command = [sys.executable, "-m", "penstock.cli.main", "pipeline", "run", name, *arguments]

        def spent(command: list[str] = command) -> float:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([*command, "--at", str(data)], check=True, capture_output=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

        spent()
        figure = Figure.of([spent() for _ in range(bench.rounds)])
        yield Row(
            f"{name} that finds nothing new, CPU against one second",
            "s",
            {"value": Figure(figure.value, figure.value)},
            ("one second", 1.0),
            Bar(1.0, at_most=True, goal=0.3),
        )
