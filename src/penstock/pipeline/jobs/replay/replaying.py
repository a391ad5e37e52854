"""Where a replay reads, when what is due, and how a slice of it comes into a topic exactly once.

A slice is written down before it is written: which offsets, under which number. The topic takes a
number once, so a killed job repeats its last slice under the same number, and continues.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import pyarrow as pa

from penstock.core.names import quoted, topic_key
from penstock.core.position import (
    OFFSET_END,
    AtOffset,
    AtOffsets,
    AtTime,
    Earliest,
    Latest,
    Position,
)
from penstock.log.files.disk import RealDisk, write_file
from penstock.log.staging.area import StagedFile
from penstock.model.errors import (
    CorruptError,
    InvalidPosition,
    InvalidSetting,
    RefusedError,
    TopicNotFound,
)
from penstock.pipeline.connecting import origin_of
from penstock.pipeline.sink.intake import Intake
from penstock.pipeline.source.offsets import places_text
from penstock.pipeline.source.options import Connection, topics_text
from penstock.pipeline.source.origin import Range, TopicState, Wanted
from penstock.pipeline.source.plan import place_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

    from penstock.pipeline.jobs import LateSession

_STATE: Final = "replay.json"
_COLUMNS: Final = (
    "offset long, name string, header_pairs array<struct<key:string,value:string>>,"
    " payload binary, kind string"
)
_ARCHIVED: Final = {  # what a table must have to be replayed
    "topic": ("string",),
    "offset": ("bigint",),
    "timestamp": ("timestamp",),
    "name": ("string",),
    "headers": ("map<string,string>",),
    "payload": ("binary", "string"),
}
LIFE: Final = ("topic_id", "epoch")  # columns that say of which life of its topic a record is
NEWEST: Final = "newest"
_STAMP: Final = pa.schema([pa.field("timestamp", pa.timestamp("us", tz="UTC"))])


class Slice(msgspec.Struct, frozen=True):
    """What a replay is, and the slice it is about to write or has written last."""

    replay_id: str
    source: str  # what is replayed, and into what: not to be changed half-way
    start: int
    end: int  # one past the last offset of all
    number: int  # of this slice, from 0
    first: int
    last: int  # one past the last offset of the slice


class Log(Protocol):
    """What is replayed: records in the order of their offsets."""

    name: str
    identity: str  # what no other log has

    def bounds(self) -> tuple[int, int]: ...

    def offset_at(self, timestamp_us: int) -> int:
        """The first offset stamped at or after the time; the end if all are older."""
        ...

    def due(self, timestamp_us: int) -> int:
        """About the same, quickly."""
        ...

    def stamp(self, offset: int) -> int:
        """The time in µs of the first record at or after an offset that is below the end."""
        ...

    def rows(self, first: int, last: int) -> DataFrame:
        """The records of [first, last) in order, as `TaskWrite` takes them."""
        ...


class TopicLog:
    """Implements `Log` on a topic."""

    def __init__(self, session: LateSession, connection: Connection, topic: str) -> None:
        self._origin = origin_of(connection)
        (self._state,) = self._origin.states((topic,))
        self.name = self._state.topic
        self.identity = f"topic {self.name} (id {self._state.topic_id})"
        self._session = session
        self._connection = connection

    def bounds(self) -> tuple[int, int]:
        return self._state.first, self._state.end

    def offset_at(self, timestamp_us: int) -> int:
        return min(self._origin.offset_at(self._state, timestamp_us), self._state.end)

    def due(self, timestamp_us: int) -> int:
        return self.offset_at(timestamp_us)

    def stamp(self, offset: int) -> int:
        state: TopicState = self._state
        one = Range(state.topic, state.topic_id, state.epoch, offset, offset + 1)
        (batch,) = self._origin.scan(one, Wanted(_STAMP))
        stamp: int = batch.column(0)[0].value
        return stamp

    def rows(self, first: int, last: int) -> DataFrame:
        reader = self._session.get().read.format("penstock").schema(_COLUMNS)
        return (
            reader.options(**self._connection.options())
            .option("topic", topics_text([self.name]))
            .option("startingOffsets", places_text({self.name: place_at(self._state, first)}))
            .option("endingOffsets", places_text({self.name: place_at(self._state, last)}))
            .load()
            .drop("offset")
        )


class TableLog:
    """Implements `Log` on the rows of one topic in an archive."""

    def __init__(
        self, session: LateSession, table: Path, topic: str, life: str | None = None
    ) -> None:
        from pyspark.sql import functions as sf

        from penstock.pipeline.delta.rows import read_delta

        rows = read_delta(session.get(), table)
        _check_archive(table, rows)
        for column in LIFE:
            if column not in rows.columns:  # an archive of before, or of somebody else
                rows = rows.selectExpr("*", f"CAST(NULL AS bigint) AS {column}")
        bounds = ("min(offset) AS first", "max(offset) AS last")
        found = rows.groupBy("topic", *LIFE).agg(*map(sf.expr, bounds)).collect()
        named = {row.topic for row in found if topic_key(row.topic) == topic_key(topic)}
        if not named:
            raise TopicNotFound(
                f"table {quoted(str(table))} contains no records of topic {quoted(topic)}: it "
                "contains "
                f"{', '.join(sorted({row.topic for row in found})) or 'no rows'}"
            )
        self.name = named.pop()
        firsts = _lives([row for row in found if row.topic == self.name])
        topic_id = _chosen_life(table, self.name, {one for one, _ in firsts}, life)
        self.identity = f"topic {self.name} of archive {table.absolute()}"
        self.identity += f" (id {topic_id})" if topic_id else ""
        chosen = {epoch: first for (one, epoch), first in firsts.items() if one == topic_id}
        unknown = 0 if (0, 0) in firsts else topic_id
        self._rows = rows.where(rows.topic == self.name).where(_newest(topic_id, unknown, chosen))
        # Seconds in which there are records, with the first offset of each: what is due when.
        seconds = self._rows.selectExpr("unix_seconds(timestamp) AS second", "offset")
        index = seconds.groupBy("second").agg({"offset": "min"}).orderBy("second").collect()
        self._seconds: list[int] = [row[0] for row in index]
        self._firsts: list[int] = [row[1] for row in index]
        self._end: int = 1 + self._rows.agg({"offset": "max"}).collect()[0][0]
        self._check_once(table)

    def _check_once(self, table: Path) -> None:
        """Refuse two records at one offset: archives of before do not say of which life each is."""
        (times,) = self._rows.groupBy("offset").count().agg({"count": "max"}).collect()[0]
        if times > 1:
            raise RefusedError(
                f"table {quoted(str(table))} has several records of topic {quoted(self.name)} at "
                "one offset: the topic was deleted and created again, or its log lost records, "
                "while an older version of Penstock archived it; remove the rows of one life first"
            )

    def bounds(self) -> tuple[int, int]:
        return self._firsts[0], self._end

    def offset_at(self, timestamp_us: int) -> int:
        later = self._rows.where(f"unix_micros(timestamp) >= {timestamp_us}")
        (found,) = later.agg({"offset": "min"}).collect()[0]
        return self._end if found is None else int(found)

    def due(self, timestamp_us: int) -> int:
        """As `offset_at`, to the second."""
        at = bisect_right(self._seconds, timestamp_us // 1_000_000)
        return self._firsts[at] if at < len(self._firsts) else self._end

    def stamp(self, offset: int) -> int:
        at = max(bisect_right(self._firsts, offset) - 1, 0)
        return self._seconds[at] * 1_000_000

    def rows(self, first: int, last: int) -> DataFrame:
        part = self._rows.where(f"offset >= {first} AND offset < {last}").orderBy("offset")
        return part.select("name", "headers", "payload")


def _lives(found: list[Row]) -> dict[tuple[int, int], int]:
    """Where each life and epoch begins. 0: an archive of before did not note it.

    What came before the only life that is known is of the same one, if its offsets allow that.
    """
    firsts = {(row.topic_id or 0, row.epoch or 0): row.first for row in found}
    known = [row for row in found if row.topic_id]
    before = [row for row in found if not row.topic_id]
    is_one = before and len({row.topic_id for row in known}) == 1
    if is_one and max(row.last for row in before) < min(row.first for row in known):
        firsts[known[0].topic_id, 0] = firsts.pop((0, 0))
    return firsts


def _chosen_life(table: Path, topic: str, lives: set[int], wanted: str | None) -> int:
    """The id of the topic whose records are replayed; RefusedError unless it is clear which."""
    shown = ", ".join(str(one) if one else "0 (not known)" for one in sorted(lives))
    if wanted is None:
        if len(lives) == 1:
            return lives.pop()
        raise RefusedError(
            f"table {quoted(str(table))} has records of several lives of topic {quoted(topic)}, "
            f"which was deleted and created again: choose one with the option life ({shown}; or "
            f"{NEWEST})"
        )
    if wanted == NEWEST:
        return max(lives)
    if not wanted.isdecimal() or int(wanted) not in lives:
        raise InvalidSetting(f"life {quoted(wanted)} is not in the table: use {shown} or {NEWEST}")
    return int(wanted)


def _newest(topic_id: int, unknown: int, firsts: dict[int, int]) -> str:
    """In SQL: the records of one life that the log still had in its newest epoch.

    A log that lost records goes on at a lower offset in a new epoch: from there on, what an earlier
    epoch wrote is not in the log any more.
    """
    parts = []
    until = OFFSET_END
    for epoch in sorted(firsts, reverse=True):
        parts.append(f"(coalesce(epoch, 0) = {epoch} AND offset < {until})")
        until = min(until, firsts[epoch])
    return f"coalesce(topic_id, {unknown}) = {topic_id} AND ({' OR '.join(parts)})"


def _check_archive(table: Path, rows: DataFrame) -> None:
    found = dict(rows.dtypes)
    for column, kinds in _ARCHIVED.items():
        if found.get(column) not in kinds:
            is_there = column in found
            wrong = f"its column {column} is {found[column]}" if is_there else f"it has no {column}"
            raise RefusedError(
                f"table {str(table)!r} is not an archive: {wrong}; {column} must be "
                f"{' or '.join(kinds)}, as the job archive writes it"
            )


def resolve(log: Log, position: Position, what: str) -> int:
    """The offset that a position means in the log."""
    first, end = log.bounds()
    match position:
        case Earliest():
            return first
        case Latest():
            return end
        case AtTime(timestamp_us):
            return log.offset_at(timestamp_us)
        case AtOffset(offset):
            if not first <= offset <= end:
                raise InvalidPosition(
                    f"{what}: offset {offset} is not in {quoted(log.name)}: use an offset from "
                    f"{first} to {end}"
                )
            return offset
        case AtOffsets():
            raise InvalidPosition(
                f"{what}: offsets by partition are not possible here: give one offset or a time"
            )


class Checkpoint:
    """The directory in which a replay remembers where it is."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / _STATE

    def load(self) -> Slice | None:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=Slice)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as broken:
            raise CorruptError(
                f"{self._file}: {broken}: this file stores the progress of a replay; give another "
                "checkpoint to start again"
            ) from broken

    def save(self, state: Slice) -> None:
        """Durable on return."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_file(RealDisk(), self._file, msgspec.json.encode(state))

    def check(self, state: Slice, source: str) -> None:
        if state.source != source:
            raise RefusedError(
                f"checkpoint {quoted(str(self._file.parent))} belongs to the replay of "
                f"{state.source}, not of {source}: give another directory"
            )


def put(intake: Intake, topic: str, state: Slice, rows: DataFrame) -> int:
    """Let the slice come into the topic, unless it is there already; how many records did."""
    source = f"replay {state.replay_id}"
    work: Any = partial(_stage, intake, topic, source, state.number)
    staged = rows.mapInArrow(work, "part int, file binary").orderBy("part").collect()
    files = [msgspec.json.decode(bytes(row.file), type=StagedFile) for row in staged]
    if not files:
        return 0
    is_new = intake.hand_over(source, state.number, files, is_only=False)
    return sum(file.records for file in files) if is_new else 0


def _stage(
    intake: Intake, topic: str, source: str, number: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    from pyspark import TaskContext

    from penstock.pipeline.sink.writing import TaskWrite

    context = TaskContext.get()
    assert context is not None, "only tasks stage"
    part = context.partitionId()
    files = TaskWrite(intake, topic, source, number, part).write(batches)
    yield pa.RecordBatch.from_pydict(
        {
            "part": pa.array([part] * len(files), pa.int32()),
            "file": pa.array([msgspec.json.encode(file) for file in files], pa.binary()),
        }
    )
