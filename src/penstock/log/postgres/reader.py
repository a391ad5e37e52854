"""Reading topics that are tables from outside the broker: other processes, Spark tasks.

Synchronous, takes no lock, changes nothing, and never goes past the end that the broker committed.
Any number of readers wait for new records without asking again and again: every commit is announced
(NOTIFY) to those who listen.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

import psycopg
from psycopg import sql

from penstock.log.format.batch import Batch
from penstock.log.interface import Bounds
from penstock.log.postgres.tables import LogState, channel, find_first, read_batch, read_state
from penstock.model.errors import CorruptError, Gap, TopicNotFound
from penstock.model.record import DEFAULT_TENANT, TenantId
from penstock.postgres.connection import Connection, connect, is_lost, lost

T = TypeVar("T")
P = ParamSpec("P")


class PostgresReader:
    """Implements `RecordReader` on a topic's table; used by one thread."""

    def __init__(
        self, url: str, schema: str, topic: str, tenant: TenantId = DEFAULT_TENANT
    ) -> None:
        """Find the tenant's topic by its name, in whatever letter case; TopicNotFound."""
        self._url = url
        self._schema = schema
        self._connection: Connection | None = None
        found = {declared.casefold(): topic_id for topic_id, declared in self._ask(_find, tenant)}
        if topic.casefold() not in found:
            self.close()
            raise TopicNotFound(
                f"schema {schema!r} has no topic {topic!r}: its table logs lists all topics"
            )
        self.topic_id: int = found[topic.casefold()]

    def bounds(self) -> Bounds:
        state = self._state()
        return Bounds(state.first_offset, state.end_offset)

    def read(self, offset: int) -> list[Batch]:
        """The records from `offset` on, about 1 MiB; empty at the end."""
        state = self._state()
        if offset >= state.end_offset:
            return []
        if offset >= state.first_offset:
            batch = self._ask(read_batch, self.topic_id, state.epoch, offset, state.end_offset)
            if batch is not None:
                return [batch]
            state = self._state()  # trimmed meanwhile?
        if offset >= state.first_offset:
            raise CorruptError(f"topic {self.topic_id} lacks row {offset}: somebody deleted it")
        raise Gap(f"offset {offset} is no longer kept: the first record is {state.first_offset}")

    def offset_at(self, timestamp: int) -> int:
        """The first offset stamped at or after `timestamp` (µs); the end if all are older."""
        first, end = self.bounds()
        return self._ask(find_first, self.topic_id, "received_at", timestamp, first=first, end=end)

    def wait_past(self, offset: int, wait_s_max: float) -> bool:
        """Suspends until the record at `offset` is visible; False if that took too long."""
        until_s = time.monotonic() + wait_s_max
        while True:
            self._ask(_listen, self._schema)  # then look: what is committed in between is heard of
            if self._state().end_offset > offset:
                return True
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return False
            self._ask(_hear, self.topic_id, left_s)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _state(self) -> LogState:
        state = self._ask(read_state, self.topic_id)
        if state is None:
            raise TopicNotFound(f"topic {self.topic_id} of schema {self._schema!r} was deleted")
        return state

    def _ask(
        self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Ask on the connection, or once more on a new one if it was lost."""
        for is_last in (False, True):
            if self._connection is None or is_lost(self._connection):
                self._connection = connect(self._url, self._schema)
            try:
                return work(self._connection, *args, **kwargs)
            except psycopg.Error as error:
                if not is_lost(self._connection):
                    raise
                if is_last:
                    raise lost(self._url, error) from error
        raise AssertionError("unreachable")


def _find(connection: Connection, tenant: TenantId) -> list[tuple[int, str]]:
    return connection.execute(
        "select topic_id, declared from logs where tenant = $1", (tenant,)
    ).fetchall()


def _listen(connection: Connection, schema: str) -> None:
    text = sql.SQL("listen {}").format(sql.Identifier(channel(schema)))
    connection.execute(text.as_bytes(connection))


def _hear(connection: Connection, topic_id: int, wait_s_max: float) -> None:
    """Until a commit to the topic, or to so many that they are not named, is announced."""
    for notice in connection.notifies(timeout=wait_s_max):
        if not notice.payload or f" {topic_id}:" in f" {notice.payload}":
            return
