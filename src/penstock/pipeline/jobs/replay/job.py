"""`replay`: a range of a topic or of an archive once more, into a topic, at the speed you like.

At the speed at which it came, some factor of it, so many records a second, or as fast as it goes.
Every record comes once, also when the job is killed and started again with the same checkpoint.
"""

from __future__ import annotations

import argparse
import threading
import time
import uuid
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.core.position import parse_position
from penstock.log.files.directory import has_topic_files
from penstock.model.clock import SystemClock
from penstock.model.errors import InvalidSetting
from penstock.pipeline.jobs import (
    LOCAL,
    LateSession,
    Progress,
    Report,
    check_directory,
    ignore_progress,
)
from penstock.pipeline.packages import check_spark
from penstock.pipeline.source.offsets import Place, place_key
from penstock.pipeline.source.plan import limited

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.jobs.replay.replaying import Checkpoint, Log, Offsets, Slice
    from penstock.pipeline.sink.intake import Intake

SAYS: Final = "publish a range of a topic or an archive again, into a topic, at a chosen speed"
SLICE_RECORDS_MAX: Final = 200_000  # written at once when there is no hurry to wait for
TICK_S: Final = 0.5  # between looks whether something is due
MAX: Final = "max"

PositionLike = str | int | datetime | timedelta


def replay(
    topic: str,
    into: str,
    *,
    checkpoint: str | Path,
    path: str | Path = "./penstock_data",
    archive: str | Path | None = None,
    life: str | int | None = None,
    start: PositionLike = "earliest",
    until: PositionLike = "latest",
    speed: float | None = 1.0,
    rate: float | None = None,
    url: str = "",
    user: str = "",
    password: str = "",
    token: str = "",
    tenant: str = "",
    spark: SparkSession | None = None,
    master: str = LOCAL,
    report: Report = ignore_progress,
    stop: threading.Event | None = None,
) -> Progress:
    """Publish the records [start, until) of `topic` again into the topic `into`.

    They are read from the files in `path`, from the broker at `url` if its topics are not in files,
    or from the Delta table `archive`; written to the broker
    at `url`, or to `path` if no broker has it open. `speed` is a factor of the original one, None
    for as fast as it goes; `rate`, in records a second, counts instead if it is given. A checkpoint
    directory belongs to one replay: the second run with it goes on, whatever became of the first.
    An archive may have records of several lives of a topic that was deleted and created again:
    `life` chooses one, by the id of the topic, or `newest`.
    """
    check_spark()
    from penstock.pipeline.connecting import intake_of
    from penstock.pipeline.jobs.replay.replaying import Checkpoint, TableLog, TopicLog
    from penstock.pipeline.source.options import Connection, sink_options, topics_text

    _check(speed, rate)
    check_directory(Path(checkpoint))
    files = Connection(Path(path).absolute(), tenant=tenant)
    place = (
        Connection(None, url, user, password=password, token=token, tenant=tenant) if url else files
    )
    with LateSession(spark, master) as session:
        intake = intake_of(sink_options({**place.options(), "topic": topics_text([into])}))
        log: Log
        if archive is not None:
            log = TableLog(session, Path(archive), topic, None if life is None else str(life))
        else:
            # Topics in Kafka or PostgreSQL have no files: the broker has them.
            through = place if url and not has_topic_files(Path(path)) else files
            log = TopicLog(session, through, topic)
        kept = Checkpoint(Path(checkpoint))
        target = intake.find(into)
        source = f"{log.identity} into {target.declared} (id {target.topic_id})"
        state = kept.load()
        if state is not None:
            kept.check(state, source)
        replayer = _Replayer(log, state or _begin(log, source, start, until), speed, rate)
        return replayer.run(kept, intake, into, report, stop or threading.Event())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", help="topic to replay")
    parser.add_argument(
        "--into", metavar="TOPIC", required=True, help="topic to write to; it must exist"
    )
    parser.add_argument(
        "--checkpoint",
        metavar="DIR",
        required=True,
        help="directory that stores the progress of this replay",
    )
    parser.add_argument("--archive", metavar="TABLE", help="read this archive instead of the topic")
    parser.add_argument(
        "--life",
        metavar="ID",
        help="with --archive: replay the records of the topic with this id, or the newest, if the "
        "topic was deleted and created again",
    )
    parser.add_argument("--from", dest="start", metavar="POSITION", default="earliest")
    parser.add_argument("--until", metavar="POSITION", default="latest")
    parser.add_argument(
        "--speed",
        metavar="FACTOR",
        type=_factor,
        default=1.0,
        help=f"factor of the original speed, or {MAX} (1)",
    )
    parser.add_argument(
        "--rate", metavar="N", type=float, help="records per second, instead of --speed"
    )
    parser.add_argument(
        "--url",
        metavar="URL",
        default="",
        help="broker that receives the records (the one that has --at open)",
    )
    parser.add_argument("--user", metavar="NAME", default="", help="user name at that broker")
    parser.add_argument("--password-file", metavar="FILE", help="read the password from FILE")
    parser.add_argument("--key-file", metavar="FILE", help="log in with the key in FILE instead")


def run(options: argparse.Namespace, report: Report) -> Progress:
    return replay(
        options.topic,
        options.into,
        checkpoint=options.checkpoint,
        path=options.at,
        archive=options.archive,
        life=options.life,
        start=options.start,
        until=options.until,
        speed=options.speed,
        rate=options.rate,
        url=options.url or options.serving() or "",
        user=options.user,
        password=_read(options.password_file),
        token=_read(options.key_file) or ("" if options.user else options.key),
        tenant=options.of_tenant,
        master=options.master,
        report=report,
    )


def _factor(text: str) -> float | None:
    try:
        return None if text == MAX else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor {MAX}") from None


def _read(file: str | None) -> str:
    return "" if file is None else Path(file).read_text().strip()


def _check(speed: float | None, rate: float | None) -> None:
    for what, value in (("speed", speed), ("rate", rate)):
        if value is not None and not 0 < value < float("inf"):
            raise InvalidSetting(f"{what} {value!r} must be above 0; speed may be {MAX}")


def _begin(log: Log, source: str, start: PositionLike, until: PositionLike) -> Slice:
    """A new replay, before its first slice."""
    from penstock.pipeline.jobs.replay.replaying import Slice, resolve

    now_us = SystemClock().now_us()
    first = resolve(log, parse_position(start, now_us), "from")
    end = resolve(log, parse_position(until, now_us), "until")
    if all(one > last for one, last in zip(first, end, strict=True)):
        raise InvalidSetting(
            f"the range is empty: it begins at offset {_shown(first)} and ends at {_shown(end)}"
        )
    first = tuple(map(min, first, end))
    return Slice(
        replay_id=uuid.uuid4().hex,
        source=source,
        start=first,
        end=end,
        number=-1,
        first=first,
        last=first,
    )


def _shown(offsets: Offsets) -> str:
    return str(offsets[0] if len(offsets) == 1 else dict(enumerate(offsets)))


def _between(first: Offsets, last: Offsets) -> int:
    """How many offsets lie between, in all partitions."""
    return sum(last) - sum(first)


class _Replayer:
    """One run: decides what is due, writes that down, then lets it come."""

    def __init__(self, log: Log, state: Slice, speed: float | None, rate: float | None) -> None:
        self._log = log
        self._state = state
        self._speed = speed
        self._rate = rate
        self._rows = 0
        self._slices = 0
        self._began_s = time.monotonic()
        # Pacing begins anew with every run: what was missed meanwhile is not hurried after.
        self._base_offsets = state.last
        self._base_us = log.stamp(state.last, state.end) if state.last != state.end else 0

    def run(
        self, kept: Checkpoint, intake: Intake, into: str, report: Report, stop: threading.Event
    ) -> Progress:
        if self._state.number >= 0:  # it may have been killed before this slice came in
            self._put(intake, into)
        while self._state.last != self._state.end and not stop.is_set():
            due = self._due()
            if due == self._state.last:
                stop.wait(TICK_S)
                continue
            self._state = msgspec.structs.replace(
                self._state, number=self._state.number + 1, first=self._state.last, last=due
            )
            kept.save(self._state)
            self._put(intake, into)
            report(self._progress())
        return self._progress()

    def _due(self) -> Offsets:
        """One past the last record that is due by now, limited to one slice.

        With a speed each partition keeps its times; else what is taken is in proportion to what is
        left, so that all of them end together.
        """
        last, end = self._state.last, self._state.end
        gone_s = time.monotonic() - self._began_s
        if self._rate is not None:
            done = _between(self._base_offsets, last)
            return _advance(last, end, min(int(self._rate * gone_s) - done, SLICE_RECORDS_MAX))
        if self._speed is None:
            return _advance(last, end, SLICE_RECORDS_MAX)
        due = self._log.due(self._base_us + int(gone_s * self._speed * 1e6))
        bounded = [max(min(one, stop), at) for one, stop, at in zip(due, end, last, strict=True)]
        return _advance(last, tuple(bounded), SLICE_RECORDS_MAX)

    def _put(self, intake: Intake, into: str) -> None:
        from penstock.pipeline.jobs.replay.replaying import put

        state = self._state
        self._rows += put(intake, into, state, self._log.rows(state.first, state.last))
        self._slices += 1

    def _progress(self) -> Progress:
        took_s = max(time.monotonic() - self._began_s, 1e-3)
        state = self._state
        offsets = {place_key(self._log.name, at): one for at, one in enumerate(state.last)}
        left = _between(state.last, state.end)
        return Progress(self._rows, self._slices, self._rows / took_s, offsets, left)


def _advance(first: Offsets, end: Offsets, records_max: int) -> Offsets:
    """`end`, moved back so that all partitions together give at most so many records."""
    begins = {str(at): offset for at, offset in enumerate(first)}
    ends = {str(at): Place(offset) for at, offset in enumerate(end)}
    found = limited(begins, ends, max(records_max, 0))
    return tuple(found[str(at)].offset for at in range(len(first)))
