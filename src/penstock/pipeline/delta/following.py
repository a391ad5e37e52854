"""Topics followed into a Delta table, batch after batch, each record exactly once.

The table says where to continue, so a job that was killed is simply started again; and when two
follow the same topics into one table, one of them begins its batch anew.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from typing import TYPE_CHECKING, Final

from penstock.model.errors import InvalidSetting, UnavailableError
from penstock.pipeline.connecting import origin_of
from penstock.pipeline.jobs import Progress, Report
from penstock.pipeline.source.offsets import Places, places_text, topics_in
from penstock.pipeline.source.options import Connection, topics_text
from penstock.pipeline.source.plan import beginning, limited, place_at, ranges_between

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.pipeline.delta.table import ArchiveTable
    from penstock.pipeline.jobs import LateSession
    from penstock.pipeline.source.origin import Range, TopicState

BATCH_RECORDS: Final = 2_000_000  # of one commit: some seconds of work
MERGE_EVERY: Final = 20  # commits
RACES_MAX: Final = 5  # commits in a row that another job overtook
DAY_US: Final = 86_400_000_000
# The day of a record, whatever the session's time zone is.
DAY: Final = f"date_add(DATE'1970-01-01', int(floor(unix_micros(timestamp) / {DAY_US})))"
DATE: Final = f"{DAY} AS date"

# Fewer records are copied here: a Spark that must be started first takes some seconds.
COPY_RECORDS_MAX: Final = 1_000_000

# Records, and up to where their topics are followed, to rows of the table.
Shape = Callable[["DataFrame", Places], "DataFrame"]


def life_columns(places: Places) -> list[str]:
    """Columns, in SQL, that say of which life of its topic a record is.

    A topic that is deleted and created anew has another id, and a log that lost records a new
    epoch: their offsets say something else.
    """
    return [
        f"{_chosen({key: getattr(place, name) for key, place in places.items()})} AS {name}"
        for name in ("topic_id", "epoch")
    ]


def _chosen(values: dict[str, int]) -> str:
    """A number by topic and partition, in SQL."""
    if len(set(values.values())) == 1:
        return f"{next(iter(values.values()))}L"
    cases = " ".join(f"WHEN {_text(key)} THEN {value}L" for key, value in values.items())
    return f"CASE {_KEY} {cases} END"


# What `place_key` makes of a topic and a partition.
_KEY: Final = "CASE WHEN partition = 0 THEN topic ELSE concat(topic, '/', partition) END"


def _text(key: str) -> str:
    """The key of a place as text in SQL, whatever is in its name."""
    return f"decode(X'{key.encode().hex()}', 'UTF-8')"


class Follower:
    """One run: `columns` of the topics are read, and `shape` makes rows of the table of them.

    With `copies_records` the rows are the records, so a few of them need no Spark.
    """

    def __init__(
        self,
        session: LateSession,
        connection: Connection,
        table: ArchiveTable,
        topics: tuple[str, ...],
        batch_records: int,
        *,
        columns: str,
        shape: Shape,
        copies_records: bool = False,
        fails_on_loss: bool = True,
    ) -> None:
        if batch_records < 1:
            raise InvalidSetting(f"batch_records {batch_records!r} must be above 0")
        self.table = table
        self.batches = 0
        self.is_behind = False  # the last batch took as much as one may
        self._session = session
        self._connection = connection
        self._origin = origin_of(connection)
        self._topics = topics
        self._batch_records = batch_records
        self._columns = columns
        self._shape = shape
        self._copies_records = copies_records
        self._fails_on_loss = fails_on_loss
        self._rows = 0
        self._began_s = time.monotonic()
        self._ends: Places = {}
        self._target: Places | None = None

    def follow(self, report: Report, every_s: float | None, stop: threading.Event) -> Progress:
        """Up to the ends that the topics have now; with `every_s`, go on until `stop` is set."""
        if every_s is None and self._target is None:
            states = self._origin.states(self._topics)
            self.set_target({state.key: place_at(state, state.end) for state in states})
        while not stop.is_set():
            if self.add_batch():
                report(self.progress())
                if self.batches % MERGE_EVERY == 0:
                    self.table.merge_small_files()
                if self.is_behind:
                    continue
            if every_s is None:
                break
            stop.wait(every_s)
        self.table.merge_small_files()
        return self.progress()

    def set_target(self, target: Places) -> None:
        """Nothing past it is taken."""
        self._target = target

    def add_batch(self) -> bool:
        """Take what is there, up to a batch's worth; False when nothing was new."""
        for _ in range(RACES_MAX):
            start, end = self._plan()
            self._ends = end
            if start == end:
                return False
            try:
                self._rows += self._append(start, end)
            except UnavailableError:
                continue  # another job was faster: the table says now where to go on
            self.batches += 1
            return True
        raise UnavailableError(
            "another job copies the same topics into this table: stop one of them"
        )

    def _plan(self) -> tuple[Places, Places]:
        start: Places = {}
        begins: dict[str, int] = {}
        end: Places = {}
        for state in self._origin.states(self._topics):
            known = self.table.place(state.key)
            start[state.key] = known or place_at(state, state.first)
            begins[state.key] = beginning(self._origin, state, start[state.key])
            end[state.key] = place_at(state, state.end)
        if self._target is not None:
            end = {key: self._target.get(key, place) for key, place in end.items()}
        # Never back: another job may have gone on meanwhile.
        end = {t: replace(p, offset=max(p.offset, begins[t])) for t, p in end.items()}
        chosen = limited(begins, end, self._batch_records)
        self.is_behind = chosen != end
        return start, chosen

    def _append(self, start: Places, end: Places) -> int:
        """Add the records in between; how many."""
        if self._copies_records and not self._session.is_open:
            ranges = self._ranges(start, end)
            if sum(one.end - one.start for one in ranges) <= COPY_RECORDS_MAX:
                return self.table.copy(self._origin, ranges, end, fails_on_loss=self._fails_on_loss)
        rows = self._read(start, end)
        return self.table.append(rows, end, self._only_day(start, end))

    def _ranges(self, start: Places, end: Places) -> list[Range]:
        states = self._states(start)
        loss = self._fails_on_loss
        return ranges_between(self._origin, states, start, end, fails_on_loss=loss)

    def _states(self, places: Places) -> list[TopicState]:
        """The partitions that have a place."""
        states = self._origin.states(topics_in(places))
        return [state for state in states if state.key in places]

    def _only_day(self, start: Places, end: Places) -> date | None:
        """The day on which all records in between were received, judged by the first and last."""
        days: set[int | None] = set()
        for state in self._states(start):
            begin, last = beginning(self._origin, state, start[state.key]), end[state.key].offset
            for offset in {begin, last - 1} if begin < last else ():
                stamp = self._origin.stamp_at(state, offset)
                days.add(None if stamp is None else stamp // DAY_US)
        only = days.pop() if len(days) == 1 else None
        return None if only is None else date(1970, 1, 1) + timedelta(days=only)

    def _read(self, start: Places, end: Places) -> DataFrame:
        options = {
            **self._connection.options(),
            "topic": topics_text(topics_in(start)),
            "startingOffsets": places_text(start),
            "endingOffsets": places_text(end),
            "failOnDataLoss": str(self._fails_on_loss),
        }
        reader = self._session.get().read.format("penstock").schema(self._columns)
        return self._shape(reader.options(**options).load(), end)

    def lag(self) -> int:
        """Records that wait in the topics."""
        states = self._origin.states(self._topics, missing_ok=True)
        known = {key: place.offset for key, place in self._ends.items()}
        return sum(max(state.end - known.get(state.key, state.first), 0) for state in states)

    def progress(self) -> Progress:
        took_s = max(time.monotonic() - self._began_s, 1e-3)
        offsets = {topic: place.offset for topic, place in self._ends.items()}
        return Progress(self._rows, self.batches, self._rows / took_s, offsets, self.lag())
