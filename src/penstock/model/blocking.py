"""A broker for programs without asyncio: the names that Broker and Client have in common.

What does the work runs on an event loop in a thread of its own; every call hands over to it and
waits. Usable from several threads: a call that comes after the end is refused, none waits for ever.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import CancelledError
from typing import Any, Protocol, TypeVar

from penstock.model.errors import UnavailableError
from penstock.model.groups import GroupInfo
from penstock.model.messages import check_messages
from penstock.model.record import (
    BindingInfo,
    ConsumerInfo,
    Erased,
    HeadersLike,
    Offsets,
    Place,
    PositionLike,
    Record,
    TopicInfo,
)

T = TypeVar("T")


class LoopThread:
    """An event loop in a thread. `call` runs something on it and waits for the result."""

    def __init__(self, name: str, closed: str) -> None:
        self._closed = closed  # what late callers are told
        self.is_closed = False
        self._handing_over = threading.RLock()  # held while a call is given to the loop
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

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

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        with self._handing_over:
            if self.is_closed:
                work.close()
                raise UnavailableError(self._closed)
            answer = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return answer.result()
        except CancelledError:
            raise UnavailableError(self._closed) from None
        except KeyboardInterrupt:
            answer.cancel()  # nobody waits for it any more
            raise

    def call_later(self, work: Callable[[], object]) -> None:
        """Have this called on the loop without waiting for it; not at all after the end."""
        with self._handing_over:
            if not self.is_closed:
                self._loop.call_soon_threadsafe(work)

    def stop(self) -> None:
        with self._handing_over:
            self.is_closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


class Awaitable(Protocol):
    """What AsyncBroker and AsyncClient both can."""

    async def create_topic(self, topic: str, *, exist_ok: bool = ..., **settings: Any) -> None: ...
    async def alter_topic(self, topic: str, **settings: Any) -> None: ...
    async def delete_topic(self, topic: str) -> None: ...
    async def erase(
        self, names: str, topic: str, *, before: PositionLike | None = ..., dry_run: bool = ...
    ) -> Erased: ...
    async def topics(self) -> list[TopicInfo]: ...
    async def topic(self, topic: str) -> TopicInfo: ...
    async def bind(self, filter: str, topic: str) -> None: ...
    async def unbind(self, filter: str) -> None: ...
    async def bindings(self) -> list[BindingInfo]: ...
    async def publish(
        self,
        message: Any,
        topic: str,
        *,
        name: str | None = ...,
        headers: HeadersLike = ...,
        retain: bool = ...,
    ) -> Place: ...
    async def publish_many(
        self,
        messages: list[Any],
        topic: str,
        *,
        name: str | None = ...,
        headers: HeadersLike = ...,
        retain: bool = ...,
    ) -> range | list[tuple[int, int]]: ...
    async def subscribe(self, consumer: str, topic: str, *, start: PositionLike = ...) -> None: ...
    async def unsubscribe(self, consumer: str, topic: str) -> None: ...
    async def consume(
        self,
        consumer: str,
        topic: str,
        *,
        limit: int | None = ...,
        where: str | None = ...,
        commit: bool = ...,
        on_gap: str = ...,
    ) -> list[Record]: ...
    async def commit(self, consumer: str, topic: str, offset: Offsets | None = ...) -> None: ...
    async def seek(self, consumer: str, topic: str, position: PositionLike) -> Offsets: ...
    async def consumers(self, topic: str) -> list[ConsumerInfo]: ...
    async def groups(self, topic: str) -> list[GroupInfo]: ...
    async def create_group(
        self,
        group: str,
        topic: str,
        *,
        start: PositionLike = ...,
        lease_s: float | None = ...,
        deliveries_max: int | None = ...,
    ) -> None: ...
    async def alter_group(
        self,
        group: str,
        topic: str,
        *,
        lease_s: float | None = ...,
        deliveries_max: int | None = ...,
    ) -> None: ...
    async def redrive(
        self,
        group: str,
        topic: str,
        *,
        limit: int | None = ...,
        where: str | None = ...,
        dry_run: bool = ...,
    ) -> int: ...
    async def remove_group(self, group: str, topic: str) -> None: ...
    async def read(
        self,
        topic: str,
        *,
        start: PositionLike = ...,
        limit: int | None = ...,
        where: str | None = ...,
        names: str | None = ...,
        partition: int | None = ...,
    ) -> list[Record]: ...
    async def size(self, topic: str, consumer: str | None = ...) -> int: ...


class Blocking:
    """Topics, publishing and consuming, each call waiting until it is done."""

    _thread: LoopThread
    _awaitable: Awaitable

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return self._thread.call(work)

    # Topics

    def create_topic(self, topic: str, *, exist_ok: bool = False, **settings: Any) -> None:
        """Declare a topic: retention_age, retention_bytes, durability; else the defaults."""
        self._call(self._awaitable.create_topic(topic, exist_ok=exist_ok, **settings))

    def alter_topic(self, topic: str, **settings: Any) -> None:
        """Change settings of a topic; those not named stay as they are."""
        self._call(self._awaitable.alter_topic(topic, **settings))

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with all its records and consumers."""
        self._call(self._awaitable.delete_topic(topic))

    def erase(
        self,
        names: str,
        topic: str,
        *,
        before: PositionLike | None = None,
        dry_run: bool = False,
    ) -> Erased:
        """Erase the payloads of records for good: those whose names match, or of these the older.

        Offsets stay. A dry run only counts.
        """
        return self._call(self._awaitable.erase(names, topic, before=before, dry_run=dry_run))

    def topics(self) -> list[TopicInfo]:
        return self._call(self._awaitable.topics())

    def topic(self, topic: str) -> TopicInfo:
        """One of them, or `$audit`, which is not listed."""
        return self._call(self._awaitable.topic(topic))

    def bind(self, filter: str, topic: str) -> None:
        """Names that match `filter` are placed in `topic` from now on."""
        self._call(self._awaitable.bind(filter, topic))

    def unbind(self, filter: str) -> None:
        self._call(self._awaitable.unbind(filter))

    def bindings(self) -> list[BindingInfo]:
        """In the order in which they apply."""
        return self._call(self._awaitable.bindings())

    # Publishing

    def publish(
        self,
        message: Any,
        topic: str,
        *,
        name: str | None = None,
        headers: HeadersLike = None,
        retain: bool = False,
    ) -> Place:
        """Store one message; its offset, once it is durable.

        It is (partition, offset) where the topic has several partitions. With `retain` new MQTT
        subscribers receive it, until another one under its name is retained.
        """
        return self._call(
            self._awaitable.publish(message, topic, name=name, headers=headers, retain=retain)
        )

    def publish_many(
        self,
        messages: Iterable[Any],
        topic: str,
        *,
        name: str | None = None,
        headers: HeadersLike = None,
        retain: bool = False,
    ) -> range | list[tuple[int, int]]:
        """Store messages in order, next to each other; their offsets, once all are durable.

        They are a range, or a list of (partition, offset) where the topic has several partitions.
        A message that cannot be stored refuses them all. When the disk fails half-way, some of
        several megabytes may be stored although UnavailableError is raised.
        """
        together = list(check_messages(messages))
        return self._call(
            self._awaitable.publish_many(together, topic, name=name, headers=headers, retain=retain)
        )

    # Consuming

    def subscribe(self, consumer: str, topic: str, *, start: PositionLike = "earliest") -> None:
        """Give a consumer a durable position in a topic."""
        self._call(self._awaitable.subscribe(consumer, topic, start=start))

    def unsubscribe(self, consumer: str, topic: str) -> None:
        self._call(self._awaitable.unsubscribe(consumer, topic))

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
            self._awaitable.consume(
                consumer, topic, limit=limit, where=where, commit=commit, on_gap=on_gap
            )
        )

    def commit(self, consumer: str, topic: str, offset: Offsets | None = None) -> None:
        """Save the position: all that was handed out, or all before `offset`, is handled."""
        self._call(self._awaitable.commit(consumer, topic, offset))

    def seek(self, consumer: str, topic: str, position: PositionLike) -> Offsets:
        """Go on reading at `position`; the offset that is, or those of all partitions."""
        return self._call(self._awaitable.seek(consumer, topic, position))

    def consumers(self, topic: str) -> list[ConsumerInfo]:
        """The consumers of a topic, how far they are and what they have waiting."""
        return self._call(self._awaitable.consumers(topic))

    def groups(self, topic: str) -> list[GroupInfo]:
        """The groups of a topic: how far they are, and what is not done."""
        return self._call(self._awaitable.groups(topic))

    def create_group(
        self,
        group: str,
        topic: str,
        *,
        start: PositionLike = "earliest",
        lease_s: float | None = None,
        deliveries_max: int | None = None,
    ) -> None:
        """Make a group at a position, unless it is there; then set what is given."""
        self._call(
            self._awaitable.create_group(
                group, topic, start=start, lease_s=lease_s, deliveries_max=deliveries_max
            )
        )

    def alter_group(
        self,
        group: str,
        topic: str,
        *,
        lease_s: float | None = None,
        deliveries_max: int | None = None,
    ) -> None:
        """Change settings of a group; those not named stay as they are."""
        self._call(
            self._awaitable.alter_group(
                group, topic, lease_s=lease_s, deliveries_max=deliveries_max
            )
        )

    def redrive(
        self,
        group: str,
        topic: str,
        *,
        limit: int | None = None,
        where: str | None = None,
        dry_run: bool = False,
    ) -> int:
        """Put dead letters of a group back into their topic, each once; how many.

        `where` filters them as they lie in the dead-letter topic. A dry run only counts them.
        """
        return self._call(
            self._awaitable.redrive(group, topic, limit=limit, where=where, dry_run=dry_run)
        )

    def remove_group(self, group: str, topic: str) -> None:
        """Forget a group and its position; what was given out belongs to nobody."""
        self._call(self._awaitable.remove_group(group, topic))

    def read(
        self,
        topic: str,
        *,
        start: PositionLike = "earliest",
        limit: int | None = None,
        where: str | None = None,
        names: str | None = None,
        partition: int | None = None,
    ) -> list[Record]:
        """Records from `start` up to the end at this call; no position is kept.

        `partition` reads one of several, where an offset is a position.
        """
        return self._call(
            self._awaitable.read(
                topic, start=start, limit=limit, where=where, names=names, partition=partition
            )
        )

    def size(self, topic: str, consumer: str | None = None) -> int:
        """Records kept in the topic, or those the consumer has not been given yet."""
        return self._call(self._awaitable.size(topic, consumer))
