"""Broker: the same broker for programs without asyncio. Usable from several threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from penstock.app.aio import DEFAULT_PATH, STREAM_TAKE_MAX, AsyncBroker, Attach
from penstock.model.blocking import Blocking, LoopThread
from penstock.model.errors import UnavailableError
from penstock.model.record import DEFAULT_TENANT, PositionLike, Record
from penstock.model.runs import PipelineRun

CLOSED: Final = "the broker is closed: open it again"


class Broker(Blocking):
    """Publish to and read from durable topics in a directory, with no server."""

    def __init__(
        self, path: str | Path = DEFAULT_PATH, *, tenant: str = DEFAULT_TENANT, **settings: Any
    ) -> None:
        self._start(AsyncBroker(path, tenant=tenant, **settings))

    @classmethod
    def memory(cls, **settings: Any) -> Self:
        """A broker that keeps nothing once it is closed."""
        broker = cls.__new__(cls)
        broker._start(AsyncBroker.memory(**settings))
        return broker

    def _start(self, broker: AsyncBroker) -> None:
        self._broker = self._awaitable = broker
        self._closing = threading.Lock()
        self._thread = LoopThread("penstock-broker", CLOSED)
        try:
            self._call(broker.open())
        except BaseException:
            self._thread.stop()
            raise

    def close(self) -> None:
        """Flush positions and release the directory. Safe to call twice."""
        self._close(is_clean=True)

    def _close(self, *, is_clean: bool) -> None:
        with self._closing:
            if not self._thread.is_closed:
                try:
                    self._call(self._broker.shut(is_clean=is_clean))
                finally:
                    self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close(is_clean=kind is None)

    @property
    def notes(self) -> Sequence[str]:
        """What recovery found when the directory was opened; empty after a clean close."""
        return self._broker.notes

    def pipeline_runs(self) -> list[PipelineRun]:
        """The runs of pipeline jobs on this directory, oldest first."""
        return self._call(self._broker.pipeline_runs())

    def stream(
        self,
        topic: str,
        *,
        start: PositionLike = "latest",
        where: str | None = None,
        names: str | None = None,
        on_gap: str = "skip",
    ) -> Iterator[Record]:
        """Records as they become visible, from `start` on, until the broker closes.

        `latest` means the end at this call, not at the first record asked for.
        """
        attach = self._broker.plan_stream(
            topic, start=start, where=where, names=names, on_gap=on_gap
        )
        return self._iterate(attach)

    def _iterate(self, attach: Attach) -> Iterator[Record]:
        try:
            stream = self._call(attach())
            try:
                while records := self._call(stream.take(STREAM_TAKE_MAX)):
                    yield from records
            finally:
                # Not waited for: the garbage collector may run this on the loop's own thread.
                self._thread.call_later(stream.close)
        except UnavailableError:
            if not self._thread.is_closed:
                raise
