"""`sql`: a pipeline declared in a file: topics and tables, steps in SQL, topics and tables.

Takes what is there and ends, or goes on, as the file's trigger says. The checkpoint says where to
go on, so a job that was killed is simply started again: nothing is lost or doubled.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.log.files.directory import read_holder
from penstock.model.errors import InvalidPipeline, RefusedError
from penstock.pipeline.declared.checkpoint import (
    held_checkpoint,
    note_declared,
    offsets_if_done,
)
from penstock.pipeline.declared.declaration import Declaration
from penstock.pipeline.declared.order import part_of
from penstock.pipeline.declared.reading import read_declaration
from penstock.pipeline.declared.topics import check_topics
from penstock.pipeline.jobs import (
    LateSession,
    Progress,
    Report,
    ignore_progress,
    stopped_by_signals,
)
from penstock.pipeline.packages import check_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.pipeline.declared.views import Views

Where = tuple[dict[str, str], dict[str, str]]  # topics are read, and written
Start = Callable[[], "SparkSession"]
SAYS: Final = "run a pipeline declared in a file, with steps in SQL"


@dataclass(frozen=True, slots=True)
class Checked:
    """One part of a pipeline that was found good, and the columns it has."""

    kind: str  # source, step or sink
    name: str
    columns: tuple[tuple[str, str], ...]  # names and types


def sql(
    file: str | Path,
    *,
    path: str | Path = "./penstock_data",
    url: str = "",
    user: str = "",
    password: str = "",
    token: str = "",
    tenant: str = "",
    once: bool = False,
    spark: SparkSession | None = None,
    report: Report = ignore_progress,
    stop: threading.Event | None = None,
) -> Progress:
    """Run the pipeline that `file` declares; what was done.

    Topics are in the data directory `path`, or at the address `url` of a running broker; a broker
    that has the directory open is found by itself. Without a trigger in the file, or with `once`,
    up to the ends that the topics have now; else until `stop` is set. Spark is not started if
    nothing was added since. InvalidPipeline says what is wrong in which line.
    """
    where = _connections(path, url, user, password=password, token=token, tenant=tenant)
    with LateSession(spark) as session:
        return _run(Path(file), where, session.get, report, stop or threading.Event(), once=once)


def _run(
    file: Path, where: Where, start: Start, report: Report, stop: threading.Event, *, once: bool
) -> Progress:
    """As `sql`. What is wrong with the file or the topics is known before Spark is started."""
    check_spark()
    declared = read_declaration(file)
    reading, writing = where
    check_topics(declared, reading)
    ends = once or declared.trigger_s is None
    with held_checkpoint(declared.checkpoint):
        if ends and (offsets := offsets_if_done(declared, reading)) is not None:
            return Progress(0, 0, 0.0, offsets)
        spark = start()
        from penstock.pipeline.declared.running import Queries

        outputs = _planned(spark, declared, reading, writing)  # all that is wrong is said at once
        if len(declared.sinks) > 1:
            # Each query has plans of its own: Spark changes them as it runs, in several threads.
            parts = [part_of(declared, sink) for sink in declared.sinks]
            planned = [_planned(spark, part, reading, writing) for part in parts]
            outputs = {name: frame for one in planned for name, frame in one.items()}
        queries = Queries(declared, writing, once=once)
        queries.start(outputs)
        done = queries.run(report, stop)
        note_declared(declared)
        return done


def check(
    file: str | Path,
    *,
    path: str | Path = "./penstock_data",
    url: str = "",
    user: str = "",
    password: str = "",
    token: str = "",
    tenant: str = "",
    spark: SparkSession | None = None,
) -> list[Checked]:
    """Check the pipeline that `file` declares, without running it: its parts and their columns.

    InvalidPipeline says what is wrong in which line.
    """
    check_spark()
    declared = read_declaration(Path(file))
    with LateSession(spark) as session:
        where = _connections(path, url, user, password=password, token=token, tenant=tenant)
        views = _views(session.get(), declared, *where)
        parts = [
            *(("source", one.name, views.frames[one.name.lower()]) for one in declared.sources),
            *(("step", one.name, views.frames[one.name.lower()]) for one in declared.steps),
            *(("sink", one.name, views.outputs[one.name]) for one in declared.sinks),
        ]
        return [Checked(kind, name, _columns(frame)) for kind, name, frame in parts]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="TOML file that declares the pipeline")
    parser.add_argument(
        "--once",
        action="store_true",
        help="process the existing records and end, whatever the trigger is",
    )


def run(options: argparse.Namespace, report: Report) -> Progress:
    with LateSession(None, options.master) as session, stopped_by_signals() as stop:

        def start() -> SparkSession:
            spark = session.get()
            if not options.master.startswith("sc://"):
                # A query that fails is told in a sentence, and one that is stopped did not fail.
                spark.sparkContext.setLogLevel("OFF")
            return spark

        where = _connections(**options.place)
        return _run(Path(options.file), where, start, report, stop, once=options.once)


def _connections(
    path: str | Path = ".",
    url: str = "",
    user: str = "",
    password: str = "",
    token: str = "",
    tenant: str = "",
) -> Where:
    """Options that say where topics are read, and where they are written.

    Files are read even while a broker has them open; only that broker writes them.
    """
    given = {"user": user, "password": password, "token": token}
    login = {key: value for key, value in given.items() if value}
    named = {"tenant": tenant} if tenant else {}
    if url:
        return {"url": url} | login | named, {"url": url} | login | named
    files = {"path": str(Path(path).absolute())} | named
    holder = read_holder(Path(path)) or {}
    addresses = [one for one in holder.get("addresses", []) if one.startswith("http")]
    return files, {"url": addresses[0]} | login | named if addresses else files


def _planned(
    spark: SparkSession, declared: Declaration, reading: dict[str, str], writing: dict[str, str]
) -> dict[str, DataFrame]:
    """What each sink writes, by its name; read are the columns that are used."""
    try:
        return _views(spark, declared, reading, writing, prunes=True).outputs
    except InvalidPipeline:  # with all columns in view it can be said better
        return _views(spark, declared, reading, writing).outputs


def _views(
    spark: SparkSession,
    declared: Declaration,
    reading: dict[str, str],
    writing: dict[str, str],
    *,
    prunes: bool = False,
) -> Views:
    from penstock.pipeline.declared.views import Views
    from penstock.pipeline.delta.parquet import is_connect

    if is_connect(spark):
        raise RefusedError(
            "declared pipelines do not run on Spark Connect: give a master, such as local[*] or "
            "spark://HOST:7077"
        )
    own = spark.newSession()  # its views are nobody else's
    for key, value in _SETTINGS.items():
        own.conf.set(key, value)
    partitions = declared.partitions or max(2, spark.sparkContext.defaultParallelism)
    own.conf.set("spark.sql.shuffle.partitions", str(partitions))
    return Views(own, declared, reading, writing, prunes=prunes)


_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # what Delta tables hold
    "spark.sql.variant.allowDuplicateKeys": "true",  # the last one counts, as in `where`
}


def _columns(frame: DataFrame) -> tuple[tuple[str, str], ...]:
    return tuple((field.name, field.dataType.simpleString()) for field in frame.schema)
