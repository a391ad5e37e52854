"""Broker: the same broker for programs without asyncio. Usable from several threads.

The engine runs on an event loop in a thread of its own; every call hands over to it and waits.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from penstock.app.aio import DEFAULT_PATH, STREAM_TAKE_MAX, AsyncBroker, Attach, PositionLike
from penstock.core.messages import HeadersLike
from penstock.model.errors import UnavailableError
from penstock.model.groups import GroupInfo
from penstock.model.record import ConsumerInfo, Record, TopicInfo
from penstock.model.runs import PipelineRun

T = TypeVar("T")

CLOSED: Final = "the broker is closed: open it again to go on"


class Broker:
    """Publish to and read from durable topics in a directory, with no server."""

    def __init__(self, path: str | Path = DEFAULT_PATH, **settings: Any) -> None:
        self._start(AsyncBroker(path, **settings))

    @classmethod
    def memory(cls, **settings: Any) -> Self:
        """A broker that keeps nothing once it is closed."""
        broker = cls.__new__(cls)
        broker._start(AsyncBroker.memory(**settings))
        return broker

    def _start(self, broker: AsyncBroker) -> None:
        self._broker = broker
        self._is_closed = False
        self._closing = threading.Lock()
        self._handing_over = threading.RLock()  # held while a call is given to the loop
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="penstock-broker", daemon=True)
        self._thread.start()
        try:
            self._call(broker.open())
        except BaseException:
            self._stop()
            raise

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            # Whoever came too late to be served hears so instead of waiting for ever.
            late = asyncio.all_tasks(self._loop)
            for task in late:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*late, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()

    def _stop(self) -> None:
        with self._handing_over:
            self._is_closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        with self._handing_over:
            if self._is_closed:
                work.close()
                raise UnavailableError(CLOSED)
            answer = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return answer.result()
        except CancelledError:
            raise UnavailableError(CLOSED) from None
        except KeyboardInterrupt:
            answer.cancel()  # nobody waits for it any more
            raise

    def close(self) -> None:
        """Flush positions and release the directory. Safe to call twice."""
        self._close(is_clean=True)

    def _close(self, *, is_clean: bool) -> None:
        with self._closing:
            if not self._is_closed:
                try:
                    self._call(self._broker.shut(is_clean=is_clean))
                finally:
                    self._stop()

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

    def create_topic(self, topic: str, *, exist_ok: bool = False, **settings: Any) -> None:
        """Declare a topic: retention_age, retention_bytes, durability; else the defaults."""
        self._call(self._broker.create_topic(topic, exist_ok=exist_ok, **settings))

    def alter_topic(self, topic: str, **settings: Any) -> None:
        """Change settings of a topic; those not named stay as they are."""
        self._call(self._broker.alter_topic(topic, **settings))

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with all its records and consumers."""
        self._call(self._broker.delete_topic(topic))

    def topics(self) -> list[TopicInfo]:
        return self._call(self._broker.topics())

    def bind(self, filter: str, topic: str) -> None:
        """Names that match `filter` are placed in `topic` from now on."""
        self._call(self._broker.bind(filter, topic))

    def unbind(self, filter: str) -> None:
        self._call(self._broker.unbind(filter))

    def publish(
        self, message: Any, topic: str, *, name: str | None = None, headers: HeadersLike = None
    ) -> int:
        """Store one message; its offset, once it is durable."""
        return self._call(self._broker.publish(message, topic, name=name, headers=headers))

    def publish_many(
        self,
        messages: Iterable[Any],
        topic: str,
        *,
        name: str | None = None,
        headers: HeadersLike = None,
    ) -> range:
        """Store messages in order, next to each other; their offsets, once all are durable.

        A message that cannot be stored refuses them all. When the disk fails half-way, some of
        several megabytes may be stored although UnavailableError is raised.
        """
        return self._call(
            self._broker.publish_many(list(messages), topic, name=name, headers=headers)
        )

    def subscribe(self, consumer: str, topic: str, *, start: PositionLike = "earliest") -> None:
        """Give a consumer a durable position in a topic."""
        self._call(self._broker.subscribe(consumer, topic, start=start))

    def unsubscribe(self, consumer: str, topic: str) -> None:
        self._call(self._broker.unsubscribe(consumer, topic))

    def consume(
        self,
        consumer: str,
        topic: str,
        *,
        limit: int | None = None,
        where: str | None = None,
        commit: bool = True,
        on_gap: str = "skip",
    ) -> list[Record]:
        """What the consumer has not seen yet, up to the end at this call."""
        return self._call(
            self._broker.consume(
                consumer, topic, limit=limit, where=where, commit=commit, on_gap=on_gap
            )
        )

    def commit(self, consumer: str, topic: str, offset: int | None = None) -> None:
        """Save the position: all that was handed out, or all before `offset`, is handled."""
        self._call(self._broker.commit(consumer, topic, offset))

    def seek(self, consumer: str, topic: str, position: PositionLike) -> int:
        """Go on reading at `position`; the offset that is."""
        return self._call(self._broker.seek(consumer, topic, position))

    def consumers(self, topic: str) -> list[ConsumerInfo]:
        """The consumers of a topic, how far they are and what they have waiting."""
        return self._call(self._broker.consumers(topic))

    def groups(self, topic: str) -> list[GroupInfo]:
        """The groups of a topic: how far they are, and what is not done."""
        return self._call(self._broker.groups(topic))

    def remove_group(self, group: str, topic: str) -> None:
        """Forget a group and its position; what was given out belongs to nobody."""
        self._call(self._broker.remove_group(group, topic))

    def read(
        self,
        topic: str,
        *,
        start: PositionLike = "earliest",
        limit: int | None = None,
        where: str | None = None,
        names: str | None = None,
    ) -> list[Record]:
        """Records from `start` up to the end at this call; no position is kept."""
        return self._call(
            self._broker.read(topic, start=start, limit=limit, where=where, names=names)
        )

    def size(self, topic: str, consumer: str | None = None) -> int:
        """Records kept in the topic, or those the consumer has not been given yet."""
        return self._call(self._broker.size(topic, consumer))

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
                with self._handing_over:
                    if not self._is_closed:
                        self._loop.call_soon_threadsafe(stream.close)
        except UnavailableError:
            if not self._is_closed:
                raise
