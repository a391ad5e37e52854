"""Client: the same for programs without asyncio. Usable from several threads."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack

from penstock.client.aio import AsyncClient
from penstock.client.groups import GROUP_IS_DEPRECATED, AsyncGroup, Delivery
from penstock.client.handlers import Handler
from penstock.client.options import ClientOptions
from penstock.model.blocking import Blocking, LoopThread
from penstock.model.messages import check_messages
from penstock.model.record import HeadersLike, Place, PositionLike, Record

T = TypeVar("T")

CLOSED: Final = "the client is closed: connect again"

Call = Callable[[Coroutine[Any, Any, Any]], Any]


class Client(Blocking):
    """A broker elsewhere, with the names of Broker; `penstock.connect(url)` makes it."""

    def __init__(self, url: str, **options: Unpack[ClientOptions]) -> None:
        self._thread = LoopThread("penstock-client", CLOSED)
        try:
            self._client = self._awaitable = self._call(_make(url, options))
        except BaseException:
            self._thread.stop()
            raise

    def close(self) -> None:
        """Finish what is on its way. Safe to call twice."""
        if not self._thread.is_closed:
            try:
                self._call(self._client.close())
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
        self.close()

    # Calls with a key, which may be repeated

    def publish(
        self,
        message: Any,
        topic: str,
        *,
        name: str | None = None,
        headers: HeadersLike = None,
        retain: bool = False,
        key: str | None = None,
    ) -> Place:
        """Store one message; its offset, once it is durable.

        The same call with the same `key` stores the message once, within 24 hours; OutcomeUnknown
        has the key to repeat with.
        """
        work = self._client.publish(
            message, topic, name=name, headers=headers, retain=retain, key=key
        )
        return self._call(work)

    def publish_many(
        self,
        messages: Iterable[Any],
        topic: str,
        *,
        name: str | None = None,
        headers: HeadersLike = None,
        retain: bool = False,
        key: str | None = None,
    ) -> range | list[tuple[int, int]]:
        """Store messages in order, next to each other; their offsets, once all are durable.

        The same call with the same `key` stores them once, as in `publish`.
        """
        together = list(check_messages(messages))
        work = self._client.publish_many(
            together, topic, name=name, headers=headers, retain=retain, key=key
        )
        return self._call(work)

    def consume(
        self,
        consumer: str,
        topic: str,
        *,
        limit: int | None = None,
        where: str | None = None,
        commit: bool = True,
        on_gap: str = "skip",
        key: str | None = None,
    ) -> list[Record]:
        """What the consumer has not seen yet, up to the end at this call.

        When the answer is lost, OutcomeUnknown has a `key`: with it the next call gets the same
        records again. Without it the next call goes on behind them.
        """
        work = self._client.consume(
            consumer, topic, limit=limit, where=where, commit=commit, on_gap=on_gap, key=key
        )
        return self._call(work)

    # Streaming

    def stream(
        self,
        topic: str,
        *,
        start: PositionLike = "latest",
        where: str | None = None,
        names: str | None = None,
        on_gap: str = "skip",
    ) -> Iterator[Record]:
        """Records as they become visible, from `start` on; goes on after any loss of connection.

        `latest` means the end at this call, not at the first record asked for.
        """
        work = self._client.open_stream(topic, start=start, where=where, names=names, on_gap=on_gap)
        return self._iterate(self._call(work))

    def _iterate(self, records: AsyncIterator[Record]) -> Iterator[Record]:
        while not self._thread.is_closed:
            yield self._call(_next(records))

    # Groups, handlers, requests

    def join_group(self, group: str, topic: str) -> Group:
        """One reader of a group."""
        return Group(self._client.join_group(group, topic), self._call)

    def group(self, topic: str, group: str) -> Group:
        """Deprecated: `join_group(group, topic)`, whose arguments have the order of all others."""
        warnings.warn(GROUP_IS_DEPRECATED, DeprecationWarning, stacklevel=2)
        return self.join_group(group, topic)

    def handler(
        self, names: str, *, model: Any = None, topic: str = ""
    ) -> Callable[[Handler], Handler]:
        """Have a function called with every record whose name matches, once `run` is called."""
        return self._client.handler(names, model=model, topic=topic)

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
        self,
        limit: int = 100,
        *,
        wait_s: float = 0.0,
        start: PositionLike = "earliest",
        lease_s: float | None = None,
        deliveries_max: int | None = None,
    ) -> list[Delivery]:
        """Records for this reader alone; waits up to `wait_s` for a first one.

        `lease_s` and `deliveries_max` hold for these records, else those of the group.
        """
        work = self._group.fetch(
            limit, wait_s=wait_s, start=start, lease_s=lease_s, deliveries_max=deliveries_max
        )
        found: list[Delivery] = self._call(work)
        return found

    def ack(self, deliveries: Sequence[Delivery]) -> int:
        """They are done; durable on return. How many."""
        return int(self._call(self._group.ack(deliveries)))

    def nack(
        self, deliveries: Sequence[Delivery], *, delay_s: float = 0.0, reason: str = ""
    ) -> int:
        """Give them back, for others at once or after a delay."""
        return int(self._call(self._group.nack(deliveries, delay_s=delay_s, reason=reason)))

    def extend(self, deliveries: Sequence[Delivery], *, lease_s: float | None = None) -> int:
        """Their leases end `lease_s` from now, else after the lease of the group. How many."""
        return int(self._call(self._group.extend(deliveries, lease_s=lease_s)))

    def info(self) -> dict[str, Any]:
        """How the group stands: next_offset, lag, pending, lease_s, deliveries_max."""
        found: dict[str, Any] = self._call(self._group.info())
        return found

    def delete(self) -> None:
        self._call(self._group.delete())


async def _make(url: str, options: ClientOptions) -> AsyncClient:
    """On the client's own loop, which its parts belong to."""
    return await AsyncClient(url, **options).open()


async def _next(records: AsyncIterator[Record]) -> Record:
    return await anext(records)


def connect(url: str, **options: Unpack[ClientOptions]) -> Client:
    """A client of the broker at `url`. It sends one request, to see that the broker is there.

    `user` and `password`, or `token`: the login. `tls`: how certificates are checked.
    `tenant`: which one an operator means. `patience_s`: how long calls with a key are repeated
    before they fail. `heartbeat_s`: how long the broker may be silent in a stream.
    """
    return Client(url, **options)
