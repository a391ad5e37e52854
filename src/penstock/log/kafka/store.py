"""Topics of Kafka as logs: made, opened and removed.

A topic is `<prefix>.<tenant>.<slug>-<id>` in Kafka. What Kafka has no place for, the declared
spelling and the settings, is in the compacted topic `<prefix>.topics`: a record per topic, with the
newest one valid. A topic exists for us once its record does, and no longer once that is deleted.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from penstock.core.topic_settings import PARTITIONS_MAX
from penstock.log.broken import DamagedLog
from penstock.log.cache import CACHE_BYTES_MAX, ChunkCache
from penstock.log.interface import (
    FSYNC,
    REPLICATED,
    Bounds,
    KeptLog,
    LogIdentity,
    LogSettings,
)
from penstock.log.kafka.asking import open_state
from penstock.log.kafka.client import (
    EARLIEST,
    LATEST,
    READING,
    TROUBLES,
    KafkaAddress,
    KafkaClient,
)
from penstock.log.kafka.copied import CopiedPartition
from penstock.log.kafka.log import KafkaLog
from penstock.log.kafka.records.record_batch import (
    Records,
    encode_bytes,
    encode_record_headers,
    encode_time,
    read_records,
    seal,
    split,
)
from penstock.log.kafka.requests import Partition
from penstock.log.kafka.work import KafkaJob, KafkaWork
from penstock.model.clock import Clock
from penstock.model.errors import CorruptError, PenstockError, RefusedError, TopicNotFound
from penstock.model.limits import MIB

INDEX: Final = "topics"  # the topic that lists the others
OWNER: Final = "~owner"  # the key of its record that says whose they are
MIGRATING: Final = "~migrating"  # and of one that is there until a migration has finished
BATCH_BYTES_MAX: Final = 64 * MIB  # the largest commit, with the names of its messages
FOR_EVER: Final = "-1"
LONG_MAX: Final = str(2**63 - 1)

OnOpened = Callable[[LogIdentity, KafkaLog], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Migration:
    """Fills topics with the records of a data directory; no broker opens them until it ends."""

    source: str  # which data directory
    may_begin: bool  # False: only if it began earlier


@dataclass(frozen=True, slots=True)
class KafkaLayout:
    """What the names of topics begin with, how many copies Kafka keeps, and whose they are."""

    prefix: str
    replication: int
    owner: str
    incarnation: int = 0  # of this node, where several write; 0 for a broker alone
    migration: Migration | None = None  # None for a broker


class _Entry(msgspec.Struct, frozen=True):
    """What the index says of a topic."""

    tenant: str
    topic_id: int
    slug: str
    declared: str
    settings: LogSettings


class KafkaStore:
    """Implements `LogStore`; made by `start`, closed after its logs."""

    durabilities = (FSYNC, REPLICATED)

    def __init__(self, work: KafkaWork, layout: KafkaLayout, clock: Clock) -> None:
        self.notes: list[str] = []  # what opening found, for people
        self.has_history = False
        self.partitions_max = PARTITIONS_MAX
        self.cache = ChunkCache(CACHE_BYTES_MAX)
        self._work = work
        self._layout = layout
        self._clock = clock
        self._index = Partition(f"{layout.prefix}.{INDEX}", 0)
        self._writing = asyncio.Lock()
        self._entries: dict[str, _Entry] = {}  # by Kafka's name of the topic
        self._owner = ""
        self._migration = ""  # that has not finished
        self._index_end = 0  # of what was read of the index
        self._dropping: set[asyncio.Task[None]] = set()
        self.before_following: list[OnOpened] = []  # what a log that is opened has to know first

    @classmethod
    async def start(
        cls,
        address: KafkaAddress,
        layout: KafkaLayout,
        clock: Clock,
        giving_up: threading.Event | None = None,
    ) -> KafkaStore:
        """Connect and see which topics there are."""
        client = await KafkaClient.start(address)
        try:
            giving_up = giving_up or threading.Event()
            store = cls(await KafkaWork.start(client, giving_up, layout.incarnation), layout, clock)
            await client.create_topic(store._index.topic, 1, layout.replication, store._compacted())
            await store._read_index()
            await store._claim()
        except BaseException:
            await client.close()
            raise
        return store

    @classmethod
    async def look(
        cls, address: KafkaAddress, layout: KafkaLayout, clock: Clock
    ) -> tuple[str, list[str]]:
        """The unfinished migration, if there is one, and the topics; nothing is changed."""
        client = await KafkaClient.start(address)
        try:
            store = cls(await KafkaWork.start(client, threading.Event()), layout, clock)
            if store._index.topic in await client.topics():
                await client.refresh()
                await store._read_index()
            return store._migration, await store.names_in_kafka()
        finally:
            await client.close()

    async def close(self) -> None:
        await self._work.close()

    async def answers(self, wait_s: float) -> bool:
        """Whether Kafka says anything within this time."""
        try:
            async with asyncio.timeout(wait_s):
                await self._work.client.offset(self._index, LATEST)
        except (TimeoutError, PenstockError):
            return False
        return True

    @property
    def is_in_doubt(self) -> bool:
        """Whether something was given up that may be stored, also later."""
        return self._work.is_in_doubt

    @property
    def on_dead(self) -> list[Callable[[], None]]:
        """Who is told, once, if a log shows that other nodes declared this one dead."""
        return self._work.on_dead

    def _name(self, identity: LogIdentity) -> str:
        return f"{self._layout.prefix}.{identity.tenant}.{identity.slug}-{identity.topic_id}"

    # The logs

    async def create(self, identity: LogIdentity, declared: str, settings: LogSettings) -> KafkaLog:
        name = self._name(identity)
        await self._work.client.create_topic(
            name, settings.partitions, self._layout.replication, self._topic_settings(settings)
        )
        await self._write(name, _entry(identity, declared, settings))
        return await self.open(identity, settings)

    async def create_copy(
        self, identity: LogIdentity, declared: str, settings: LogSettings
    ) -> CopiedPartition:
        """A topic that receives the records of another log; one that is there is continued."""
        name = self._name(identity)
        await self._work.client.create_topic(
            name, settings.partitions, self._layout.replication, self._topic_settings(settings)
        )
        await self.declare(identity, declared, settings)
        copied = CopiedPartition(self._work, Partition(name, 0))
        await copied.start()
        return copied

    async def open_new(self, identity: LogIdentity, settings: LogSettings) -> KafkaLog:
        """A log that another node made; `follow` shows all that is in it as if it came now."""
        await self._read_index()
        return await self._open(identity, settings, is_new=True)

    def follow(self, log: KeptLog) -> None:
        """Show what is in a log that `open_new` opened, now that somebody listens."""
        assert isinstance(log, KafkaLog), "a log of this store"
        self._work.follow(log)

    def drop(self, log: KeptLog) -> None:
        """Another node deletes the topic: nothing more can be stored in it."""
        assert isinstance(log, KafkaLog), "a log of this store"
        self._work.drop(log.partition)
        log.fence_off("the topic was deleted on another node")
        self._dropping.add(closing := asyncio.get_running_loop().create_task(log.close()))
        closing.add_done_callback(self._dropping.discard)

    async def open(self, identity: LogIdentity, settings: LogSettings) -> KafkaLog:
        return await self._open(identity, settings, is_new=False)

    async def _open(
        self, identity: LogIdentity, settings: LogSettings, *, is_new: bool
    ) -> KafkaLog:
        name = self._name(identity)
        entry = self._entries.get(name)
        if not identity.partition:  # it is opened first, and speaks for the others
            await self._check_partitions(name, settings)
        if entry is None:
            raise _missing(name)
        partition = Partition(name, identity.partition)
        state = await open_state(self._work, partition)
        if is_new:
            bounds, epoch, stored_bytes = state
            state = Bounds(bounds.first, bounds.first), epoch, stored_bytes
        log = KafkaLog(
            partition,
            entry.declared,
            settings,
            state=state,
            clock=self._clock,
            work=self._work,
            cache=self.cache,
        )
        await log.learn_last_stamp()
        if not is_new:
            for listener in self.before_following:
                await listener(identity, log)
            self._work.follow(log)
        return log

    async def _check_partitions(self, name: str, settings: LogSettings) -> None:
        """DamagedLog unless Kafka has the topic as Penstock created it."""
        partitions = (await self._work.client.topics()).get(name, 0)
        if not partitions:
            raise _missing(name)
        if partitions != settings.partitions:
            raise DamagedLog(
                f"topic {name!r} has {partitions} partitions in Kafka, but Penstock created it "
                f"with {settings.partitions}: messages of one name may be out of order; copy its "
                "records into a new topic",
                0,
                0,
            )

    async def delete(self, identity: LogIdentity) -> None:
        name = self._name(identity)
        await self._write(name, None)
        await self._work.client.delete_topic(name)

    async def declare(self, identity: LogIdentity, declared: str, settings: LogSettings) -> None:
        name = self._name(identity)
        await self._work.client.alter_topic(name, self._topic_settings(settings))
        await self._write(name, _entry(identity, declared, settings))

    async def describe(self, identity: LogIdentity) -> tuple[str, LogSettings]:
        entry = self._entries.get(self._name(identity))
        if entry is None:
            raise TopicNotFound(f"no log {identity.slug}-{identity.topic_id} in this store")
        return entry.declared, entry.settings

    async def names_in_kafka(self) -> list[str]:
        """All topics of Kafka whose names begin with the prefix, whoever made them."""
        found = await self._work.client.topics()
        names = [name for name in found if name.startswith(f"{self._layout.prefix}.")]
        return sorted(set(names) - {self._index.topic})

    def list(self) -> list[LogIdentity]:
        return [
            LogIdentity(entry.tenant, entry.topic_id, entry.slug)
            for entry in self._entries.values()
        ]

    # Settings of Kafka's topics

    def _safe(self) -> dict[str, str]:
        """Nothing confirmed may be lost while one broker is left that has it."""
        return {
            "min.insync.replicas": "2" if self._layout.replication >= 3 else "1",
            "unclean.leader.election.enable": "false",
        }

    def _compacted(self) -> dict[str, str]:
        return {**self._safe(), "cleanup.policy": "compact"}

    def _topic_settings(self, settings: LogSettings) -> dict[str, str]:
        """Penstock deletes old records itself, and stamps records as it likes."""
        chosen = {
            **self._safe(),
            "cleanup.policy": "delete",
            "retention.ms": FOR_EVER,
            "retention.bytes": FOR_EVER,
            "segment.bytes": str(max(settings.segment_bytes, BATCH_BYTES_MAX)),  # it holds a batch
            "max.message.bytes": str(BATCH_BYTES_MAX),
            "message.timestamp.type": "CreateTime",
            "message.timestamp.after.max.ms": LONG_MAX,
            "compression.type": "producer",
        }
        if settings.durability == FSYNC:
            chosen["flush.messages"] = "1"
        return chosen

    # The index

    async def _claim(self) -> None:
        """The topics are ours from now on; RefusedError if they are those of another directory."""
        owner, prefix = self._layout.owner, self._layout.prefix
        await self._claim_migration(self._layout.migration)
        if self._owner == owner:
            return
        if self._owner and self._entries:
            raise RefusedError(
                f"the topics in Kafka that begin with {prefix!r} belong to another data directory: "
                "start the broker with that directory, or choose another [kafka] prefix"
            )
        await self._append(OWNER, owner.encode())

    async def _claim_migration(self, migration: Migration | None) -> None:
        """RefusedError unless an unfinished migration is this one, or this one may begin."""
        prefix, source = self._layout.prefix, "" if migration is None else migration.source
        if self._migration and self._migration != source:
            raise RefusedError(
                f"the topics in Kafka that begin with '{prefix}.' belong to a migration that has "
                "not finished: run `penstock migrate` again with the same data directory, or "
                "choose another [kafka] prefix"
            )
        if migration is None or self._migration:
            return
        others = await self.names_in_kafka()
        if others or not migration.may_begin:
            raise RefusedError(
                f"Kafka has {len(others)} topics that begin with '{prefix}.' and are not of an "
                "unfinished migration of this data directory: choose another [kafka] prefix to "
                "migrate to"
            )
        await self._append(MIGRATING, source.encode())
        self._migration = source

    async def end_migration(self) -> None:
        """From here on a broker may open the topics."""
        await self._append(MIGRATING, None)
        self._migration = ""

    async def _write(self, name: str, entry: _Entry | None) -> None:
        """Store what a topic is, or that it is gone."""
        await self._append(name, None if entry is None else msgspec.json.encode(entry))
        if entry is None:
            self._entries.pop(name, None)
        else:
            self._entries[name] = entry

    async def _append(self, key: str, value: bytes | None) -> None:
        async with self._writing:
            records = Records()
            tail = encode_record_headers([])
            records.add(encode_time(0), encode_bytes(key.encode()), value, tail)
            now_ms = self._clock.stamp_us() // 1_000
            work = self._work
            data = seal(records, now_ms, now_ms, work.producer, work.sequence(self._index))
            job = KafkaJob(self._index, data)
            stored = asyncio.Event()
            work.send(job, stored.set)
            await stored.wait()
            if job.error is not None:
                raise job.error
            work.count_stored(self._index, 1)

    async def _read_index(self) -> None:
        """What is new in it since it was read last."""
        client = self._work.client
        offset, _ = await client.offset(self._index, EARLIEST)
        offset = max(offset, self._index_end)
        end, _ = await client.offset(self._index, LATEST)
        while offset < end:
            try:
                node = client.leader(self._index)
                found = await client.fetch(node, {self._index: offset}, 100, READING)
            except TROUBLES:
                await client.refresh()
                continue
            for batch in split(found[self._index].data):
                data = batch.records()
                columns = read_records(data, batch.count)
                for i in range(batch.count):
                    start, length = columns.key_starts[i], columns.key_lengths[i]
                    name = data[start : start + max(length, 0)].decode(errors="replace")
                    start, length = columns.value_starts[i], columns.value_lengths[i]
                    self._note(name, None if length < 0 else data[start : start + length])
                offset = self._index_end = batch.end_offset

    def _note(self, name: str, value: bytes | None) -> None:
        if name == OWNER:
            self._owner = (value or b"").decode(errors="replace")
        elif name == MIGRATING:
            self._migration = (value or b"").decode(errors="replace")
        elif value is None:
            self._entries.pop(name, None)
        else:
            try:
                self._entries[name] = msgspec.json.decode(value, type=_Entry)
            except msgspec.MsgspecError as broken:
                raise CorruptError(
                    f"Kafka's topic {self._index.topic!r} has an entry of {name!r} that Penstock "
                    f"did not write ({broken}): choose another [kafka] prefix, or restore it"
                ) from broken


def _entry(identity: LogIdentity, declared: str, settings: LogSettings) -> _Entry:
    return _Entry(identity.tenant, identity.topic_id, identity.slug, declared, settings)


def _missing(name: str) -> DamagedLog:
    return DamagedLog(
        f"Kafka has no topic {name!r}: restore it from a backup, or delete the topic", 0, 0
    )
