"""AsyncClient: a broker elsewhere, with the names of AsyncBroker."""

from __future__ import annotations

import asyncio
import ssl
import warnings
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Final, Self, TypeVar
from urllib.parse import urlencode
from uuid import uuid4

import msgspec

from penstock.client.answer import ANSWER_S_MAX, check, decode_topics
from penstock.client.groups import GROUP_IS_DEPRECATED, AsyncGroup, group_settings, redrive_steps
from penstock.client.handlers import Handler, Handlers, request
from penstock.client.publishing import TopicPublisher
from penstock.client.reading import StreamPages, fetch_batch, read_all
from penstock.client.repeating import PATIENCE_S
from penstock.client.target import Target
from penstock.client.transport import Transport
from penstock.client.wire import (
    BindingsIn,
    ConsumersIn,
    GroupsIn,
    OffsetIn,
    RecordsIn,
    check_filters,
    consumer_path,
    encode_position,
    encode_settings,
    group_path,
    message_body,
    topic_path,
)
from penstock.core.naming.names import check_filter, check_topic
from penstock.core.position import check_offset_type, read_offsets
from penstock.model.errors import OutcomeUnknown, RefusedError, TopicExists
from penstock.model.groups import GroupInfo
from penstock.model.limits import HEARTBEAT_S
from penstock.model.messages import check_key, check_messages
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
    check_limit,
    check_on_gap,
)

T = TypeVar("T")

LOOK_FIRST: Final = "look with topics(), or repeat the call with exist_ok=True"
REPEAT: Final = "repeat the call; doing it twice does no harm"
# What a request is answered that was sent twice and carried out the first time.
SELF_REFUSED: Final = {("PUT", 409), ("DELETE", 404)}
ERASE_S_MAX: Final = 3_600.0  # the broker goes on also without us


class AsyncClient:
    """A connection to a broker that serves HTTP; `penstock.aio.connect(url)` makes it."""

    def __init__(
        self,
        url: str,
        *,
        user: str = "",
        password: str = "",
        token: str = "",
        tenant: str = "",
        tls: ssl.SSLContext | None = None,
        patience_s: float = PATIENCE_S,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        """`tenant`: which one an operator means; all others are of the tenant they log in to.

        `patience_s`: how long calls with a key are repeated before they fail.

        `heartbeat_s`: how long the broker may be silent in a stream; after two of them the
        connection is given up and the stream goes on over a new one.
        """
        self._transport = Transport(Target(url, user, password, token, tenant), tls)
        self._patience_s = patience_s
        self._heartbeat_s = heartbeat_s
        self._publishers: dict[str, TopicPublisher] = {}
        self._openings: set[asyncio.Task[RecordsIn]] = set()  # streams without a position yet
        self._handlers = Handlers(self)

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

    async def __aexit__(self, *failure: object) -> None:
        await self.close()

    async def _ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        silence_s_max: float = ANSWER_S_MAX,
        way_out: str = REPEAT,
    ) -> bytes:
        """For requests that may be sent twice: they say what is to be, not what is to be added."""
        data = b"" if body is None else msgspec.json.encode(body)
        answer = await self._transport.ask(
            method,
            path,
            data,
            headers,
            silence_s_max=silence_s_max,
            may_repeat=True,
            way_out=way_out,
        )
        try:
            return check(answer)
        except RefusedError as refused:
            if answer.is_repeated and (method, answer.status) in SELF_REFUSED:
                raise OutcomeUnknown(
                    "the connection broke after the request was sent, and its repetition was "
                    f"refused ({refused}): either the first request was carried out, or it would "
                    f"have been refused as well; {way_out}"
                ) from refused
            raise

    # Topics

    async def create_topic(self, topic: str, *, exist_ok: bool = False, **settings: Any) -> None:
        """Declare a topic: retention_age, retention_bytes, durability; else the defaults."""
        headers = {} if exist_ok else {"If-None-Match": "*"}
        way_out = REPEAT if exist_ok else LOOK_FIRST
        body = encode_settings(settings)
        try:
            await self._ask("PUT", topic_path(topic), body, headers=headers, way_out=way_out)
        except TopicExists:
            if not exist_ok:  # it exists with other settings, which stay as they are
                raise

    async def alter_topic(self, topic: str, **settings: Any) -> None:
        """Change settings of a topic; those not named stay as they are."""
        await self._ask("PATCH", topic_path(topic), encode_settings(settings))

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic with all its records and consumers."""
        way_out = "repeat the call; TopicNotFound then means that the topic is deleted"
        await self._ask("DELETE", topic_path(topic), way_out=way_out)

    async def erase(
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
        body: dict[str, Any] = {"names": check_filter(names), "dry_run": dry_run}
        if before is not None:
            body["before"] = encode_position(before)
        path = f"{topic_path(topic)}/erase"
        answer = await self._ask("POST", path, body, silence_s_max=ERASE_S_MAX)
        return msgspec.json.decode(answer, type=Erased)

    async def topics(self) -> list[TopicInfo]:
        return decode_topics(await self._ask("GET", "/v1/topics"))

    async def topic(self, topic: str) -> TopicInfo:
        """One of them, or `$audit`, which is not listed."""
        return msgspec.json.decode(await self._ask("GET", topic_path(topic)), type=TopicInfo)

    async def bind(self, filter: str, topic: str) -> None:
        """Names that match `filter` are placed in `topic` from now on."""
        body = {"filter": check_filter(filter), "topic": check_topic(topic)}
        await self._ask("POST", "/v1/bindings", body)

    async def unbind(self, filter: str) -> None:
        way_out = "repeat the call; RefusedError then means that the filter is not bound"
        path = f"/v1/bindings?{urlencode({'filter': check_filter(filter)})}"
        await self._ask("DELETE", path, way_out=way_out)

    async def bindings(self) -> list[BindingInfo]:
        """In the order in which they apply."""
        data = await self._ask("GET", "/v1/bindings")
        return msgspec.json.decode(data, type=BindingsIn).bindings

    # Publishing

    async def publish(
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

        It is (partition, offset) where the topic has several partitions. What is published at the
        same time goes to the broker together. The same call with the same `key` stores the message
        once, within 24 hours; OutcomeUnknown has the key to repeat with.
        """
        body = message_body(message, name, headers, retain)
        if self._openings:
            await asyncio.wait(self._openings)
        return await self._publisher(topic).publish(body, key)

    async def publish_many(
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

        They are a range, or a list of (partition, offset) where the topic has several partitions.
        The same call with the same `key` stores them once, as in `publish`.
        """
        bodies = [
            message_body(message, name, headers, retain) for message in check_messages(messages)
        ]
        if not bodies:
            info = await self.topic(topic)
            return [] if info.partitions else range(info.end_offset, info.end_offset)
        if self._openings:
            await asyncio.wait(self._openings)
        return await self._publisher(topic).publish_together(bodies, key)

    def _publisher(self, topic: str) -> TopicPublisher:
        publisher = self._publishers.get(topic) if isinstance(topic, str) else None
        if publisher is None:
            publisher = TopicPublisher(self._transport, topic, self._patience_s)
            self._publishers[topic] = publisher
        return publisher

    # Consuming

    async def subscribe(
        self, consumer: str, topic: str, *, start: PositionLike = "earliest"
    ) -> None:
        """Give a consumer a durable position in a topic."""
        body = {"from": encode_position(start)}
        await self._ask(
            "PUT",
            consumer_path(topic, consumer),
            body,
            headers={"If-None-Match": "*"},
            way_out="look with consumers(topic)",
        )

    async def unsubscribe(self, consumer: str, topic: str) -> None:
        way_out = "repeat the call; NotSubscribed then means that it is unsubscribed"
        await self._ask("DELETE", consumer_path(topic, consumer), way_out=way_out)

    async def consume(
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
        check_limit(limit)
        check_on_gap(on_gap)
        check_filters(where, None)
        key = uuid4().hex if key is None else check_key(key)
        asked = {"where": where, "commit": commit, "on_gap": on_gap}
        path = f"{consumer_path(topic, consumer)}/fetch"
        end = (await self.topic(topic)).ends if limit is None else -1
        return await fetch_batch(
            self._ask, path, asked, limit=limit, end=end, key=key, patience_s=self._patience_s
        )

    async def commit(self, consumer: str, topic: str, offset: Offsets | None = None) -> None:
        """Save the position: all that was handed out, or all before `offset`, is handled."""
        if isinstance(offset, dict):
            read_offsets(offset)
        elif offset is not None:
            check_offset_type(offset)
        body = {"offset": offset}
        await self._ask("POST", f"{consumer_path(topic, consumer)}/commit", body)

    async def seek(self, consumer: str, topic: str, position: PositionLike) -> Offsets:
        """Go on reading at `position`; the offset that is, or those of all partitions."""
        body = {"from": encode_position(position)}
        data = await self._ask("POST", f"{consumer_path(topic, consumer)}/seek", body)
        return msgspec.json.decode(data, type=OffsetIn).offset

    async def consumers(self, topic: str) -> list[ConsumerInfo]:
        """The consumers of a topic, how far they are and what they have waiting."""
        data = await self._ask("GET", f"{topic_path(topic)}/consumers")
        return msgspec.json.decode(data, type=ConsumersIn).consumers

    async def groups(self, topic: str) -> list[GroupInfo]:
        """The groups of a topic: how far they are, and what is not done."""
        data = await self._ask("GET", f"{topic_path(topic)}/groups")
        return msgspec.json.decode(data, type=GroupsIn).groups

    async def create_group(
        self,
        group: str,
        topic: str,
        *,
        start: PositionLike = "earliest",
        lease_s: float | None = None,
        deliveries_max: int | None = None,
    ) -> None:
        """Make a group at a position, unless it is there; then set what is given."""
        body = {"from": encode_position(start)} | group_settings(lease_s, deliveries_max)
        await self._ask("PUT", group_path(topic, group), body)

    async def alter_group(
        self,
        group: str,
        topic: str,
        *,
        lease_s: float | None = None,
        deliveries_max: int | None = None,
    ) -> None:
        """Change settings of a group; those not named stay as they are."""
        await self._ask("PATCH", group_path(topic, group), group_settings(lease_s, deliveries_max))

    async def redrive(
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
        check_limit(limit)
        check_filters(where, None)
        return await redrive_steps(
            self._transport, topic, group, limit=limit, where=where, is_dry_run=dry_run
        )

    async def remove_group(self, group: str, topic: str) -> None:
        """Forget a group and its position; what was given out belongs to nobody."""
        way_out = "repeat the call; NotSubscribed then means that the group is removed"
        await self._ask("DELETE", group_path(topic, group), way_out=way_out)

    async def read(
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
        check_limit(limit)
        check_filters(where, names)
        return await read_all(
            self._ask, topic, start, limit=limit, where=where, names=names, partition=partition
        )

    async def size(self, topic: str, consumer: str | None = None) -> int:
        """Records kept in the topic, or those the consumer has not been given yet."""
        if consumer is None:
            return (await self.topic(topic)).count
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
        pages = self._pages(topic, where, names, on_gap)
        opening = asyncio.create_task(pages.first(start))
        self._openings.add(opening)
        opening.add_done_callback(self._on_opened)
        return pages.records(opening)

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
        pages = self._pages(topic, where, names, on_gap)
        return pages.records(await pages.first(start))

    def _pages(self, topic: str, where: str | None, names: str | None, on_gap: str) -> StreamPages:
        check_on_gap(on_gap)
        check_filters(where, names)
        return StreamPages(
            self._ask,
            self._transport,
            topic,
            where=where,
            names=names,
            on_gap=on_gap,
            heartbeat_s=self._heartbeat_s,
        )

    def _on_opened(self, opening: asyncio.Task[RecordsIn]) -> None:
        self._openings.discard(opening)
        if not opening.cancelled():
            opening.exception()  # told when the stream is read; nobody may ever read it

    # Groups

    def join_group(self, group: str, topic: str) -> AsyncGroup:
        """One reader of a group."""
        return AsyncGroup(self._transport, topic, group)

    def group(self, topic: str, group: str) -> AsyncGroup:
        """Deprecated: `join_group(group, topic)`, whose arguments have the order of all others."""
        warnings.warn(GROUP_IS_DEPRECATED, DeprecationWarning, stacklevel=2)
        return self.join_group(group, topic)

    # Handlers

    def handler(
        self, names: str, *, model: Any = None, topic: str = ""
    ) -> Callable[[Handler], Handler]:
        """Have a function called with every record whose name matches, once `run` is awaited.

        With a `model` (a msgspec Struct, a dataclass, a TypedDict) it is given the payload, decoded
        and checked. The topic is the first level of the filter unless it is named.
        """
        return self._handlers.add(names, model, topic)

    async def run(self, *, start: PositionLike = "latest") -> None:
        """Call the handlers until it is cancelled; one that raises does not end it."""
        await self._handlers.run(start)

    # Requests

    async def request(
        self, message: Any, topic: str, *, name: str | None = None, timeout_s: float = 30.0
    ) -> Record:
        """Publish, and wait for the record that answers; a handler's return value is one.

        The answer comes in the same topic, under `<topic>/_reply/<id>`. HandlerError has what the
        handler raised.
        """
        end = (await self.topic(topic)).ends
        return await request(self, message, topic, name=name, end=end, timeout_s=timeout_s)
