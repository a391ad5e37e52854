"""AsyncClient: a broker elsewhere, with the names of AsyncBroker."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import urlencode
from uuid import uuid4

import msgspec

from penstock.client.groups import AsyncGroup
from penstock.client.publishing import TopicPublisher
from penstock.client.transport import Target, Transport
from penstock.client.wire import (
    RecordsIn,
    check,
    check_gap,
    check_limit,
    consumer_path,
    encode_position,
    group_path,
    message_body,
    topic_path,
)
from penstock.model.errors import InvalidFilter, PenstockError, RefusedError, UnavailableError
from penstock.model.groups import GroupInfo
from penstock.model.record import (
    ConsumerInfo,
    HeadersLike,
    PositionLike,
    Record,
    TopicInfo,
    check_on_gap,
)

T = TypeVar("T")

READ_MAX: Final = 10_000  # records of one request
STREAM_WAIT_S: Final = 20.0  # a stream's request waits so long for a record, then asks again
STREAM_READ_MAX: Final = 1_000
RETRY_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)  # between attempts to go on; the last one repeats
REPLY_HEADER: Final = "reply-to"
CORRELATION_HEADER: Final = "correlation-id"

Handler = Callable[[Any], Any]


class _Topics(msgspec.Struct):
    topics: list[TopicInfo]


class _Consumers(msgspec.Struct):
    consumers: list[ConsumerInfo]


class _Groups(msgspec.Struct):
    groups: list[GroupInfo]


class _Offset(msgspec.Struct):
    offset: int


class AsyncClient:
    """A connection to a broker that serves HTTP; `penstock.aio.connect(url)` makes it."""

    def __init__(
        self,
        url: str,
        *,
        user: str = "",
        password: str = "",
        token: str = "",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._transport = Transport(Target(url, user, password, token), tls)
        self._publishers: dict[str, TopicPublisher] = {}
        self._openings: set[asyncio.Task[RecordsIn]] = set()  # streams without a position yet
        self._handlers: list[tuple[str, str, Handler, Any]] = []

    async def open(self) -> Self:
        """See that the broker is there and lets us in."""
        check(await self._transport.ask("GET", "/v1/topics", may_repeat=True))
        return self

    async def close(self) -> None:
        """Finish what is on its way. Safe to call twice."""
        for publisher in self._publishers.values():
            await publisher.drain()
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        wait_s: float = 0.0,
    ) -> bytes:
        data = b"" if body is None else msgspec.json.encode(body)
        is_harmless = method in ("GET", "PUT", "DELETE")
        answer = await self._transport.ask(
            method, path, data, headers, wait_s=wait_s, may_repeat=is_harmless
        )
        return check(answer)

    # Topics

    async def create_topic(self, topic: str, *, exist_ok: bool = False, **settings: Any) -> None:
        """Declare a topic: retention_age, retention_bytes, durability; else the defaults."""
        headers = {} if exist_ok else {"If-None-Match": "*"}
        await self._ask("PUT", topic_path(topic), settings, headers=headers)

    async def alter_topic(self, topic: str, **settings: Any) -> None:
        """Change settings of a topic; those not named stay as they are."""
        await self._ask("PATCH", topic_path(topic), settings)

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic with all its records and consumers."""
        await self._ask("DELETE", topic_path(topic))

    async def topics(self) -> list[TopicInfo]:
        return msgspec.json.decode(await self._ask("GET", "/v1/topics"), type=_Topics).topics

    async def bind(self, filter: str, topic: str) -> None:
        """Names that match `filter` are placed in `topic` from now on."""
        await self._ask("POST", "/v1/bindings", {"filter": filter, "topic": topic})

    async def unbind(self, filter: str) -> None:
        await self._ask("DELETE", f"/v1/bindings?{urlencode({'filter': filter})}")

    async def _topic_info(self, topic: str) -> TopicInfo:
        return msgspec.json.decode(await self._ask("GET", topic_path(topic)), type=TopicInfo)

    # Publishing

    async def publish(
        self, message: Any, topic: str, *, name: str | None = None, headers: HeadersLike = None
    ) -> int:
        """Store one message; its offset, once it is durable.

        What is published at the same time goes to the broker together.
        """
        body = message_body(message, name, headers)
        if self._openings:
            await asyncio.wait(self._openings)
        return await self._publisher(topic).publish(body)

    async def publish_many(
        self,
        messages: Iterable[Any],
        topic: str,
        *,
        name: str | None = None,
        headers: HeadersLike = None,
    ) -> range:
        """Store messages in order, next to each other; their offsets, once all are durable."""
        bodies = [message_body(message, name, headers) for message in messages]
        if not bodies:
            end = (await self._topic_info(topic)).end_offset
            return range(end, end)
        if self._openings:
            await asyncio.wait(self._openings)
        return await self._publisher(topic).publish_together(bodies)

    def _publisher(self, topic: str) -> TopicPublisher:
        publisher = self._publishers.get(topic)
        if publisher is None:
            publisher = self._publishers[topic] = TopicPublisher(self._transport, topic)
        return publisher

    # Consuming

    async def subscribe(
        self, consumer: str, topic: str, *, start: PositionLike = "earliest"
    ) -> None:
        """Give a consumer a durable position in a topic."""
        body = {"from": encode_position(start)}
        await self._ask("PUT", consumer_path(topic, consumer), body, headers={"If-None-Match": "*"})

    async def unsubscribe(self, consumer: str, topic: str) -> None:
        await self._ask("DELETE", consumer_path(topic, consumer))

    async def consume(
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
        check_limit(limit)
        end = (await self._topic_info(topic)).end_offset if limit is None else -1
        found: list[Record] = []
        while True:
            asked = READ_MAX if limit is None else min(limit - len(found), READ_MAX)
            body = {"limit": asked, "where": where, "commit": commit, "on_gap": on_gap}
            data = await self._ask("POST", f"{consumer_path(topic, consumer)}/fetch", body)
            page = msgspec.json.decode(data, type=RecordsIn)
            found += page.all()
            is_done = page.next_offset >= end if limit is None else len(found) >= limit
            if is_done or page.next_offset >= page.end_offset:
                return found

    async def commit(self, consumer: str, topic: str, offset: int | None = None) -> None:
        """Save the position: all that was handed out, or all before `offset`, is handled."""
        await self._ask("POST", f"{consumer_path(topic, consumer)}/commit", {"offset": offset})

    async def seek(self, consumer: str, topic: str, position: PositionLike) -> int:
        """Go on reading at `position`; the offset that is."""
        body = {"from": encode_position(position)}
        data = await self._ask("POST", f"{consumer_path(topic, consumer)}/seek", body)
        return msgspec.json.decode(data, type=_Offset).offset

    async def consumers(self, topic: str) -> list[ConsumerInfo]:
        """The consumers of a topic, how far they are and what they have waiting."""
        data = await self._ask("GET", f"{topic_path(topic)}/consumers")
        return msgspec.json.decode(data, type=_Consumers).consumers

    async def groups(self, topic: str) -> list[GroupInfo]:
        """The groups of a topic: how far they are, and what is not done."""
        data = await self._ask("GET", f"{topic_path(topic)}/groups")
        return msgspec.json.decode(data, type=_Groups).groups

    async def remove_group(self, group: str, topic: str) -> None:
        """Forget a group and its position; what was given out belongs to nobody."""
        await self._ask("DELETE", group_path(topic, group))

    async def read(
        self,
        topic: str,
        *,
        start: PositionLike = "earliest",
        limit: int | None = None,
        where: str | None = None,
        names: str | None = None,
    ) -> list[Record]:
        """Records from `start` up to the end at this call; no position is kept."""
        check_limit(limit)
        found: list[Record] = []
        position = encode_position(start)
        end: int | None = None
        while True:
            asked = READ_MAX if limit is None else min(limit - len(found), READ_MAX)
            page = await self._page(topic, position, asked, where, names, 0.0)
            end = page.end_offset if end is None else end
            found += [record for record in page.all() if record.offset < end]
            if page.next_offset >= end or (limit is not None and len(found) >= limit):
                return found
            position = page.next_offset

    async def _page(
        self,
        topic: str,
        position: str | int,
        limit: int,
        where: str | None,
        names: str | None,
        wait_s: float,
    ) -> RecordsIn:
        asked = {"from": position, "limit": limit, "where": where, "names": names}
        if wait_s:
            asked["wait"] = f"{wait_s:g}"
        query = urlencode({key: value for key, value in asked.items() if value is not None})
        data = await self._ask("GET", f"{topic_path(topic)}/records?{query}", wait_s=wait_s)
        return msgspec.json.decode(data, type=RecordsIn)

    async def size(self, topic: str, consumer: str | None = None) -> int:
        """Records kept in the topic, or those the consumer has not been given yet."""
        if consumer is None:
            info = await self._topic_info(topic)
            return info.end_offset - info.first_offset
        data = await self._ask("GET", consumer_path(topic, consumer))
        return msgspec.json.decode(data, type=ConsumerInfo).waiting

    # Streaming

    def stream(
        self,
        topic: str,
        *,
        start: PositionLike = "latest",
        where: str | None = None,
        names: str | None = None,
        on_gap: str = "skip",
    ) -> AsyncIterator[Record]:
        """Records as they become visible, from `start` on; goes on after any loss of connection.

        No record is left out and none comes twice: the next request names the next offset. What
        this client publishes after the call is behind `latest`.
        """
        check_on_gap(on_gap)
        opening = asyncio.create_task(self._first_page(topic, start, where, names, on_gap))
        self._openings.add(opening)
        opening.add_done_callback(self._on_opened)
        return self._follow(opening, topic, where, names, on_gap)

    async def open_stream(
        self,
        topic: str,
        *,
        start: PositionLike = "latest",
        where: str | None = None,
        names: str | None = None,
        on_gap: str = "skip",
    ) -> AsyncIterator[Record]:
        """As `stream`, once the broker has said where it begins; refusals are raised here."""
        check_on_gap(on_gap)
        page = await self._first_page(topic, start, where, names, on_gap)
        return self._follow(page, topic, where, names, on_gap)

    async def _first_page(
        self, topic: str, start: PositionLike, where: str | None, names: str | None, on_gap: str
    ) -> RecordsIn:
        return await self._next_page(topic, encode_position(start), where, names, 0.0, on_gap)

    async def _next_page(
        self,
        topic: str,
        position: str | int,
        where: str | None,
        names: str | None,
        wait_s: float,
        on_gap: str,
    ) -> RecordsIn:
        """Asks until the broker is there to answer."""
        failures = 0
        while True:
            try:
                page = await self._page(topic, position, STREAM_READ_MAX, where, names, wait_s)
                if on_gap == "error":
                    check_gap(topic, position, page)
                return page
            except UnavailableError:
                if self._transport.is_closed:
                    raise
                await asyncio.sleep(RETRY_S[min(failures, len(RETRY_S) - 1)])
                failures += 1

    async def _follow(
        self,
        first: RecordsIn | asyncio.Task[RecordsIn],
        topic: str,
        where: str | None,
        names: str | None,
        on_gap: str,
    ) -> AsyncIterator[Record]:
        page = await first if isinstance(first, asyncio.Task) else first
        while True:
            for record in page.all():
                yield record
            offset = page.next_offset
            page = await self._next_page(topic, offset, where, names, STREAM_WAIT_S, on_gap)

    def _on_opened(self, opening: asyncio.Task[RecordsIn]) -> None:
        self._openings.discard(opening)
        if not opening.cancelled():
            opening.exception()  # told when the stream is read; nobody may ever read it

    # Groups

    def group(self, topic: str, group: str) -> AsyncGroup:
        """One reader of a group."""
        return AsyncGroup(self._transport, topic, group)

    # Handlers

    def handler(
        self, names: str, *, model: Any = None, topic: str = ""
    ) -> Callable[[Handler], Handler]:
        """Have a function called with every record whose name matches, once `run` is awaited.

        With a `model` (a msgspec Struct, a dataclass, a TypedDict) it is given the payload, decoded
        and checked. The topic is the first level of the filter unless it is named.
        """
        found = topic or names.partition("/")[0]
        if found in ("+", "#"):
            raise InvalidFilter(
                f"filter {names!r} begins with {found!r}, which names no topic: a handler reads "
                "one, so say which with topic="
            )

        def register(function: Handler) -> Handler:
            self._handlers.append((found, names, function, model))
            return function

        return register

    async def run(self, *, start: PositionLike = "latest") -> None:
        """Call the handlers until it is cancelled; one that raises is told and harms nobody."""
        if not self._handlers:
            raise RefusedError("there is nothing to run: decorate a function with client.handler")
        works = [self._handle(*one, start=start) for one in self._handlers]
        await asyncio.gather(*works)

    async def _handle(
        self, topic: str, names: str, function: Handler, model: Any, start: PositionLike
    ) -> None:
        async for record in self.stream(topic, start=start, names=names):
            try:
                given = record if model is None else msgspec.json.decode(record.payload, type=model)
                result = function(given)
                if isinstance(result, Coroutine):
                    result = await result
            except Exception as mistake:
                context = {"message": f"a handler of {names!r} failed", "exception": mistake}
                asyncio.get_running_loop().call_exception_handler(context)
                continue
            await self._reply(record, result)

    # Requests

    async def request(
        self, message: Any, topic: str, *, name: str | None = None, timeout_s: float = 30.0
    ) -> Record:
        """Publish, and wait for the record that answers; a handler's return value is one.

        The answer comes in the same topic, under `<topic>/_reply/<id>`.
        """
        correlation = uuid4().hex
        reply_to = f"{topic}/_reply/{correlation}"
        end = (await self._topic_info(topic)).end_offset
        headers = {REPLY_HEADER: reply_to, CORRELATION_HEADER: correlation}
        await self.publish(message, topic, name=name, headers=headers)
        try:
            async with asyncio.timeout(timeout_s):
                async for record in self.stream(topic, start=end, names=reply_to):
                    return record
        except TimeoutError:
            raise UnavailableError(f"nobody answered within {timeout_s:g} s") from None
        raise AssertionError("a stream does not end")

    async def _reply(self, record: Record, result: Any) -> None:
        headers = dict(record.headers)
        reply_to = headers.get(REPLY_HEADER)
        if reply_to is None or result is None:
            return
        with suppress(PenstockError):  # whoever asked waits no longer, or asks again
            await self.publish(
                result,
                record.topic,
                name=reply_to,
                headers={CORRELATION_HEADER: headers.get(CORRELATION_HEADER, "")},
            )
