"""The threads that talk to PostgreSQL for the logs: one that writes, a few that read.

The writer has the hold of the schema's logs. It runs rounds and changes one after another, each
a transaction of its own. When a connection ends while one is under way, the writer finds out
whether it was stored before anybody is told, and stores a round that was not once more. Until
the server can be asked, those of that round wait and everybody else is refused.

Reading is repeated on a new connection, so a lost one is noticed only while the server is gone.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar

import psycopg

from penstock.log.postgres.tables import Move, round_statement
from penstock.model.clock import Clock, SystemClock
from penstock.model.errors import PenstockError, UnavailableError
from penstock.model.limits import MIB
from penstock.postgres.connection import (
    Backoff,
    Connection,
    connect,
    is_lost,
    lost,
    one_line,
    shown_url,
    verdict,
)
from penstock.postgres.hold import Hold

T = TypeVar("T")
P = ParamSpec("P")

PART: Final = "log"
READ_THREADS: Final = 2
STATEMENT_BYTES_MAX: Final = 32 * MIB  # of payloads in one transaction; a larger round has several
LOCK_WAIT: Final = "set local lock_timeout = '2s'"  # a forgotten query must not stop all writing


class PostgresJob:
    """One batch on its way into one topic."""

    def __init__(self, move: Move, *, needs_sync: bool) -> None:
        self.move = move
        self.needs_sync = needs_sync
        self.error: PenstockError | None = None
        self.sync_s = 0.0  # how long its transaction took

    @property
    def is_quick(self) -> bool:
        return False

    @property
    def is_short(self) -> bool:
        return False

    def run(self) -> None:
        raise AssertionError("a round runs on the writer's thread")


class Listener(Protocol):
    """Who hears how the writer fares; called on the event loop."""

    def on_trouble(self, error: UnavailableError) -> None:
        """The server is gone while a round is in doubt: what waits is refused."""
        ...

    def on_rewind(self, ends: dict[int, int]) -> None:
        """Topics end there now: records that were confirmed may be gone."""
        ...


class PostgresWork:
    """Made by `start`; used from the event loop that started it."""

    def __init__(
        self,
        url: str,
        schema: str,
        giving_up: threading.Event | None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.url = url
        self.schema = schema
        self.trouble = ""  # why appends are refused while a round is in doubt
        self._giving_up = giving_up
        self._clock = SystemClock()  # of real waits, whatever time the records are stamped with
        self._loop = loop
        self._listener: Listener | None = None
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._hold: Hold
        self._loose_on: Connection | None = None  # where synchronous_commit is off
        self._local = threading.local()
        self._reading: list[_Reader] = []
        self._readers = ThreadPoolExecutor(READ_THREADS, "penstock-read")
        self._writer = threading.Thread(target=self._write, name="penstock-writer", daemon=True)

    @classmethod
    async def start(cls, url: str, schema: str, giving_up: threading.Event | None) -> PostgresWork:
        """Take hold of the schema's logs; UnavailableError names who has them."""
        work = cls(url, schema, giving_up, asyncio.get_running_loop())
        work._writer.start()
        try:
            await work._do(work._open)
        except BaseException:
            await work.close()
            raise
        return work

    def listen(self, listener: Listener) -> None:
        self._listener = listener

    def commit(self, jobs: list[PostgresJob], done: Callable[[], None]) -> None:
        def work() -> None:
            self._run_round(jobs)
            self._tell(done)

        self._tasks.put(work)

    def change(
        self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[T]:
        """Run work in a transaction of its own under the hold; it may run twice."""
        return self._do(lambda: self._change(lambda connection: work(connection, *args, **kwargs)))

    def read(
        self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[T]:
        """Run work that may be repeated, on a connection for reading."""
        return self._loop.run_in_executor(
            self._readers, lambda: self._read(lambda connection: work(connection, *args, **kwargs))
        )

    async def close(self) -> None:
        """Finish the queued work, then release the connections."""
        self._tasks.put(None)
        await self._loop.run_in_executor(None, self._writer.join)
        self._readers.shutdown()
        for reader in self._reading:
            reader.close()

    def _do(self, work: Callable[[], T]) -> Awaitable[T]:
        """Run something on the writer's thread, in its turn."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

        self._tasks.put(run)
        return asyncio.wrap_future(future, loop=self._loop)

    def _tell(self, callback: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop was closed: nobody waits any more
            self._loop.call_soon_threadsafe(callback)

    # On the writer's thread.

    def _write(self) -> None:
        while (work := self._tasks.get()) is not None:
            work()
        if hasattr(self, "_hold"):
            self._hold.close()

    def _open(self) -> None:
        self._hold = Hold(self.url, self.schema, PART, self._giving_up)

    def _run_round(self, jobs: list[PostgresJob]) -> None:
        for part in _parts(jobs):
            started_s = self._clock.monotonic_s()
            try:
                self._store(part)
            except PenstockError as refused:
                for job in part:
                    job.error = refused
            sync_s = self._clock.monotonic_s() - started_s
            for job in part:
                job.sync_s = sync_s

    def _store(self, jobs: list[PostgresJob]) -> None:
        """Store the batches of all jobs in one transaction, or raise and store nothing."""
        is_stored = self._once_more_if_lost(lambda connection: self._insert(connection, jobs))
        if not is_stored:
            self._look_for_rewind()
            raise UnavailableError(
                f"the tables in schema {self.schema!r} of {shown_url(self.url)} were changed by "
                "somebody else: nothing was stored, and topics that lost records reject "
                "publishes until the broker is restarted"
            )

    def _insert(self, connection: Connection, jobs: list[PostgresJob]) -> bool:
        hold = self._hold
        self._set_sync(connection, any(job.needs_sync for job in jobs))
        counter = (hold.commits + 1, hold.part, hold.token, hold.commits)
        text, arguments = round_statement([job.move for job in jobs], self.schema, counter)
        is_stored = connection.execute(text, arguments).rowcount == 1
        if is_stored:
            hold.counted()
        return is_stored

    def _set_sync(self, connection: Connection, needs_sync: bool) -> None:
        if needs_sync != (self._loose_on is not connection):
            connection.execute(f"set synchronous_commit to {'on' if needs_sync else 'off'}")
            self._loose_on = None if needs_sync else connection

    def _change(self, work: Callable[[Connection], T]) -> T:
        results: list[T] = []

        def attempt(connection: Connection) -> bool:
            self._set_sync(connection, True)
            with connection.transaction():
                connection.execute(LOCK_WAIT)
                results[:] = [work(connection)]
                self._hold.count(connection)
            self._hold.counted()
            return True

        self._once_more_if_lost(attempt)
        return results[0]

    def _once_more_if_lost(self, attempt: Callable[[Connection], bool]) -> bool:
        """Try; if the connection ends meanwhile and nothing was stored, try once more."""
        for is_last in (False, True):
            connection = self._connection()
            try:
                return attempt(connection)
            except psycopg.Error as error:
                if not is_lost(connection):
                    raise self._judged(error) from error
                if self._was_stored():
                    return True
                if is_last:
                    raise lost(self.url, error) from error
        raise AssertionError("unreachable")

    def _connection(self) -> Connection:
        connection = self._hold.connection()
        if self._hold.has_gone_back:
            self._look_for_rewind()
        return connection

    def _was_stored(self) -> bool:
        """Ask the server; while it is gone, refuse everybody else."""
        try:
            return self._hold.was_stored(self._on_gone)
        finally:
            self.trouble = ""

    def _on_gone(self, error: UnavailableError) -> None:
        if not self.trouble:
            self.trouble = str(error)
            self._notify(lambda listener: listener.on_trouble(error))

    def _look_for_rewind(self) -> None:
        """Tell where topics end now, so that those which lost records are fenced."""
        self._hold.has_gone_back = False
        rows = self._hold.connection().execute("select topic_id, end_offset from logs").fetchall()
        ends = {int(topic_id): int(end) for topic_id, end in rows}
        self._notify(lambda listener: listener.on_rewind(ends))

    def _notify(self, say: Callable[[Listener], None]) -> None:
        listener = self._listener
        if listener is not None:
            self._tell(lambda: say(listener))

    def _judged(self, error: psycopg.Error) -> PenstockError:
        return verdict(self.url, error) or UnavailableError(
            f"PostgreSQL at {shown_url(self.url)} rejected the change ({one_line(error)}): "
            "nothing was changed"
        )

    # On a reader's thread.

    def _read(self, work: Callable[[Connection], T]) -> T:
        reader: _Reader | None = getattr(self._local, "reader", None)
        if reader is None:
            reader = self._local.reader = _Reader(self.url, self.schema, self._clock)
            self._reading.append(reader)
        for is_last in (False, True):
            connection = reader.connection()
            try:
                return work(connection)
            except psycopg.Error as error:
                if not is_lost(connection):
                    raise self._judged(error) from error
                if is_last:
                    raise lost(self.url, error) from error
        raise AssertionError("unreachable")


class _Reader:
    """A connection for reading, made when it is first needed and again when it was lost."""

    def __init__(self, url: str, schema: str, clock: Clock) -> None:
        self._url = url
        self._schema = schema
        self._backoff = Backoff(clock)
        self._connection: Connection | None = None

    def connection(self) -> Connection:
        if self._connection is None or is_lost(self._connection):
            self._backoff.check()
            try:
                self._connection = connect(self._url, self._schema)
            except UnavailableError as failed:
                raise self._backoff.failed(failed) from failed
            self._backoff.worked()
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def _parts(jobs: list[PostgresJob]) -> list[list[PostgresJob]]:
    """The jobs in their order, in parts that a transaction can take."""
    parts: list[list[PostgresJob]] = [[]]
    size = 0
    for job in jobs:
        size += job.move.batch.header.blob_raw_length
        if size > STATEMENT_BYTES_MAX and parts[-1]:
            parts.append([])
            size = job.move.batch.header.blob_raw_length
        parts[-1].append(job)
    return parts
