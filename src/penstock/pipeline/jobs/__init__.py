"""The built-in jobs: what `penstock pipeline run` knows, and what all of them share.

A job is a module with `SAYS`, `add_arguments(parser)` and `run(options, report)`, and a function of
the same name for programs. Adding one is adding its name to JOBS. Modules import Spark only when
they run.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, Self, cast

from penstock.core.durations import seconds
from penstock.model.errors import InvalidSetting, RefusedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOBS: Final = ("archive", "clean", "dispatch", "replay", "sql", "stats")
# Jobs whose topics may be at a broker's address.
BY_ADDRESS: Final = ("archive", "dispatch", "sql", "stats")

LOCAL: Final = "local[*]"  # where Spark runs unless told otherwise


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is; told after every batch."""

    rows: int  # since the job began
    batches: int
    rows_per_s: float
    offsets: dict[str, int] = field(default_factory=dict)  # of each topic: the next one
    lag: int = 0  # records that wait
    says: str = ""  # what else is worth knowing

    def words(self) -> str:
        """One line for people."""
        where = ", ".join(f"{topic} {offset:,}" for topic, offset in self.offsets.items())
        return (
            f"{self.rows:,} rows · {self.rows_per_s:,.0f}/s · offset {where or '–'} · "
            f"lag {self.lag:,} · {self.batches} batch{'' if self.batches == 1 else 'es'}"
        ) + (f" · {self.says}" if self.says else "")


Report = Callable[[Progress], None]


class Job(Protocol):
    """A module of this package."""

    SAYS: str  # one line for people

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, options: argparse.Namespace, report: Report) -> Progress:
        """Do the work.

        `options` also has `master`, and `at`, the data directory; of jobs in BY_ADDRESS also
        `place`, which says where the topics are in the words of the job's function.
        """
        ...


def find_job(name: str) -> Job:
    """The job of this name, which is one of JOBS."""
    return cast(Job, import_module(f"penstock.pipeline.jobs.{name}.job"))


def duration(text: str) -> str:
    """An argument that is a duration, as it was written."""
    try:
        seconds("", text)
    except InvalidSetting as wrong:
        raise argparse.ArgumentTypeError(str(wrong).strip()) from None
    return text


def add_batch_arguments(parser: argparse.ArgumentParser, batch_records: int) -> None:
    """The arguments of a job that copies topics in batches."""
    parser.add_argument(
        "--batch-records",
        metavar="N",
        type=int,
        default=batch_records,
        help="records of one commit",
    )
    parser.add_argument("--skip-lost", action="store_true", help="continue without lost records")


def check_directory(path: Path) -> None:
    """RefusedError where no directory can be, because a file is in the way."""
    for one in (path, *path.parents):
        if one.exists():
            if not one.is_dir():
                raise RefusedError(f"{str(one)!r} is a file: give a directory")
            return


def ignore_progress(progress: Progress) -> None:
    """Nobody wants to know."""


class LateSession:
    """The session of a job: one that was given or is open already; else started when it is needed.

    A job first looks whether there is anything to do: Java alone takes seconds and half a gigabyte.
    What was started here ends with the job.
    """

    def __init__(self, spark: SparkSession | None, master: str = LOCAL) -> None:
        self._spark = spark or _active_session()
        self._master = master
        self._is_ours = False

    @property
    def is_open(self) -> bool:
        return self._spark is not None

    def get(self) -> SparkSession:
        if self._spark is None:
            from penstock.pipeline.spark import session

            with _signals_kept():
                self._spark = session("penstock job", master=self._master)
            self._is_ours = True
        return self._spark

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended: object) -> None:
        if self._is_ours and self._spark is not None:
            self._spark.stop()


def _active_session() -> SparkSession | None:
    if "pyspark.sql" not in sys.modules:  # which takes a second to import
        return None
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Spark sets an action for Ctrl-C when it starts; one that a job has set stays."""
    action = signal.getsignal(signal.SIGINT)
    yield
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and action is not signal.default_int_handler:
        signal.signal(signal.SIGINT, action)


@contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """Ctrl-C is how a job that goes on is ended: the first one ends it in good order."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def end(number: int, frame: object) -> None:
        stop.set()
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, end)
    try:
        yield stop
    finally:
        for number, action in before.items():
            signal.signal(number, action)
