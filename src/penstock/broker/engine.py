"""The engine of a tenant: on one event loop every door publishes, consumes and streams.

It knows topics, consumers and streams, and no protocol. Acknowledged means durable: `publish`
resolves after the commit, never before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from penstock.broker.access.audit import Audit
from penstock.broker.access.quotas import Quotas
from penstock.broker.cluster.quotas import ClusterQuotas
from penstock.broker.deliver.commits import Commits
from penstock.broker.deliver.merged import MergedStream
from penstock.broker.deliver.streams import Stream
from penstock.broker.figures.caches import Caches, Tails
from penstock.broker.figures.metrics import Metrics
from penstock.broker.queue.consumers import Consumers
from penstock.broker.queue.leases import Groups
from penstock.broker.queue.readers import ReaderSlots, slot_of
from penstock.broker.queue.redrives import Redrives
from penstock.broker.queue.seed_ids import Queue
from penstock.broker.settings import topic_settings
from penstock.broker.shared import Shared
from penstock.broker.topic.erasing import Erasing
from penstock.broker.topic.parts import catch_up, resolve_all
from penstock.broker.topic.topics import Topic, Topics
from penstock.broker.trace.watch import Watch
from penstock.broker.upkeep.pipelines import PipelineRuns
from penstock.broker.upkeep.tiering import Tiering
from penstock.broker.upkeep.upkeep import Upkeep
from penstock.catalog.cluster.holdings import HoldingCatalog
from penstock.catalog.queue.groups import GroupCatalog
from penstock.catalog.queue.positions import PositionSaver
from penstock.core.access import Gate
from penstock.core.delivery.run import Run
from penstock.core.naming.names import quoted
from penstock.core.position import Position
from penstock.core.where import Where
from penstock.log.files.layout import tenant_root
from penstock.log.waiting import append_durably
from penstock.model.errors import QuotaExceeded, TopicNotFound, UnavailableError
from penstock.model.limits import MIB
from penstock.model.messages import check_payload_size
from penstock.model.record import DEFAULT_TENANT, TenantId, TopicInfo

# Here, where every broker passes: a program chooses its own handlers.
logging.getLogger("penstock").addHandler(logging.NullHandler())

RUN_BYTES_MAX: Final = 4 * MIB  # publish_many hands over this much at a time
RUN_RECORDS_MAX: Final = 50_000
AUDIT_AGE_S: Final = 366 * 86_400.0  # how long acts are kept, unless the topic is altered


class Engine:
    """Made by `open`; everything runs on the loop that opened it."""

    def __init__(self, shared: Shared, tenant: TenantId = DEFAULT_TENANT) -> None:
        settings, clock, store = shared.settings, shared.clock, shared.store
        catalog = shared.catalog.for_tenant(tenant)
        self.shared = shared
        self.tenant = tenant
        self.readers = ReaderSlots()
        self.directory: Path | None = None  # of the tenant's staged files; None in memory
        if shared.directory is not None:
            self.directory = tenant_root(shared.directory, tenant)
        self.settings, self.clock = settings, clock
        self.metrics = shared.metrics if tenant == DEFAULT_TENANT else Metrics()
        self.log = shared.log
        self.access = shared.access
        self.quotas = Quotas(settings.quotas, tenant, clock, self.metrics)
        self._cluster_quotas = self._make_cluster_quotas(catalog.holdings)
        self.topics = Topics(catalog, store, clock, self._watch, self._forget, quotas=self.quotas)
        self._saver = PositionSaver(
            catalog.save_positions,
            asyncio.get_running_loop(),
            saves_max=settings.position_saves_max,
            save_s_max=settings.position_save_s_max,
        )
        self.consumers = Consumers(catalog, self._saver, self.metrics, self.quotas)
        self.queue = Queue(catalog.queue, self.consumers, self.quotas)
        self.groups = self._make_groups(catalog.groups)
        self.redrives = Redrives(self.topics, catalog.redrives, self.metrics, self.check)
        self.upkeep = Upkeep(
            self.topics,
            clock,
            settings.upkeep_s,
            log=self.log,
            space=shared.space,
            quotas=self.quotas,
        )
        self.pipelines = PipelineRuns(catalog.runs, clock, self.directory)
        self.upkeep.errands.append(self.pipelines.take_reports)
        self.audit = self._make_audit()
        self.upkeep.errands.append(self.topics.remove_leftovers)
        self.commits = Commits(self.metrics, clock, self.log)
        # Hear every commit, in this order, before those who wait for it are answered.
        self.followers = self.commits.followers
        self.on_forget: Callable[[Topic], None] | None = None  # hears of topics that go
        self.watch: Watch | None = None  # hears what becomes of messages while a trace is on
        self._watches_all = False
        self.session_catalog = catalog.sessions
        self.session_list = catalog.session_list
        self.will_catalog = catalog.wills
        self._catalog = catalog
        self._streams = self.commits.streams
        self._decoded = shared.decoded
        self.caches = Caches(clock)
        self.caches.by_name["tails"] = Tails(self.topics)
        self.upkeep.errands.append(self.caches.look)
        self.erasing = Erasing(self.topics, catalog.sessions, self.upkeep, self.log)
        self.upkeep.errands.append(self.erasing.go_on)
        self.tiering = Tiering(self.topics, clock, settings.upkeep_s, self.upkeep)
        self._tasks: list[asyncio.Task[None]] = []  # upkeep and tiering
        self._is_closed = False

    def _make_cluster_quotas(self, holdings: HoldingCatalog) -> ClusterQuotas | None:
        """As one of several nodes, count for all of them."""
        if self.shared.node is None:
            return None
        made = self.quotas.cluster = ClusterQuotas(self.quotas, holdings)
        return made

    def _make_groups(self, catalog: GroupCatalog) -> Groups:
        return Groups(
            self.topics,
            catalog,
            self.clock,
            self.metrics,
            self.publish,
            quotas=self.quotas,
            watch=lambda: self.watch,
        )

    def _make_audit(self) -> Audit:
        settings = topic_settings(self.settings, {})
        return Audit(
            self.tenant,
            self.topics,
            replace(settings, retention_age_s=AUDIT_AGE_S, partitions=1),
            lambda: self.access.asks_login,
            metrics=self.metrics,
            log=self.log,
        )

    async def open(self) -> None:
        """Load what the catalog has of the tenant, open every log, begin upkeep."""
        topics, bindings, _ = await self._catalog.load()
        await self.topics.open(topics, bindings)
        if self.shared.node is None:
            await self._load_readers(self.topics.all())
        else:
            for readers in self.readers.slots:
                readers.lost("no node serves consumers and groups yet")
        if self._cluster_quotas is not None:
            self._cluster_quotas.start()
        self._tasks.append(asyncio.create_task(self.upkeep.run(), name="penstock-upkeep"))
        await self.erasing.go_on()
        if self.shared.store.has_history:
            self._tasks.append(asyncio.create_task(self.tiering.run(), name="penstock-tiering"))

    async def _load_readers(self, parts: Sequence[Topic]) -> None:
        ids = {part.id for part in parts}
        _, _, consumers = await self._catalog.load()
        await self.consumers.load([one for one in consumers if one.topic_id in ids], self.topics)
        await self.queue.load(ids)
        logs = {part.id: part.log for part in parts}
        await self.groups.load(logs)
        await self.redrives.load(logs)

    async def take_readers(self, slots: Collection[int]) -> None:
        """Serve consumers, groups and the seed's queue of these slots: no other node does."""
        await self.topics.follow()
        # Else positions and keys of the node before are ahead of us.
        await catch_up([part for part in self.topics.working() if slot_of(part.key) in slots])
        parts = [part for part in self.topics.all() if slot_of(part.key) in slots]
        for part in parts:
            self._forget_readers(part)
        await self._load_readers(parts)
        for slot in slots:
            self.readers.slots[slot].begin()

    async def leave_readers(self, slots: Collection[int], why: str) -> None:
        """Another node is to serve these slots: finish what is under way and save it."""
        await asyncio.gather(*[self.readers.slots[slot].leave(why) for slot in slots])
        parts = [part for part in self.topics.all() if slot_of(part.key) in slots]
        await self.consumers.hand_over(parts)
        await self.groups.hand_over(parts)
        for part in parts:
            self._forget_readers(part)

    async def close(self, *, is_clean: bool = True) -> None:
        """Finish what was accepted, save positions, close the logs. Safe to call twice.

        A clean close counts the newest batch of every consumer as handled.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self.upkeep.close()
        if self._cluster_quotas is not None:
            await self._cluster_quotas.close()
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        for streams in list(self._streams.values()):
            for stream in list(streams):
                stream.close()
        await self.erasing.close()
        await self.audit.close()
        try:
            await self.consumers.close(self.topics.all(), is_clean=is_clean)
        finally:
            await self.topics.close()

    # Publishing

    def publish(self, topic: Topic, run: Run) -> Awaitable[int]:
        """Resolves with the first offset once every message of the run is durable."""
        self.check(topic, run)
        return append_durably(topic.part_of(run.name).log, [run])

    def check(self, topic: Topic, run: Run) -> None:
        """Refuse what cannot be stored; what passes may be published in the same tick."""
        self._check_open()
        if self.upkeep.refusal or topic.over_quota:
            self.check_room(topic, run.count)
        bytes_max = self.settings.payload_bytes_max
        if len(run.data) > bytes_max:
            for length in run.lengths:
                check_payload_size(length, bytes_max)

    def check_room(self, topic: Topic, count: int) -> None:
        """Refuse so many records for a topic while there is no room for them."""
        refused = self.upkeep.refused(topic)
        if isinstance(refused, QuotaExceeded):
            self.quotas.count(refused.kind)
        elif refused is not None:
            self.metrics.refused["disk"] += count
        if refused is not None:
            raise refused

    def watch_all(self) -> None:
        """Somebody waits for every commit, of all topics that are there or will be."""
        self._watches_all = True
        for topic in self.topics.all():
            topic.log.is_watched = True

    def _watch(self, topic: Topic) -> None:
        topic.log.on_commit = partial(self.commits.committed, topic)
        topic.log.on_lost = self._lost
        topic.log.is_watched = self._watches_all

    def _lost(self, count: int) -> None:
        """Messages of QoS 0 that went ahead of their commit, which failed."""
        self.metrics.dropped["log_unavailable"] += count

    # Reading

    async def stream(
        self,
        topic: Topic,
        start: Position,
        *,
        names: str | None = None,
        where: Where | None = None,
        on_gap: str = "skip",
        gate: Gate | None = None,
    ) -> Stream | MergedStream:
        """Attach at a position; `start_offsets` of the stream say where that is."""
        offsets = await resolve_all(topic, start)
        self._check_open()
        if self.topics.by_id(topic.id) is not topic:
            raise TopicNotFound(f"topic {quoted(topic.declared)} was deleted meanwhile")
        streams = []
        for part, offset in zip(topic.parts, offsets, strict=True):
            siblings = self._streams.setdefault(part.id, set())
            stream = Stream(
                part,
                offset,
                names,
                where=where,
                on_gap=on_gap,
                metrics=self.metrics,
                siblings=siblings,
                decoded=self._decoded,
                on_close=self._detach,
                gate=gate,
                backlogs=self.shared.backlogs,
            )
            siblings.add(stream)
            part.log.is_watched = True
            streams.append(stream)
        return streams[0] if len(streams) == 1 else MergedStream(topic, streams)

    def _detach(self, stream: Stream) -> None:
        streams = self._streams.get(stream.topic.id, set())
        streams.discard(stream)
        if not streams:
            self._streams.pop(stream.topic.id, None)
            stream.topic.log.is_watched = self._watches_all

    async def create_wanted(self, name: str, owner: str | None) -> None:
        """A topic that a publish of this user asks for; see Topics.wanted_by."""
        await self.topics.create_wanted(name, topic_settings(self.settings, {}), owner)

    async def delete_topic(self, name: str) -> None:
        """The topic's streams end, its consumers and records go."""
        await self.topics.delete(name)

    def counters(self) -> dict[str, float]:
        """What is counted for this tenant, by the names under which it is exported."""
        topics = self.topics.all()
        chunks = self.metrics.chunks_read + sum(topic.log.loads for topic in topics)
        counted = self.metrics.snapshot() | {"penstock_read_chunks_total": chunks}
        return counted | self.caches.export()

    def _forget(self, topic: Topic) -> None:
        self.metrics.chunks_read += topic.log.loads
        self._forget_readers(topic)
        if self.on_forget is not None:
            self.on_forget(topic)
        for stream in list(self._streams.get(topic.id, ())):
            stream.close()

    def _forget_readers(self, topic: Topic) -> None:
        self.consumers.forget(topic)
        self.groups.forget(topic)
        self.redrives.forget(topic)
        self.queue.forget(topic)

    async def describe_all(self) -> list[TopicInfo]:
        return [await topic.describe() for topic in self.topics.declared()]

    def _check_open(self) -> None:
        if self._is_closed:
            raise UnavailableError("the broker is closed: open it again")
