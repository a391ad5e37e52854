"""`archive`: topics into a Delta table, partitioned by date, each record exactly once.

Catches up and ends, or follows. The table says where to go on, so a job that was killed is simply
started again.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.model.errors import InvalidSetting, UnavailableError
from penstock.pipeline.directory import DirectoryOrigin
from penstock.pipeline.jobs import Progress, Report, ignore_progress, local_session
from penstock.pipeline.offsets import Places, StreamOffset
from penstock.pipeline.plan import beginning, limited, place_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.pipeline.delta import ArchiveTable

SAYS: Final = "topics into a Delta table, partitioned by date"
BATCH_RECORDS: Final = 2_000_000  # of one commit: some seconds of work
EVERY_S: Final = 10.0
MERGE_EVERY: Final = 20  # commits
RACES_MAX: Final = 5  # commits in a row that another job overtook
# Whatever the session's time zone is.
_DATE: Final = (
    "date_add(DATE'1970-01-01', int(floor(unix_micros(timestamp) / 86400000000))) AS date"
)
_TIMES: Final = ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")


def archive(
    topics: str | Sequence[str],
    table: str | Path,
    *,
    path: str | Path = "./penstock_data",
    follow: bool = False,
    every_s: float = EVERY_S,
    batch_records: int = BATCH_RECORDS,
    fail_on_data_loss: bool = True,
    spark: SparkSession | None = None,
    report: Report = ignore_progress,
    stop: threading.Event | None = None,
) -> Progress:
    """Archive topics into the Delta table `table`; what was done.

    Goes on where the table ends. Without `follow` up to the ends that the topics have now; else
    until `stop` is set, adding what came every `every_s` seconds.
    """
    from penstock.pipeline.delta import ArchiveTable

    if batch_records < 1 or every_s <= 0:
        raise InvalidSetting(
            f"batch_records {batch_records!r} and every_s {every_s!r} must be above 0"
        )
    names = tuple([topics] if isinstance(topics, str) else topics)
    with local_session(spark) as used, _micros(used):
        archiver = _Archiver(
            used, Path(path), ArchiveTable(Path(table)), names, batch_records, fail_on_data_loss
        )
        stop = stop or threading.Event()
        if not follow:
            archiver.set_target()
        while not stop.is_set():
            if archiver.add_batch():
                report(archiver.progress())
                if archiver.batches % MERGE_EVERY == 0:
                    archiver.table.merge_small_files()
                if archiver.is_behind:
                    continue
            if not follow:
                break
            stop.wait(every_s)
        archiver.table.merge_small_files()
        return archiver.progress()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topics", metavar="TOPIC", nargs="+", help="what to archive")
    parser.add_argument("--to", metavar="TABLE", required=True, help="directory of the table")
    parser.add_argument("--follow", action="store_true", help="go on with what comes")
    parser.add_argument(
        "--every", metavar="SECONDS", type=float, default=EVERY_S, help="with --follow (10)"
    )
    parser.add_argument(
        "--batch-records", metavar="N", type=int, default=BATCH_RECORDS, help="of one commit"
    )
    parser.add_argument(
        "--skip-lost", action="store_true", help="go on without records that are gone"
    )


def run(options: argparse.Namespace, report: Report) -> Progress:
    with local_session(None, options.master) as spark:
        return archive(
            options.topics,
            options.to,
            path=options.at,
            follow=options.follow,
            every_s=options.every,
            batch_records=options.batch_records,
            fail_on_data_loss=not options.skip_lost,
            spark=spark,
            report=report,
        )


class _Archiver:
    """One run of the job."""

    def __init__(
        self,
        spark: SparkSession,
        path: Path,
        table: ArchiveTable,
        topics: tuple[str, ...],
        batch_records: int,
        fails_on_loss: bool,
    ) -> None:
        self.table = table
        self.batches = 0
        self.is_behind = False  # the last batch took as much as one may
        self._spark = spark
        self._path = path.absolute()
        self._origin = DirectoryOrigin(self._path)
        self._topics = topics
        self._batch_records = batch_records
        self._fails_on_loss = fails_on_loss
        self._rows = 0
        self._began_s = time.monotonic()
        self._ends: Places = {}
        self._target: Places | None = None

    def set_target(self) -> None:
        """Nothing past what is there now is archived."""
        states = self._origin.states(self._topics)
        self._target = {state.topic: place_at(state, state.end) for state in states}

    def add_batch(self) -> bool:
        """Archive what is there, up to a batch's worth; False when nothing was new."""
        for _ in range(RACES_MAX):
            start, end = self._plan()
            self._ends = end
            if start == end:
                return False
            try:
                self._rows += self.table.append(self._read(start, end), end)
            except UnavailableError:
                continue  # another job was faster: the table says now where to go on
            self.batches += 1
            return True
        raise UnavailableError("another job archives the same topics into this table: stop one")

    def _plan(self) -> tuple[Places, Places]:
        start: Places = {}
        begins: dict[str, int] = {}
        end: Places = {}
        for state in self._origin.states(self._topics):
            known = self.table.place(state.topic)
            start[state.topic] = known or place_at(state, state.first)
            begins[state.topic] = beginning(self._origin, state, start[state.topic])
            end[state.topic] = place_at(state, state.end)
        if self._target is not None:
            end = {topic: self._target.get(topic, place) for topic, place in end.items()}
        # Never back: another job may have gone on meanwhile.
        end = {t: replace(p, offset=max(p.offset, begins[t])) for t, p in end.items()}
        chosen = limited(begins, end, self._batch_records)
        self.is_behind = chosen != end
        return start, chosen

    def _read(self, start: Places, end: Places) -> DataFrame:
        options = {
            "path": str(self._path),
            "topic": ",".join(start),
            "startingOffsets": json.dumps(StreamOffset(start).to_json()),
            "endingOffsets": json.dumps(StreamOffset(end).to_json()),
            "failOnDataLoss": str(self._fails_on_loss),
        }
        return self._spark.read.format("penstock").options(**options).load().selectExpr("*", _DATE)

    def lag(self) -> int:
        """Records that wait in the topics."""
        states = self._origin.states(self._topics, missing_ok=True)
        known = {topic: place.offset for topic, place in self._ends.items()}
        return sum(max(state.end - known.get(state.topic, state.first), 0) for state in states)

    def progress(self) -> Progress:
        took_s = max(time.monotonic() - self._began_s, 1e-3)
        offsets = {topic: place.offset for topic, place in self._ends.items()}
        return Progress(self._rows, self.batches, self._rows / took_s, offsets, self.lag())


@contextmanager
def _micros(spark: SparkSession) -> Iterator[None]:
    """Parquet files with the times that Delta tables hold."""
    key, value = _TIMES
    before = spark.conf.get(key)
    spark.conf.set(key, value)
    try:
        yield
    finally:
        if before is not None:
            spark.conf.set(key, before)
