"""Appending to a log and waiting for it, as publishers do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from penstock.core.delivery.run import Run, joined_run
from penstock.log.format.batch import Batch
from penstock.log.format.builder import BatchBuilder
from penstock.log.format.marks import Mark, decode_headers
from penstock.log.interface import Log
from penstock.log.waiting import FutureWaiter, append_durably


def append(log: Log, run: Run, marks: Sequence[Mark] = ()) -> asyncio.Future[int]:
    """Resolves with the first record's offset once all are durable."""
    return append_durably(log, [run], marks)


def append_batch(log: Log, batch: Batch) -> asyncio.Future[int]:
    """The same for a batch that was encoded elsewhere."""
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    log.append_batch(batch, FutureWaiter(future))
    return future


class Told:
    """Implements the log's Waiter: calls back with why it was refused, or None."""

    has_given_up = False

    def __init__(self, on_done: Callable[[Exception | None], None]) -> None:
        self._on_done = on_done

    def committed(self, offset: int) -> None:
        self._on_done(None)

    def refused(self, error: Exception) -> None:
        self._on_done(error)


def add(
    builder: BatchBuilder,
    name: str,
    payloads: list[bytes],
    timestamp: int,
    flags: int,
    publisher: str = "",
    expires_at: int = 0,
    headers: bytes = b"",
) -> int:
    """Add payloads side by side to a batch; `headers` as they are stored."""
    return _add(
        builder, joined_run(name, payloads, flags), timestamp, publisher, expires_at, headers
    )


def add_gapped(
    builder: BatchBuilder,
    name: str,
    chunk: bytes,
    starts: list[int],
    lengths: list[int],
    timestamp: int,
    flags: int,
    publisher: str = "",
    expires_at: int = 0,
    headers: bytes = b"",
) -> int:
    """Add payloads that lie inside `chunk` with other bytes between them."""
    run = Run(name, chunk, starts, lengths, flags)
    return _add(builder, run, timestamp, publisher, expires_at, headers)


def _add(
    builder: BatchBuilder, run: Run, timestamp: int, publisher: str, expires_at: int, headers: bytes
) -> int:
    run.publisher = publisher
    run.expires_at = expires_at
    run.headers = decode_headers(headers)
    return builder.add(run, timestamp)
