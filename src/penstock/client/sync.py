"""Client: the same for programs without asyncio. Usable from several threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from penstock.client.aio import AsyncClient, Handler
from penstock.client.groups import AsyncGroup, Delivery
from penstock.client.wire import HeadersLike, PositionLike
from penstock.model.errors import UnavailableError
from penstock.model.groups import GroupInfo
from penstock.model.record import ConsumerInfo, Record, TopicInfo

T = TypeVar("T")

CLOSED: Final = "the client is closed: connect again"

Call = Callable[[Coroutine[Any, Any, Any]], Any]


class Client:
    """A broker elsewhere, with the names of Broker; `penstock.connect(url)` makes it."""

    def __init__(self, url: str, **options: Any) -> None:
        self._is_closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="penstock-client", daemon=True)
        self._thread.start()
        try:
            self._client = self._call(_make(url, options))
        except BaseException:
            self._stop()
            raise

    def _run(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        loop.run_forever()
        late = asyncio.all_tasks(loop)  # a stream that nobody reads any more, say
        for task in late:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*late, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
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

    def _stop(self) -> None:
        self._is_closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def close(self) -> None:
        """Finish what is on its way. Safe to call twice."""
        if not self._is_closed:
            try:
                self._call(self._client.close())
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
        self.close()

    # Topics

    def create_topic(self, topic: str, *, exist_ok: bool = False, **settings: Any) -> None:
        """Declare a topic: retention_age, retention_bytes, durability; else the defaults."""
        self._call(self._client.create_topic(topic, exist_ok=exist_ok, **settings))

    def alter_topic(self, topic: str, **settings: Any) -> None:
        """Change settings of a topic; those not named stay as they are."""
        self._call(self._client.alter_topic(topic, **settings))

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with all its records and consumers."""
        self._call(self._client.delete_topic(topic))

    def topics(self) -> list[TopicInfo]:
        return self._call(self._client.topics())

    def bind(self, filter: str, topic: str) -> None:
        """Names that match `filter` are placed in `topic` from now on."""
        self._call(self._client.bind(filter, topic))

    def unbind(self, filter: str) -> None:
        self._call(self._client.unbind(filter))

    # Publishing

    def publish(
        self, message: Any, topic: str, *, name: str | None = None, headers: HeadersLike = None
    ) -> int:
        """Store one message; its offset, once it is durable."""
        return self._call(self._client.publish(message, topic, name=name, headers=headers))

    def publish_many(
        self,
        messages: Iterable[Any],
        topic: str,
        *,
        name: str | None = None,
        headers: HeadersLike = None,
    ) -> range:
        """Store messages in order, next to each other; their offsets, once all are durable."""
        work = self._client.publish_many(list(messages), topic, name=name, headers=headers)
        return self._call(work)

    # Consuming

    def subscribe(self, consumer: str, topic: str, *, start: PositionLike = "earliest") -> None:
        """Give a consumer a durable position in a topic."""
        self._call(self._client.subscribe(consumer, topic, start=start))

    def unsubscribe(self, consumer: str, topic: str) -> None:
        self._call(self._client.unsubscribe(consumer, topic))

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
            self._client.consume(
                consumer, topic, limit=limit, where=where, commit=commit, on_gap=on_gap
            )
        )

    def commit(self, consumer: str, topic: str, offset: int | None = None) -> None:
        """Save the position: all that was handed out, or all before `offset`, is handled."""
        self._call(self._client.commit(consumer, topic, offset))

    def seek(self, consumer: str, topic: str, position: PositionLike) -> int:
        """Go on reading at `position`; the offset that is."""
        return self._call(self._client.seek(consumer, topic, position))

    def consumers(self, topic: str) -> list[ConsumerInfo]:
        """The consumers of a topic, how far they are and what they have waiting."""
        return self._call(self._client.consumers(topic))

    def groups(self, topic: str) -> list[GroupInfo]:
        """The groups of a topic: how far they are, and what is not done."""
        return self._call(self._client.groups(topic))

    def remove_group(self, group: str, topic: str) -> None:
        """Forget a group and its position; what was given out belongs to nobody."""
        self._call(self._client.remove_group(group, topic))

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
            self._client.read(topic, start=start, limit=limit, where=where, names=names)
        )

    def size(self, topic: str, consumer: str | None = None) -> int:
        """Records kept in the topic, or those the consumer has not been given yet."""
        return self._call(self._client.size(topic, consumer))

    # Streaming

    def stream(
        self,
        topic: str,
        *,
        start: PositionLike = "latest",
        where: str | None = None,
        names: str | None = None,
    ) -> Iterator[Record]:
        """Records as they become visible, from `start` on; goes on after any loss of connection."""
        records = self._client.stream(topic, start=start, where=where, names=names)
        return self._iterate(records)

    def _iterate(self, records: AsyncIterator[Record]) -> Iterator[Record]:
        while not self._is_closed:
            yield self._call(_next(records))

    # Groups, handlers, requests

    def group(self, topic: str, group: str) -> Group:
        """One reader of a group."""
        return Group(self._client.group(topic, group), self._call)

    def handler(self, names: str, *, model: Any = None) -> Callable[[Handler], Handler]:
        """Have a function called with every record whose name matches, once `run` is called."""
        return self._client.handler(names, model=model)

    def run(self, *, start: PositionLike = "latest") -> None:
        """Call the handlers until the program is interrupted."""
        self._call(self._client.run(start=start))

    def request(
        self, message: Any, topic: str, *, name: str | None = None, timeout_s: float = 30.0
    ) -> Record:
        """Publish, and wait for the record that answers; a handler's return value is one."""
        return self._call(self._client.request(message, topic, name=name, timeout_s=timeout_s))


class Group:
    """One reader of a group."""

    def __init__(self, group: AsyncGroup, call: Call) -> None:
        self._group = group
        self._call = call

    def fetch(
        self, limit: int = 100, *, wait_s: float = 0.0, start: PositionLike = "earliest"
    ) -> list[Delivery]:
        """Records for this reader alone; waits up to `wait_s` for a first one."""
        found: list[Delivery] = self._call(self._group.fetch(limit, wait_s=wait_s, start=start))
        return found

    def ack(self, deliveries: Sequence[Delivery]) -> int:
        """They are done; durable on return. How many."""
        return int(self._call(self._group.ack(deliveries)))

    def nack(
        self, deliveries: Sequence[Delivery], *, delay_s: float = 0.0, reason: str = ""
    ) -> int:
        """Give them back, for others at once or after a delay."""
        return int(self._call(self._group.nack(deliveries, delay_s=delay_s, reason=reason)))

    def info(self) -> dict[str, Any]:
        """How the group stands: next_offset, lag, pending."""
        found: dict[str, Any] = self._call(self._group.info())
        return found

    def delete(self) -> None:
        self._call(self._group.delete())


async def _make(url: str, options: dict[str, Any]) -> AsyncClient:
    """On the client's own loop, which its parts belong to."""
    return await AsyncClient(url, **options).open()


async def _next(records: AsyncIterator[Record]) -> Record:
    return await anext(records)


def connect(url: str, **options: Any) -> Client:
    """A client of the broker at `url`; options: user, password, token, tls."""
    return Client(url, **options)
