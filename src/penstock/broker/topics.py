"""The declared topics of a broker, in step with the catalog and the log store.

Creating: the log's directory is on disk before the catalog's row. Deleting: the row goes before the
directory. So a row always has its files, and `strays` resolves what a crash left in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Final

import msgspec

from penstock.broker.owners import Owners
from penstock.broker.quotas import Quotas
from penstock.catalog.catalog import BindingRow, Catalog, TopicRow
from penstock.core.names import (
    AUDIT_TOPIC,
    check_filter,
    check_new_topic,
    check_topic,
    quoted,
    topic_key,
    topic_slug,
)
from penstock.core.placement import DEFAULT_TOPIC, Placement
from penstock.core.quotas import TOPICS
from penstock.log.broken import BrokenLog, DamagedLog
from penstock.log.format.batch import Batch
from penstock.log.interface import KeptLog, LogIdentity, LogSettings, LogStore
from penstock.model.clock import Clock
from penstock.model.errors import (
    InvalidTopic,
    NotAuthorized,
    RefusedError,
    TopicExists,
    TopicNotFound,
    UnavailableError,
)
from penstock.model.record import TenantId, TopicId, TopicInfo

TROUBLES_SHOWN_MAX: Final = 3  # of one topic; `penstock log verify` finds them all


class Topic:
    """A declared topic and its log. `refusal` says why it is unavailable; empty if it is not."""

    def __init__(self, row: TopicRow, log: KeptLog, refusal: str = "") -> None:
        self.id = row.topic_id
        self.key = row.key
        self.declared = row.declared
        self.is_automatic = row.is_automatic == 1  # made by a publish
        self.identity = identity_of(row)
        self.log = log
        self.refusal = refusal
        self.owner = row.owner  # the user who made it; None: nobody
        self.over_quota = ""  # why its owner's quota of stored bytes refuses publishes
        self.is_gone = False  # deleted, or closed with the broker
        self.is_built_in = row.declared == AUDIT_TOPIC  # only the broker itself writes to it

    async def read(self, offset: int) -> list[Batch]:
        """As Log.read; suspends while what holds the log is away, as a database may be."""
        while True:
            try:
                return await self.log.read(offset)
            except UnavailableError as away:
                if self.refusal or self.is_gone:
                    raise
                await asyncio.sleep(away.retry_after_s)

    async def describe(self) -> TopicInfo:
        settings = self.log.settings
        first, end = self.log.bounds()
        history = self.log.history
        return TopicInfo(
            self.declared,
            self.id,
            first,
            end,
            await self.log.stored_bytes(),
            settings.retention_age_s,
            settings.retention_bytes,
            settings.durability,
            self.log.epoch,
            not self.refusal,
            "; ".join(self.log.damage[:TROUBLES_SHOWN_MAX]),
            history.describe(settings.history_age_s) if history and settings.history else None,
        )


def identity_of(row: TopicRow) -> LogIdentity:
    return LogIdentity(row.tenant, row.topic_id, topic_slug(row.declared))


def topic_row(
    tenant: TenantId,
    topic_id: TopicId,
    declared: str,
    settings: LogSettings,
    created_at: int,
    *,
    is_automatic: bool = False,
    owner: str | None = None,
) -> TopicRow:
    """The row of a topic that is declared now."""
    text = msgspec.json.encode(asdict(settings)).decode()
    key = topic_key(declared)
    return TopicRow(tenant, topic_id, key, declared, text, created_at, int(is_automatic), owner)


class Topics:
    """All topics of the tenant. Changes happen one at a time.

    `on_open` hears of every log; `on_delete` of a topic that is forgotten, before its files go.
    """

    def __init__(
        self,
        catalog: Catalog,
        store: LogStore,
        clock: Clock,
        on_open: Callable[[Topic], None],
        on_delete: Callable[[Topic], None],
        *,
        quotas: Quotas,
    ) -> None:
        self.placement = Placement()
        self.automatic_max = 0  # topics that publishes may create
        self._quotas = quotas
        self._catalog = catalog
        self._store = store
        self._clock = clock
        self._on_open = on_open
        self._on_delete = on_delete
        self._by_key: dict[str, Topic] = {}
        self._by_id: dict[int, Topic] = {}
        self._owners: Owners[int] = Owners()  # by topic id
        self.notes: list[str] = []  # what was found at the start, for people
        self._leftovers: set[LogIdentity] = set()  # logs of no topic, whose files could not go yet
        self._turn = asyncio.Lock()
        self._is_closed = False

    async def open(self, rows: list[TopicRow], bindings: list[BindingRow]) -> None:
        """Open the logs of all rows.

        A topic whose files are damaged or missing is there and unavailable; the others work.
        """
        for row in rows:
            self._add(await self._open_topic(row))
        for binding in bindings:
            self.placement.bind(binding.filter, self._by_id[binding.topic_id].declared)

    async def _open_topic(self, row: TopicRow) -> Topic:
        settings = msgspec.json.decode(row.settings, type=LogSettings)
        try:
            return Topic(row, await self._store.open(identity_of(row), settings))
        except DamagedLog as broken:
            epoch, end = broken.epoch, broken.end
            if not epoch:
                epoch, end = await self._catalog.level(row.topic_id)
            refusal = (
                f"topic {quoted(row.declared)} is unavailable: {broken}; `penstock log verify` "
                "shows the damage: restore the files from a backup and start again, or delete "
                "the topic"
            )
            self.notes.append(refusal)
            return Topic(row, BrokenLog(refusal, settings, epoch, end), refusal)

    def _add(self, topic: Topic) -> None:
        self._by_key[topic.key] = topic
        self._by_id[topic.id] = topic
        self._owners.put(topic.id, topic.owner)
        self.placement.add_topic(topic.declared)
        self._on_open(topic)

    def get(self, name: str) -> Topic:
        """As `find`; UnavailableError when its files are damaged or missing."""
        topic = self.find(name)
        if topic.refusal:
            raise UnavailableError(topic.refusal)
        return topic

    def find(self, name: str) -> Topic:
        """The topic of this name in any letter case; TopicNotFound, InvalidTopic."""
        topic = self._by_key.get(name) if isinstance(name, str) else None
        if topic is None and name == AUDIT_TOPIC:
            raise TopicNotFound(f"topic {quoted(name)} does not exist: nothing was recorded yet")
        if topic is None:
            topic = self._by_key.get(topic_key(check_topic(name)))
        if topic is None:
            raise TopicNotFound(f"topic {quoted(name)} is not declared: create it first")
        return topic

    def of_name(self, name: str) -> Topic:
        """The topic that holds a name. The door sees to it that the default topic exists."""
        return self._by_key[self.placement.place(name)]

    @property
    def has_default(self) -> bool:
        """Whether every name has a place."""
        return DEFAULT_TOPIC in self._by_key

    def has(self, name: str) -> bool:
        """Whether a topic of this name is declared, in any letter case."""
        return topic_key(name) in self._by_key

    def by_id(self, topic_id: int) -> Topic | None:
        """The topic with this id, unless it was deleted."""
        return self._by_id.get(topic_id)

    def all(self) -> list[Topic]:
        return list(self._by_key.values())

    def declared(self) -> list[Topic]:
        """Those that somebody declared, without what is built in."""
        return [topic for topic in self._by_key.values() if not topic.is_built_in]

    def working(self) -> list[Topic]:
        """Topics whose logs can be read."""
        return [topic for topic in self._by_key.values() if not topic.refusal]

    def ends(self) -> dict[int, int]:
        """The end of every topic, by its id."""
        return {topic.id: topic.log.bounds().end for topic in self._by_key.values()}

    async def create(
        self, name: str, settings: LogSettings, *, exist_ok: bool, owner: str | None = None
    ) -> Topic:
        """Declare a topic; with `exist_ok` an existing one is left as it is.

        `owner` is the user whose quotas count it.
        """
        key = topic_key(check_topic(name))
        async with self._changing():
            existing = self._by_key.get(key)
            if existing is not None:
                if exist_ok:
                    return existing
                raise TopicExists(
                    f"topic {quoted(existing.declared)} already exists: use it, or choose a name "
                    "that differs by more than letter case"
                )
            return await self._create(name, settings, owner, is_automatic=False)

    async def create_built_in(self, name: str, settings: LogSettings) -> Topic:
        """The broker's own topic of this name, made if it is missing; no quota counts it."""
        async with self._changing():
            existing = self._by_key.get(name)
            return existing or await self._make(name, settings)

    async def _create(
        self, name: str, settings: LogSettings, owner: str | None, *, is_automatic: bool
    ) -> Topic:
        check_new_topic(name)
        self._quotas.check(TOPICS, len(self.declared()))
        if owner is not None:
            self._quotas.check_user(TOPICS, self._owners.count_of(owner))
        return await self._make(name, settings, owner, is_automatic=is_automatic)

    async def _make(
        self,
        name: str,
        settings: LogSettings,
        owner: str | None = None,
        *,
        is_automatic: bool = False,
    ) -> Topic:
        self._check_history(settings)
        self._check_durability(settings)
        topic_id = await self._catalog.reserve_topic_id()
        row = topic_row(
            self._catalog.tenant,
            topic_id,
            name,
            settings,
            self._clock.now_us(),
            is_automatic=is_automatic,
            owner=owner,
        )
        identity = identity_of(row)
        try:
            log = await self._store.create(identity, name, settings)
        except UnavailableError:
            await self._remove_log(identity)
            raise
        try:
            await self._catalog.insert_topic(row)
        except BaseException:
            await log.close()
            await self._remove_log(identity)
            raise
        topic = Topic(row, log)
        self._add(topic)
        return topic

    def wanted_by(self, name: str) -> str:
        """The topic that a publish under a checked name creates first; empty if it creates none."""
        if self._automatic_room <= 0:
            return ""
        first = self.placement.homeless(name)
        try:
            return check_new_topic(first) if first else ""
        except InvalidTopic:
            return ""  # a fine name for messages: `default` takes them

    async def create_wanted(
        self, name: str, settings: LogSettings, owner: str | None = None
    ) -> None:
        """Create what `wanted_by` said, unless it is there by now or there are enough."""
        async with self._changing():
            if self._automatic_room > 0 and topic_key(name) not in self._by_key:
                await self._create(name, settings, owner, is_automatic=True)

    @property
    def _automatic_room(self) -> int:
        """How many topics publishes may still create."""
        if not self.automatic_max:
            return 0
        return self.automatic_max - sum(topic.is_automatic for topic in self._by_key.values())

    async def alter(self, name: str, settings: LogSettings) -> Topic:
        """New settings; records already stored keep the promise they were stored under."""
        async with self._changing():
            topic = self.get(name)
            self._check_history(settings)
            self._check_durability(settings)
            await self._catalog.alter_topic(topic.id, _settings_text(settings))
            try:
                await self._store.declare(topic.identity, topic.declared, settings)
            except BaseException:
                await self._catalog.alter_topic(topic.id, _settings_text(topic.log.settings))
                raise
            topic.log.settings = settings
            return topic

    def _check_history(self, settings: LogSettings) -> None:
        if settings.history and not self._store.has_history:
            raise RefusedError(
                "history true needs a place for the table: start the broker with [history] url, a "
                "directory or s3://BUCKET/PREFIX"
            )

    @property
    def weakest_durability(self) -> str:
        """What the least an acknowledgement can mean here is."""
        return self._store.durabilities[-1]

    def _check_durability(self, settings: LogSettings) -> None:
        known = self._store.durabilities
        if settings.durability not in known:
            raise RefusedError(
                f"durability {settings.durability!r} does not exist where this broker stores its "
                f"topics: use {' or '.join(map(repr, known))}"
            )

    async def delete(self, name: str) -> Topic:
        """Forget the topic, its consumers and its records."""
        async with self._changing():
            topic = self.find(name)
            _check_declared(topic, "deleted")
            self.placement.remove_topic(topic.declared)
            try:
                await self._catalog.delete_topic(topic.id)
            except BaseException:
                self.placement.add_topic(topic.declared)
                raise
            await self._forget(topic)
            return topic

    async def delete_all(self) -> None:
        """Delete every topic, bound or the broker's own, too: the tenant is being removed."""
        async with self._changing():
            for topic in self.all():
                await self._catalog.delete_topic(topic.id)
                await self._forget(topic)

    async def _forget(self, topic: Topic) -> None:
        """Its row is gone: its files go."""
        del self._by_key[topic.key], self._by_id[topic.id]
        self._owners.pop(topic.id)
        topic.is_gone = True
        self._on_delete(topic)
        await topic.log.close()
        await self._remove_log(topic.identity)

    async def _remove_log(self, identity: LogIdentity) -> None:
        """Remove the files of a log that is nobody's; what cannot go now goes later.

        No row speaks of it, so it is gone for everybody. Upkeep tries again, and so does `close`.
        """
        try:
            await self._store.delete(identity)
            self._leftovers.discard(identity)
        except OSError:  # no descriptor is left, perhaps
            self._leftovers.add(identity)

    async def remove_leftovers(self) -> None:
        """Try again to remove files of logs that are nobody's."""
        for identity in list(self._leftovers):
            await self._remove_log(identity)

    async def bind(self, filter: str, name: str) -> None:
        """Place names that match from now on; durable on return."""
        async with self._changing():
            topic = self.find(name)
            _check_declared(topic, "bound to")
            check_filter(filter)  # also says what is wrong with one that is not text
            if self.placement.bind(filter, topic.declared):
                try:
                    await self._catalog.insert_binding(filter, topic.id)
                except BaseException:
                    self.placement.unbind(filter)
                    raise

    async def unbind(self, filter: str) -> None:
        async with self._changing():
            check_filter(filter)
            if all(binding.filter != filter for binding in self.placement.bindings):
                self.placement.unbind(filter)  # says what is wrong
            await self._catalog.delete_binding(filter)
            self.placement.unbind(filter)

    @asynccontextmanager
    async def _changing(self) -> AsyncIterator[None]:
        """One change at a time, and none once the logs are being closed."""
        async with self._turn:
            if self._is_closed:
                raise UnavailableError("the broker is closed: open it again")
            yield

    async def close(self) -> None:
        """Let the change that is being made finish, then close every log."""
        async with self._turn:
            self._is_closed = True
            await self.remove_leftovers()
            for topic in self._by_key.values():
                topic.is_gone = True
                await topic.log.close()


def _check_declared(topic: Topic, what: str) -> None:
    if topic.is_built_in:
        raise NotAuthorized(
            f"topic {quoted(topic.declared)} is built in and cannot be {what}: only the broker "
            "writes to it; its retention can be changed"
        )


def _settings_text(settings: LogSettings) -> str:
    return msgspec.json.encode(settings).decode()
