"""AsyncBroker: a broker inside an asyncio program. The same names as Broker, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Sequence,
)
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from penstock.app.runs import CALLER, runs_of
from penstock.app.wiring import OpenBroker, open_directory, open_memory
from penstock.broker.deliver.merged import MergedStream
from penstock.broker.deliver.streams import Stream
from penstock.broker.engine import Engine
from penstock.broker.queue.consumers import read_range
from penstock.broker.settings import NodeSettings, altered, make_settings, topic_settings
from penstock.broker.tenants import Tenants
from penstock.broker.topic.parts import (
    check_offset,
    check_position,
    get_part,
    place_of,
    resolve,
    resolve_all,
)
from penstock.config import DEFAULT_DATA
from penstock.core.naming.names import check_filter
from penstock.core.position import AtOffset, AtOffsets, Latest, parse_position, time_before
from penstock.core.where import Where, compile_where
from penstock.log.files.commit import ThreadWorkers
from penstock.log.files.upkeep.sealer import ServingWorkers
from penstock.model.errors import UnavailableError
from penstock.model.groups import (
    GroupInfo,
    Redriven,
    check_deliveries_max,
    check_lease_s,
    redrive_all,
)
from penstock.model.messages import check_messages
from penstock.model.record import (
    DEFAULT_TENANT,
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
from penstock.model.runs import PipelineRun
from penstock.model.tenants import no_such_tenant

DEFAULT_PATH: Final = DEFAULT_DATA
STREAM_TAKE_MAX: Final = 1_000  # records a stream hands over at once

Attach = Callable[[], Coroutine[Any, Any, Stream | MergedStream]]


class AsyncBroker:
    """Publish to and read from durable topics in a directory, with no server.

    Use it as a context manager, or `await open()` and `await close()`.
    """

    def __init__(
        self, path: str | Path = DEFAULT_PATH, *, tenant: str = DEFAULT_TENANT, **settings: Any
    ) -> None:
        self._path: Path | None = Path(path)
        self._tenant = tenant
        self._settings = make_settings(settings)
        self._make_workers: type[ThreadWorkers] = ThreadWorkers
        self._node: NodeSettings | None = None
        self._open: OpenBroker | None = None

    @classmethod
    def memory(cls, **settings: Any) -> Self:
        """A broker that keeps nothing once it is closed."""
        broker = cls(**settings)
        broker._path = None
        return broker

    async def open(self) -> Self:
        """Lock the directory and recover; UnavailableError names a process that holds it."""
        if self._open is None:
            if self._path is None:
                self._open = await open_memory(self._settings)
            else:
                self._open = await open_directory(
                    self._path, self._settings, self._make_workers, self._node
                )
            if self._tenant not in self._open.tenants.engines:
                await self.shut(is_clean=True)
                raise no_such_tenant(self._tenant)
        return self

    async def close(self) -> None:
        """Flush positions and release the directory. Safe to call twice."""
        await self.shut(is_clean=True)

    def hurry(self) -> None:
        """A close is coming: a database that is gone is not waited for much longer."""
        if self._open is not None:
            self._open.hurry()

    async def shut(self, *, is_clean: bool) -> None:
        """As `close`; unless it is clean, batches that were not committed will be repeated."""
        if self._open is not None:
            opened, self._open = self._open, None
            await opened.close(is_clean)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.shut(is_clean=kind is None)

    @property
    def tenants(self) -> Tenants:
        """All tenants of the broker."""
        if self._open is None:
            raise UnavailableError(
                "the broker is closed, or was never opened: use it as a context manager"
            )
        return self._open.tenants

    @property
    def engine(self) -> Engine:
        """That of the tenant this broker is used for."""
        return self.tenants.get(self._tenant)

    @property
    def notes(self) -> Sequence[str]:
        """What recovery found when the directory was opened; empty after a clean close."""
        return () if self._open is None else tuple(self._open.notes)

    def give_up(self) -> None:
        """The start failed: let `close` remove the directory if `open` made it."""
        if self._open is not None:
            self._open.give_up()

    def announce(self, addresses: list[str], socket_name: str = "") -> None:
        """Write down in the directory where this broker can be reached."""
        if self._open is not None:
            self._open.announce(addresses, socket_name)

    # Topics

    async def create_topic(self, topic: str, *, exist_ok: bool = False, **settings: Any) -> None:
        """Declare a topic: retention_age, retention_bytes, durability; else the defaults."""
        engine = self.engine
        await engine.topics.create(
            topic, topic_settings(engine.settings, settings), exist_ok=exist_ok
        )

    async def alter_topic(self, topic: str, **settings: Any) -> None:
        """Change settings of a topic; those not named stay as they are."""
        topics = self.engine.topics
        await topics.alter(topic, altered(topics.get(topic).log.settings, settings))

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic with all its records and consumers."""
        await self.engine.delete_topic(topic)

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
        engine = self.engine
        before_us = time_before(before, engine.clock.now_us())
        return await engine.erasing.erase(topic, names, before_us, dry_run=dry_run)

    async def topics(self) -> list[TopicInfo]:
        return await self.engine.describe_all()

    async def topic(self, topic: str) -> TopicInfo:
        """One of them, or `$audit`, which is not listed."""
        return await self.engine.topics.find(topic).describe()

    async def bind(self, filter: str, topic: str) -> None:
        """Names that match `filter` are placed in `topic` from now on."""
        await self.engine.topics.bind(filter, topic)

    async def unbind(self, filter: str) -> None:
        await self.engine.topics.unbind(filter)

    async def bindings(self) -> list[BindingInfo]:
        """In the order in which they apply."""
        topics = self.engine.topics
        found = topics.placement.bindings
        return [BindingInfo(one.filter, topics.find(one.topic).declared) for one in found]

    # Publishing

    async def publish(
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
        engine = self.engine
        target = engine.topics.get(topic)
        (run,) = runs_of(target, name, [message], headers, retain)
        return place_of(target.part_of(run.name), await engine.publish(target, run))

    async def publish_many(
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
        engine = self.engine
        target = engine.topics.get(topic)
        runs = runs_of(target, name, check_messages(messages), headers, retain)
        if not runs:
            end = target.log.bounds().end
            return range(end, end) if len(target.parts) == 1 else []
        for run in runs:
            engine.check(target, run)
        pending = [engine.publish(target, run) for run in runs]
        await asyncio.wait([asyncio.ensure_future(one) for one in pending])
        offsets = [await one for one in pending]
        stored = range(offsets[0], offsets[-1] + runs[-1].count)
        part = target.part_of(runs[0].name)
        return stored if len(target.parts) == 1 else [(part.partition, at) for at in stored]

    # Consuming

    async def subscribe(
        self, consumer: str, topic: str, *, start: PositionLike = "earliest"
    ) -> None:
        """Give a consumer a durable position in a topic."""
        engine = self.engine
        position = parse_position(start, engine.clock.now_us())
        await engine.consumers.subscribe(engine.topics.get(topic), consumer, position)

    async def unsubscribe(self, consumer: str, topic: str) -> None:
        engine = self.engine
        await engine.consumers.unsubscribe(engine.topics.get(topic), consumer)

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
        check_on_gap(on_gap)
        engine = self.engine
        return await engine.consumers.consume(
            engine.topics.get(topic), consumer, limit, _where(where), commit=commit, on_gap=on_gap
        )

    async def commit(self, consumer: str, topic: str, offset: Offsets | None = None) -> None:
        """Save the position: all that was handed out, or all before `offset`, is handled."""
        engine = self.engine
        await engine.consumers.commit(engine.topics.get(topic), consumer, offset)

    async def seek(self, consumer: str, topic: str, position: PositionLike) -> Offsets:
        """Go on reading at `position`; the offset that is, or those of all partitions."""
        engine = self.engine
        target = engine.topics.get(topic)
        wanted = parse_position(position, engine.clock.now_us())
        return await engine.consumers.seek(target, consumer, wanted)

    async def consumers(self, topic: str) -> list[ConsumerInfo]:
        """The consumers of a topic, how far they are and what they have waiting."""
        engine = self.engine
        return engine.consumers.describe(engine.topics.get(topic))

    async def groups(self, topic: str) -> list[GroupInfo]:
        """The groups of a topic: how far they are, and what is not done."""
        engine = self.engine
        return engine.groups.of(engine.topics.get(topic))

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
        engine = self.engine
        target = engine.topics.get(topic)
        position = parse_position(start, engine.clock.now_us())
        check_lease_s(lease_s), check_deliveries_max(deliveries_max)
        await engine.groups.create(target, group, position)
        await engine.groups.alter(target, group, lease_s, deliveries_max)

    async def alter_group(
        self,
        group: str,
        topic: str,
        *,
        lease_s: float | None = None,
        deliveries_max: int | None = None,
    ) -> None:
        """Change settings of a group; those not named stay as they are."""
        engine = self.engine
        await engine.groups.alter(engine.topics.get(topic), group, lease_s, deliveries_max)

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
        engine = self.engine
        target, wanted = engine.topics.get(topic), _where(where)

        async def step(start: Offsets, limit: int) -> Redriven:
            return await engine.redrives.redrive(
                target,
                group,
                CALLER,
                start=start,
                limit=limit,
                where=wanted,
                is_dry_run=dry_run,
            )

        return await redrive_all(step, limit)

    async def remove_group(self, group: str, topic: str) -> None:
        """Forget a group and its position; what was given out belongs to nobody."""
        engine = self.engine
        await engine.groups.delete(engine.topics.get(topic), group)

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
        if names is not None:
            check_filter(names)
        engine = self.engine
        target = engine.topics.get(topic)
        position = parse_position(start, engine.clock.now_us())
        if partition is None:
            parts, offsets = target.parts, await resolve_all(target, position)
        else:
            parts = [get_part(target, partition)]
            offsets = [await resolve(parts[0], position)]
        ends = [part.log.bounds().end for part in parts]
        passes = _where(where)
        found: list[Record] = []
        for part, offset, end in zip(parts, offsets, ends, strict=True):
            left = None if limit is None else limit - len(found)
            if left != 0:
                found += await read_range(part, offset, end, limit=left, where=passes, names=names)
        return found

    async def size(self, topic: str, consumer: str | None = None) -> int:
        """Records kept in the topic, or those the consumer has not been given yet."""
        engine = self.engine
        target = engine.topics.get(topic)
        for part in target.parts:
            await part.learn_count()
        if consumer is not None:
            return engine.consumers.waiting(target, consumer)
        return sum([part.log.count_from(0) for part in target.parts])

    async def pipeline_runs(self) -> list[PipelineRun]:
        """The runs of pipeline jobs on this directory, oldest first."""
        return await self.engine.pipelines.load()

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
        """Records as they become visible, from `start` on, until the broker closes.

        `latest` means the end at this call, not at the first record asked for.
        """
        attach = self.plan_stream(topic, start=start, where=where, names=names, on_gap=on_gap)
        return _records(attach)

    def plan_stream(
        self, topic: str, *, start: PositionLike, where: str | None, names: str | None, on_gap: str
    ) -> Attach:
        """Check what a stream is asked for, now; attach it when it is first read."""
        engine = self.engine
        target = engine.topics.get(topic)
        position = parse_position(start, engine.clock.now_us())
        check_position(target, position)
        if isinstance(position, Latest):
            ends = [(part.partition, part.log.bounds().end) for part in target.parts]
            position = AtOffsets(tuple(ends))
        elif isinstance(position, AtOffset):
            check_offset(target, position.offset)
        elif isinstance(position, AtOffsets):
            for number, offset in position.offsets:
                check_offset(target.parts[number], offset)
        if names is not None:
            check_filter(names)
        check_on_gap(on_gap)
        passes = _where(where)
        return lambda: engine.stream(target, position, names=names, where=passes, on_gap=on_gap)


def serving_broker(
    path: str | Path, node: NodeSettings | None = None, **settings: Any
) -> AsyncBroker:
    """A broker whose process does nothing else: upkeep may start processes of its own.

    With `node` it shares its catalog and its topics with others.
    """
    broker = AsyncBroker(path, **settings)
    broker._make_workers = ServingWorkers
    broker._node = node
    return broker


async def _records(attach: Attach) -> AsyncGenerator[Record, None]:
    stream = await attach()
    try:
        while records := await stream.take(STREAM_TAKE_MAX):
            for record in records:
                yield record
    finally:
        stream.close()


def _where(text: str | None) -> Where | None:
    return None if text is None else compile_where(text)
