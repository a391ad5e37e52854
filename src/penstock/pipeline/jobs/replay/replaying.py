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

from penstock.core.naming.names import quoted, topic_key
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
from penstock.pipeline.source.origin import TopicState, Wanted
from penstock.pipeline.source.plan import place_at, range_of

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
PARTITION: Final = "partition"
LIFE: Final = ("topic_id", "epoch")  # columns that say of which life of its topic a record is
NEWEST: Final = "newest"
_LOOK_RECORDS: Final = 1_000  # offsets read at once to find the first record
_STAMP: Final = pa.schema([pa.field("timestamp", pa.timestamp("us", tz="UTC"))])


Offsets = tuple[int, ...]  # one for each partition, in their order


class Slice(msgspec.Struct, frozen=True):
    """What a replay is, and the slice it is about to write or has written last."""

    replay_id: str
    source: str  # what is replayed, and into what: not to be changed half-way
    start: Offsets
    end: Offsets  # one past the last offset of all
    number: int  # of this slice, from 0
    first: Offsets
    last: Offsets  # one past the last offset of the slice


class Log(Protocol):
    """What is replayed: records in the order of their offsets, in each partition."""

    name: str
    identity: str  # what no other log has

    def bounds(self) -> tuple[Offsets, Offsets]: ...

    def offset_at(self, timestamp_us: int) -> Offsets:
        """The first offsets stamped at or after the time; the end if all are older."""
        ...

    def due(self, timestamp_us: int) -> Offsets:
        """About the same, quickly."""
        ...

    def stamp(self, offsets: Offsets, end: Offsets) -> int:
        """The time in µs of the first record from these offsets on; 0 if there is none."""
        ...

    def rows(self, first: Offsets, last: Offsets) -> DataFrame:
        """The records of [first, last), of each partition in order, as `TaskWrite` takes them."""
        ...


class TopicLog:
    """Implements `Log` on a topic."""

    def __init__(self, session: LateSession, connection: Connection, topic: str) -> None:
        self._origin = origin_of(connection)
        self._states = self._origin.states((topic,))
        self.name = self._states[0].topic
        self.identity = f"topic {self.name} (id {self._states[0].topic_id})"
        self._session = session
        self._connection = connection

    def bounds(self) -> tuple[Offsets, Offsets]:
        states = self._states
        return tuple(one.first for one in states), tuple(one.end for one in states)

    def offset_at(self, timestamp_us: int) -> Offsets:
        found = [(self._origin.offset_at(one, timestamp_us), one.end) for one in self._states]
        return tuple(map(min, found))

    def due(self, timestamp_us: int) -> Offsets:
        return self.offset_at(timestamp_us)

    def stamp(self, offsets: Offsets, end: Offsets) -> int:
        parts = zip(self._states, offsets, end, strict=True)
        found = [self._stamp(*part) for part in parts]
        return min([stamp for stamp in found if stamp is not None], default=0)

    def _stamp(self, state: TopicState, offset: int, end: int) -> int | None:
        """Of the first record of a partition; offsets in Kafka may hold none."""
        while offset < end:
            last = min(offset + _LOOK_RECORDS, end)
            for batch in self._origin.scan(range_of(state, offset, last), Wanted(_STAMP)):
                if batch.num_rows:
                    stamp: int = batch.column(0)[0].value
                    return stamp
            offset = last
        return None

    def rows(self, first: Offsets, last: Offsets) -> DataFrame:
        reader = self._session.get().read.format("penstock").schema(_COLUMNS)
        return (
            reader.options(**self._connection.options())
            .option("topic", topics_text([self.name]))
            .option("startingOffsets", self._places(first))
            .option("endingOffsets", self._places(last))
            .load()
            .drop("offset")
        )

    def _places(self, offsets: Offsets) -> str:
        pairs = zip(self._states, offsets, strict=True)
        return places_text({state.key: place_at(state, offset) for state, offset in pairs})


class TableLog:
    """Implements `Log` on the rows of one topic in an archive."""

    def __init__(
        self, session: LateSession, table: Path, topic: str, life: str | None = None
    ) -> None:
        from penstock.pipeline.delta.rows import read_delta

        rows = read_delta(session.get(), table)
        _check_archive(table, rows)
        for column in LIFE:
            if column not in rows.columns:  # an archive of before, or of somebody else
                rows = rows.selectExpr("*", f"CAST(NULL AS bigint) AS {column}")
        if PARTITION not in rows.columns:
            rows = rows.selectExpr("*", f"0 AS {PARTITION}")
        found = _bounds(rows)
        named = {row.topic for row in found if topic_key(row.topic) == topic_key(topic)}
        if not named:
            raise TopicNotFound(
                f"table {quoted(str(table))} contains no records of topic {quoted(topic)}: it "
                "contains "
                f"{', '.join(sorted({row.topic for row in found})) or 'no rows'}"
            )
        self.name = named.pop()
        mine = [row for row in found if row.topic == self.name]
        lives = {
            number: _lives([row for row in mine if row.part == number])
            for number in sorted({row.part for row in mine})
        }
        every = {one for firsts in lives.values() for one, _ in firsts}
        topic_id = _chosen_life(table, self.name, every, life)
        self.identity = f"topic {self.name} of archive {table.absolute()}"
        self.identity += f" (id {topic_id})" if topic_id else ""
        wanted = [_of_part(number, topic_id, firsts) for number, firsts in lives.items()]
        self._rows = rows.where(rows.topic == self.name).where(" OR ".join(wanted))
        self._check_once(table)
        self._parts = _index(self._rows)

    def _check_once(self, table: Path) -> None:
        """Refuse two records at one offset: archives of before do not say of which life each is."""
        counted = self._rows.groupBy(PARTITION, "offset").count()
        (times,) = counted.agg({"count": "max"}).collect()[0]
        if times > 1:
            raise RefusedError(
                f"table {quoted(str(table))} has several records of topic {quoted(self.name)} at "
                "one offset: the topic was deleted and created again, or its log lost records, "
                "while an older version of Penstock archived it; remove the rows of one life first"
            )

    def bounds(self) -> tuple[Offsets, Offsets]:
        return tuple(one.firsts[0] for one in self._parts), self._ends

    @property
    def _ends(self) -> Offsets:
        return tuple(one.end for one in self._parts)

    def offset_at(self, timestamp_us: int) -> Offsets:
        later = self._rows.where(f"unix_micros(timestamp) >= {timestamp_us}")
        rows = later.groupBy(PARTITION).agg({"offset": "min"}).collect()
        found = {row[0]: int(row[1]) for row in rows}
        return tuple(found.get(one.number, one.end) for one in self._parts)

    def due(self, timestamp_us: int) -> Offsets:
        """As `offset_at`, to the second."""
        return tuple(one.due(timestamp_us // 1_000_000) for one in self._parts)

    def stamp(self, offsets: Offsets, end: Offsets) -> int:
        parts = zip(self._parts, offsets, end, strict=True)
        return min([one.second(offset) for one, offset, last in parts if offset < last]) * 1_000_000

    def rows(self, first: Offsets, last: Offsets) -> DataFrame:
        wanted = [
            f"({PARTITION} = {one.number} AND offset >= {start} AND offset < {stop})"
            for one, start, stop in zip(self._parts, first, last, strict=True)
        ]
        part = self._rows.where(" OR ".join(wanted)).orderBy(PARTITION, "offset")
        return part.select("name", "headers", "payload")


class _TablePart:
    """Seconds in which a partition has records, with the first offset of each."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.seconds: list[int] = []
        self.firsts: list[int] = []
        self.end = 0

    def due(self, second: int) -> int:
        at = bisect_right(self.seconds, second)
        return self.firsts[at] if at < len(self.firsts) else self.end

    def second(self, offset: int) -> int:
        return self.seconds[max(bisect_right(self.firsts, offset) - 1, 0)]


def _index(rows: DataFrame) -> list[_TablePart]:
    """What is due when, in each partition."""
    seconds = rows.selectExpr(PARTITION, "unix_seconds(timestamp) AS second", "offset")
    found = seconds.groupBy(PARTITION, "second").agg({"offset": "min"})
    parts: dict[int, _TablePart] = {}
    for number, second, offset in found.orderBy(PARTITION, "second").collect():
        one = parts.setdefault(number, _TablePart(number))
        one.seconds.append(second)
        one.firsts.append(offset)
    for number, last in rows.groupBy(PARTITION).agg({"offset": "max"}).collect():
        parts[number].end = last + 1
    return list(parts.values())


def _bounds(rows: DataFrame) -> list[Row]:
    """First and last offset of each life and epoch; the partition is called `part`."""
    from pyspark.sql import functions as sf

    wanted = map(sf.expr, ("min(offset) AS first", "max(offset) AS last"))
    named = rows.selectExpr(
        "topic", f"{PARTITION} AS part", f"topic_id - {PARTITION} AS topic_id", "epoch", "offset"
    )
    return named.groupBy("topic", "part", *LIFE).agg(*wanted).collect()


def _of_part(number: int, topic_id: int, firsts: dict[tuple[int, int], int]) -> str:
    """In SQL: the records of a partition that belong to one life of its topic."""
    chosen = {epoch: first for (one, epoch), first in firsts.items() if one == topic_id}
    if not chosen:
        return "false"
    unknown = 0 if (0, 0) in firsts else topic_id
    return f"({PARTITION} = {number} AND {_newest(topic_id, unknown, chosen)})"


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
    life = f"coalesce(topic_id - {PARTITION}, {unknown}) = {topic_id}"
    return f"{life} AND ({' OR '.join(parts)})"


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


def resolve(log: Log, position: Position, what: str) -> Offsets:
    """The offsets that a position means in the log."""
    first, end = log.bounds()
    match position:
        case Earliest():
            return first
        case Latest():
            return end
        case AtTime(timestamp_us):
            return log.offset_at(timestamp_us)
        case AtOffset(offset):
            if len(first) > 1:
                raise InvalidPosition(
                    f"{what}: {quoted(log.name)} has {len(first)} partitions: give an offset for "
                    f'each, as in {{"0": {offset}, "1": 7}}, or a time'
                )
            return (_checked(log, 0, offset, what),)
        case AtOffsets(pairs):
            given = dict(pairs)
            if set(given) != set(range(len(first))):
                raise InvalidPosition(
                    f"{what}: {quoted(log.name)} has the partitions 0 to {len(first) - 1}: give an "
                    "offset for each of them, or a time"
                )
            return tuple(_checked(log, at, given[at], what) for at in range(len(first)))


def _checked(log: Log, partition: int, offset: int, what: str) -> int:
    firsts, ends = log.bounds()
    first, end = firsts[partition], ends[partition]
    if not first <= offset <= end:
        where = f"partition {partition} of " if len(firsts) > 1 else ""
        raise InvalidPosition(
            f"{what}: offset {offset} is not in {where}{quoted(log.name)}: use an offset from "
            f"{first} to {end}"
        )
    return offset


class Checkpoint:
    """The directory in which a replay remembers where it is."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / _STATE

    def load(self) -> Slice | None:
        try:
            return _read_slice(self._file.read_bytes())
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as broken:
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


def _read_slice(data: bytes) -> Slice:
    """Files of before have one number where a topic had one partition."""
    stored = msgspec.json.decode(data, type=dict[str, Any])
    for key in ("start", "end", "first", "last"):
        if isinstance(stored.get(key), int):
            stored[key] = (stored[key],)
    return msgspec.convert(stored, Slice)


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
