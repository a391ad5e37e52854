"""Topics as tables of PostgreSQL: the statements, and batches from and to their rows.

`logs` has a row per topic: what it is called and which offsets it holds. `topic_<id>` has a row
per record, and `marks` those of all topics. A round of commits is one statement, which stores all
of it or nothing and counts itself (`postgres.hold`).

Invariant: the rows of `topic_<id>` with offsets in [first_offset, end_offset) are there without a
hole; rows below are on their way out. `received_at` and `bytes_before` never fall.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any, Final

import msgspec

from penstock.core.delivery.run import joined_run
from penstock.log.format.batch import Batch
from penstock.log.format.builder import BatchBuilder
from penstock.log.format.marks import NO_RECORD
from penstock.log.interface import LogSettings
from penstock.model.limits import MIB
from penstock.model.record import Headers
from penstock.postgres.connection import Connection

READ_BYTES_MAX: Final = MIB  # of one read; a single record may be larger
READ_ROWS_MAX: Final = 8_192
TRIM_ROWS_MAX: Final = 20_000  # of one statement: others get their turn in between
ROW_BYTES: Final = 64  # what a row takes besides its payload, about
NAME_BYTES_MAX: Final = 63  # of a name in PostgreSQL, which cuts what is longer
NOTICE_BYTES_MAX: Final = 7_999  # of what a notification can say

VERSION: Final = 1  # of these tables

CREATE_TABLES: Final = (
    "create table if not exists log_version (version bigint not null primary key)",
    """
    create table if not exists logs (
        topic_id bigint not null primary key,
        tenant text not null,
        slug text not null,
        declared text not null,
        settings text not null,
        first_offset bigint not null default 0,
        first_bytes bigint not null default 0,
        end_offset bigint not null default 0,
        end_bytes bigint not null default 0,
        last_timestamp bigint not null default 0,
        epoch_starts bigint[] not null default '{0}',
        is_loose boolean not null default false
    )
    """,
    """
    create table if not exists marks (
        topic_id bigint not null references logs (topic_id) on delete cascade,
        at_offset bigint not null,
        mark_id bigint not null generated always as identity,
        is_beside boolean not null,
        kind smallint not null,
        key bytea not null,
        primary key (topic_id, at_offset, mark_id)
    )
    """,
    # Bytes that are no text are shown as PostgreSQL shows bytes.
    """
    create or replace function message_text(message bytea) returns text
    language plpgsql immutable strict as $$
    begin
        return convert_from(message, 'UTF8');
    exception when others then
        return '\\x' || encode(message, 'hex');
    end
    $$
    """,
)
CREATE_TOPIC: Final = """
    create table {table} (
        messageid bigint not null primary key,
        received_at bigint not null,
        bytes_before bigint not null,
        expires_at bigint,
        flags smallint not null,
        name text not null,
        publisher text,
        headers text,
        message bytea not null
    )
"""
_INSERT: Final = (
    "insert into {table} (messageid, received_at, bytes_before, expires_at, flags, name, publisher,"
    " headers, message) select {base} + n - 1, {received_at}, {bytes} + s + {row} * (n - 1),"
    " {expires_at}, {flags}, {name}, {publisher}, {headers}, substring({blob} from s + 1 for l)"
    " from counted, unnest({arrays}) with ordinality as u (s, l{columns}, n)"
)
_READ: Final = (
    "select messageid, received_at, coalesce(expires_at, 0), flags, name, coalesce(publisher, ''),"
    " headers, message from {table} where messageid >= $1 and messageid < $2 and bytes_before <="
    " (select bytes_before from {table} where messageid = $1) + $3 order by messageid"
)
_READ_MARKS: Final = (
    "select at_offset, is_beside, kind, key from marks"
    " where topic_id = $1 and at_offset >= $2 and at_offset < $3 order by mark_id"
)
# Offsets are dense and the column never falls, so the first row that reaches a value is found by
# halving, in one statement. A row that is gone lies before all that are kept.
_HALVE: Final = """
    with recursive halves (low, high) as (
        select $1::bigint, $2::bigint
        union all
        select case when coalesce(found.value, -1) < $3 then middle + 1 else low end,
            case when coalesce(found.value, -1) < $3 then high else middle end
        from (select low, high, (low + high) / 2 as middle from halves where low < high) as half
        left join lateral (select {column} as value from {table} where messageid = middle) as found
            on true
    )
    select low from halves where low = high
"""


def topic_table(topic_id: int) -> str:
    return f"topic_{topic_id}"


def channel(schema: str) -> str:
    """Where commits are announced: `<topic id>:<end offset> …`, or nothing when many moved."""
    return f"penstock_{schema}"


def views_schema(schema: str) -> str:
    """Where each topic has a view of its own name."""
    return "topics" if schema == "penstock" else f"{schema}_topics"


@dataclass(slots=True)
class LogState:
    """A row of `logs`."""

    topic_id: int
    first_offset: int
    first_bytes: int  # of the records before the first one kept
    end_offset: int
    end_bytes: int
    last_timestamp: int
    epoch_starts: list[int]
    is_loose: bool  # commits were confirmed before they were synced

    @property
    def epoch(self) -> int:
        return len(self.epoch_starts)


STATE_COLUMNS: Final = (
    "topic_id, first_offset, first_bytes, end_offset, end_bytes, last_timestamp, epoch_starts,"
    " is_loose"
)


def settings_text(settings: LogSettings) -> str:
    return msgspec.json.encode(settings).decode()


class Arguments:
    """The arguments of a statement that is put together in parts."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def add(self, value: object, kind: str = "bigint") -> str:
        """How the statement writes this argument."""
        self.values.append(value)
        return f"${len(self.values)}::{kind}"

    def add_ints(self, values: Iterable[int], kind: str = "bigint") -> str:
        # As text: the server reads it faster than the driver makes an array of anything else.
        return self.add("{" + ",".join(map(str, values)) + "}", f"{kind}[]")


@dataclass(slots=True)
class Move:
    """A batch on its way into a topic, and where that leaves the topic's row."""

    topic_id: int
    batch: Batch
    bytes_before: int  # of all records of the topic before the batch
    is_loose: bool  # as the row shall say

    @property
    def end_bytes(self) -> int:
        header = self.batch.header
        return self.bytes_before + header.blob_raw_length + ROW_BYTES * header.count


def round_statement(
    moves: Sequence[Move], schema: str, count_where: tuple[int, str, str, int]
) -> tuple[str, list[Any]]:
    """One statement that stores all batches, if the topics end where they begin and the hold is
    ours; it returns a row if it did. `count_where` are the arguments of the hold's counter."""
    arguments = Arguments()
    add = arguments.add
    ids = arguments.add_ints([move.topic_id for move in moves])
    bases = arguments.add_ints([move.batch.base_offset for move in moves])
    ends = arguments.add_ints([move.batch.end_offset for move in moves])
    sizes = arguments.add_ints([move.end_bytes for move in moves])
    stamps = arguments.add_ints([move.batch.header.last_timestamp for move in moves])
    loose = add("{" + ",".join(str(move.is_loose) for move in moves) + "}", "boolean[]")
    commits, part, token, known = count_where
    parts = [
        f"ready as (select 1 from logs join unnest({ids}, {bases}) as e (topic_id, end_offset)"
        f" using (topic_id, end_offset) having count(*) = {add(len(moves))})",
        f"counted as (update holders set commits = {add(commits)} where part = {add(part, 'text')}"
        f" and token = {add(token, 'text')} and commits = {add(known)}"
        " and exists (select from ready) returning 1)",
        "moved as (update logs set end_offset = m.e, end_bytes = m.b, last_timestamp = m.t,"
        f" is_loose = m.l from counted, unnest({ids}, {ends}, {sizes}, {stamps}, {loose})"
        " as m (i, e, b, t, l) where topic_id = m.i)",
    ]
    for move in moves:
        if move.batch.header.count:
            parts.append(f"rows_{move.topic_id} as ({_insert(move, arguments)})")
    marked = _insert_marks(moves, arguments)
    if marked:
        parts.append(f"marked as ({marked})")
    notice = " ".join(f"{move.topic_id}:{move.batch.end_offset}" for move in moves)
    if len(notice) > NOTICE_BYTES_MAX:
        notice = ""
    announce = f"pg_notify({add(channel(schema), 'text')}, {add(notice, 'text')})"
    return f"with {', '.join(parts)} select {announce} from counted", arguments.values


def _insert(move: Move, arguments: Arguments) -> str:
    """Each column is one value for all rows, or an array, as it is in the batch."""
    batch = move.batch
    plan = batch.plan
    count = batch.header.count
    if plan.lengths < 0:
        bounds = batch.u32(plan.starts, count + 1).tolist()
        starts, lengths = bounds[:-1], [b - a for a, b in pairwise(bounds)]
    else:
        starts = batch.u32(plan.starts, count).tolist()
        lengths = batch.u32(plan.lengths, count).tolist()
    arrays = [arguments.add_ints(starts, "int"), arguments.add_ints(lengths, "int")]
    columns: list[str] = []

    def column(name: str, values: list[Any], kind: str, *, is_constant: bool) -> str:
        if is_constant:
            return arguments.add(values[0], kind)
        is_text = kind == "text"
        arrays.append(
            arguments.add(values, "text[]") if is_text else arguments.add_ints(values, kind)
        )
        columns.append(f", {name}")
        return f"u.{name}"

    has_times = plan.times >= 0 or plan.wide_times >= 0
    texts = {
        "received_at": column("t", batch.timestamps(0, count), "bigint", is_constant=not has_times),
        "flags": column("f", list(batch.flags(0, count)), "smallint", is_constant=plan.flags < 0),
        "name": column("m", batch.names(0, count), "text", is_constant=plan.names < 0),
        "expires_at": "null",
        "headers": "null",
        "publisher": "null",
    }
    publishers = batch.publishers(0, count)
    if plan.publishers >= 0 or publishers[0]:
        text = column("p", publishers, "text", is_constant=plan.publishers < 0)
        texts["publisher"] = f"nullif({text}, '')"
    if plan.expires >= 0:
        expiries = [at or 0 for at in batch.expiries(0, count)]
        texts["expires_at"] = f"nullif({column('x', expiries, 'bigint', is_constant=False)}, 0)"
    if plan.header_starts >= 0:
        headers = [_headers_text(one) for one in batch.record_headers(0, count)]
        texts["headers"] = column("h", headers, "text", is_constant=False)
    return _INSERT.format(
        table=topic_table(move.topic_id),
        base=arguments.add(batch.base_offset),
        bytes=arguments.add(move.bytes_before),
        row=ROW_BYTES,
        blob=arguments.add(bytes(batch.blob), "bytea"),
        arrays=", ".join(arrays),
        columns="".join(columns),
        **texts,
    )


def _insert_marks(moves: Sequence[Move], arguments: Arguments) -> str:
    """All marks of the round, in the order in which they were made; empty if there are none."""
    found = [(move, mark) for move in moves for mark in move.batch.marks()]
    if not found:
        return ""
    ids = arguments.add_ints([move.topic_id for move, _ in found])
    offsets = arguments.add_ints(
        [
            move.batch.base_offset + (0 if mark.index == NO_RECORD else mark.index)
            for move, mark in found
        ]
    )
    beside = "{" + ",".join(str(mark.index != NO_RECORD) for _, mark in found) + "}"
    kinds = arguments.add_ints([mark.kind for _, mark in found], "smallint")
    keys = arguments.add([mark.key for _, mark in found], "bytea[]")
    return (
        "insert into marks (topic_id, at_offset, is_beside, kind, key) select i, o, b, k, y"
        f" from counted, unnest({ids}, {offsets}, {arguments.add(beside, 'boolean[]')}, {kinds},"
        f" {keys}) with ordinality as u (i, o, b, k, y, n) order by n"
    )


def _headers_text(headers: Headers) -> str | None:
    return msgspec.json.encode(headers).decode() if headers else None


def read_state(connection: Connection, topic_id: int) -> LogState | None:
    """The row of a topic, or None."""
    rows = connection.execute(
        f"select {STATE_COLUMNS} from logs where topic_id = $1", (topic_id,)
    ).fetchall()
    return LogState(*rows[0]) if rows else None


def is_whole(connection: Connection, state: LogState) -> bool:
    """Whether the table of a topic is there and has its first and its last row."""
    table = topic_table(state.topic_id)
    ((found,),) = connection.execute("select to_regclass($1) is not null", (table,)).fetchall()
    if not found or state.first_offset == state.end_offset:
        return bool(found)
    ((count,),) = connection.execute(
        f"select count(*) from {table} where messageid = $1 or messageid = $2",
        (state.first_offset, state.end_offset - 1),
    ).fetchall()
    return bool(count == min(2, state.end_offset - state.first_offset))


def read_batch(
    connection: Connection, topic_id: int, epoch: int, offset: int, end: int
) -> Batch | None:
    """Records from `offset` on without a hole, about READ_BYTES_MAX, with their marks.

    None if the record at `offset` is gone.
    """
    cursor = connection.cursor(binary=True)
    until = min(end, offset + READ_ROWS_MAX)
    text = _READ.format(table=topic_table(topic_id))
    rows = cursor.execute(text, (offset, until, READ_BYTES_MAX)).fetchall()
    if not rows:
        return None
    if rows[-1][0] - offset + 1 != len(rows):
        rows = [row for at, row in enumerate(rows, offset) if row[0] == at]
    return build_batch(connection, topic_id, epoch, offset, rows)


def build_batch(
    connection: Connection, topic_id: int, epoch: int, offset: int, rows: list[tuple[Any, ...]]
) -> Batch:
    """A batch of these rows, and of the marks at them; without rows, of marks at or past it."""
    builder = BatchBuilder(0)
    for (stamp, expires, flags, name, publisher, headers), group in groupby(
        rows, itemgetter(slice(1, 7))
    ):
        run = joined_run(name, [row[7] for row in group], flags)
        if headers:
            run.headers = msgspec.json.decode(headers, type=Headers)
        run.publisher = publisher
        run.expires_at = expires
        builder.add(run, stamp)
    until = offset + len(rows) if rows else 1 << 62
    cursor = connection.cursor(binary=True)
    for at, is_beside, kind, key in cursor.execute(_READ_MARKS, (topic_id, offset, until)):
        builder.add_mark(kind, key, at - offset if is_beside else NO_RECORD)
    return builder.encode(epoch, offset, 0)


def find_first(
    connection: Connection, topic_id: int, column: str, value: int, first: int, end: int
) -> int:
    """The first offset in [first, end) whose `column` is at least `value`; `end` if none is."""
    text = _HALVE.format(table=topic_table(topic_id), column=column)
    ((found,),) = connection.execute(text, (first, end, value)).fetchall()
    return int(found)


def next_row(connection: Connection, topic_id: int, offset: int, end: int) -> int:
    """The first stored record at or past `offset`; `end` if no record follows."""
    text = f"select min(messageid) from {topic_table(topic_id)} where messageid >= $1"
    ((found,),) = connection.execute(text, (offset,)).fetchall()
    return end if found is None else min(int(found), end)


def move_first(connection: Connection, topic_id: int, first: int, end_bytes: int) -> int:
    """Let a topic begin there; the bytes of all records before it."""
    rows = connection.execute(
        f"select bytes_before from {topic_table(topic_id)} where messageid = $1", (first,)
    ).fetchall()
    first_bytes = int(rows[0][0]) if rows else end_bytes  # nothing is left
    connection.execute(
        "update logs set first_offset = $2, first_bytes = $3 where topic_id = $1",
        (topic_id, first, first_bytes),
    )
    return first_bytes


def delete_before(connection: Connection, topic_id: int, first: int) -> bool:
    """Remove some of the rows before `first`, and their marks; True while there are more."""
    table = topic_table(topic_id)
    ((lowest,),) = connection.execute(f"select min(messageid) from {table}").fetchall()
    if lowest is None or lowest >= first:
        connection.execute(
            "delete from marks where topic_id = $1 and at_offset < $2", (topic_id, first)
        )
        return False
    until = min(first, lowest + TRIM_ROWS_MAX)
    connection.execute(f"delete from {table} where messageid < $1", (until,))
    return True


def set_loose(connection: Connection, topic_id: int, *, is_loose: bool) -> None:
    """Note whether visible records may be lost with the server."""
    connection.execute(f"update logs set is_loose = {is_loose} where topic_id = $1", (topic_id,))
