"""The declared topics of a broker, in step with the catalog and the log store.

Creating: the log's directory is on disk before the catalog's row. Deleting: the row goes before the
directory. So a row always has its files, and `strays` resolves what a crash left in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from itertools import groupby

import msgspec

from penstock.broker.access.owners import Owners
from penstock.broker.access.quotas import Quotas
from penstock.broker.topic.topic import Topic as Topic
from penstock.broker.topic.topic import identity_of, topic_rows
from penstock.catalog.catalog import BindingRow, Catalog, TopicRow
from penstock.core.naming.names import (
    AUDIT_TOPIC,
    check_filter,
    check_new_topic,
    check_topic,
    quoted,
    topic_key,
)
from penstock.core.naming.placement import DEFAULT_TOPIC, Binding, Placement
from penstock.core.quotas import TOPICS
from penstock.log.broken import BrokenLog, DamagedLog
from penstock.log.interface import LogIdentity, LogSettings, LogStore, SharedLog, SharedStore
from penstock.model.clock import Clock
from penstock.model.errors import (
    InvalidTopic,
    NotAuthorized,
    RefusedError,
    TopicExists,
    TopicNotFound,
    UnavailableError,
)


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
        for _, group in groupby(rows, lambda row: row.topic_id - row.partition):
            self._add([await self._open_topic(row) for row in group])
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

    def _add(self, parts: list[Topic]) -> Topic:
        topic = parts[0]
        self._by_key[topic.key] = topic
        self._owners.put(topic.id, topic.owner)
        for part in parts:
            part.parts = parts
            self._by_id[part.id] = part
        self.placement.add_topic(topic.declared)
        for part in parts:
            self._on_open(part)
        return topic

    def get(self, name: str) -> Topic:
        """As `find`; UnavailableError when its files are damaged or missing."""
        topic = self.find(name)
        for part in topic.parts:
            if part.refusal:
                raise UnavailableError(part.refusal)
        return topic

    def find(self, name: str) -> Topic:
        """The topic of this name in any letter case; TopicNotFound, InvalidTopic."""
        topic = self._by_key.get(name) if isinstance(name, str) else None
        if topic is None and name == AUDIT_TOPIC:
            raise TopicNotFound(f"topic {quoted(name)} does not exist: nothing was recorded yet")
        topic = topic or self._by_key.get(topic_key(check_topic(name)))
        if topic is None:
            raise TopicNotFound(
                f"topic {quoted(name)} is not declared: check the name, or create it first"
            )
        return topic

    def of_name(self, name: str) -> Topic:
        """The part that holds a name. The door sees to it that the default topic exists."""
        return self._by_key[self.placement.place(name)].part_of(name)

    @property
    def has_default(self) -> bool:
        """Whether every name has a place."""
        return DEFAULT_TOPIC in self._by_key

    def has(self, name: str) -> bool:
        """Whether a topic of this name is declared, in any letter case."""
        return topic_key(name) in self._by_key

    def by_id(self, topic_id: int) -> Topic | None:
        """The part with this id, unless it was deleted."""
        return self._by_id.get(topic_id)

    def all(self) -> list[Topic]:
        """The parts of all topics: whatever has a log."""
        return list(self._by_id.values())

    def declared(self) -> list[Topic]:
        """Those that somebody declared, without what is built in."""
        return [topic for topic in self._by_key.values() if not topic.is_built_in]

    def working(self) -> list[Topic]:
        """Parts whose logs can be read."""
        return [topic for topic in self._by_id.values() if not topic.refusal]

    def ends(self) -> dict[int, int]:
        """The end of every part, by its id."""
        return {topic.id: topic.log.bounds().end for topic in self._by_id.values()}

    async def create(
        self, name: str, settings: LogSettings, *, exist_ok: bool, owner: str | None = None
    ) -> Topic:
        """Declare a topic; with `exist_ok` an existing one is left as it is.

        `owner` is the user whose quotas count it.
        """
        key = topic_key(check_topic(name))
        async with self.changing():
            existing = self._by_key.get(key)
            if existing is not None:
                if exist_ok:
                    return existing
                raise TopicExists(
                    f"topic {quoted(existing.declared)} already exists: use it, or choose a name "
                    "that differs by more than letter case"
                )
            try:
                return await self._create(name, settings, owner, is_automatic=False)
            except TopicExists:  # another node was quicker
                if not exist_ok or key not in self._by_key:
                    raise
                return self._by_key[key]

    async def create_built_in(self, name: str, settings: LogSettings) -> Topic:
        """The broker's own topic of this name, made if it is missing; no quota counts it."""
        async with self.changing():
            existing = self._by_key.get(name)
            try:
                return existing or await self._make(name, settings)
            except TopicExists:  # another node was quicker
                return self._by_key[name]

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
        self._check_partitions(settings)
        topic_id = await self._catalog.reserve_topic_id(settings.partitions)
        rows = topic_rows(
            self._catalog.tenant,
            topic_id,
            name,
            settings,
            self._clock.now_us(),
            is_automatic=is_automatic,
            owner=owner,
        )
        identity = identity_of(rows[0])
        parts: list[Topic] = []
        try:
            parts.append(Topic(rows[0], await self._store.create(identity, name, settings)))
            for row in rows[1:]:
                parts.append(Topic(row, await self._store.open(identity_of(row), settings)))
        except UnavailableError:
            await self._undo(identity, parts)
            raise
        try:
            await self._catalog.insert_topic(*rows)
        except BaseException as failed:
            await self._undo(identity, parts)
            if isinstance(failed, TopicExists) and isinstance(self._store, SharedStore):
                await self._follow()
            raise
        return self._add(parts)

    async def _undo(self, identity: LogIdentity, parts: list[Topic]) -> None:
        """The topic is not created after all."""
        for part in parts:
            await part.log.close()
        await self._remove_log(identity)

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
        async with self.changing():
            if self._automatic_room > 0 and topic_key(name) not in self._by_key:
                with suppress(TopicExists):  # another node was quicker
                    await self._create(name, settings, owner, is_automatic=True)

    @property
    def _automatic_room(self) -> int:
        """How many topics publishes may still create."""
        if not self.automatic_max:
            return 0
        return self.automatic_max - sum(topic.is_automatic for topic in self._by_key.values())

    async def alter(self, name: str, settings: LogSettings) -> Topic:
        """New settings; records already stored keep the promise they were stored under."""
        async with self.changing():
            topic = self.get(name)
            self._check_history(settings)
            self._check_durability(settings)
            count = len(topic.parts)
            if settings.partitions != count:
                raise RefusedError(
                    f"the partitions of topic {quoted(topic.declared)} cannot be changed: it has "
                    f"{count}, and messages of one name would be out of order; create another topic"
                )
            await self._catalog.alter_topic(topic.id, _settings_text(settings), count)
            try:
                await self._store.declare(topic.identity, topic.declared, settings)
            except BaseException:
                earlier = _settings_text(topic.log.settings)
                await self._catalog.alter_topic(topic.id, earlier, count)
                raise
            for part in topic.parts:
                part.log.settings = settings
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

    def _check_partitions(self, settings: LogSettings) -> None:
        most = self._store.partitions_max
        if settings.partitions > most:
            raise RefusedError(
                f"partitions {settings.partitions} is not possible where this broker stores its "
                f"topics: use {most}, or store topics in Kafka ([log] backend)"
            )

    async def delete(self, name: str) -> Topic:
        """Forget the topic, its consumers and its records."""
        async with self.changing():
            topic = self.find(name)
            _check_declared(topic, "deleted")
            self.placement.remove_topic(topic.declared)
            try:
                await self._catalog.delete_topic(topic.id, len(topic.parts))
            except BaseException:
                self.placement.add_topic(topic.declared)
                raise
            await self._forget(topic)
            return topic

    async def delete_all(self) -> None:
        """Delete every topic, bound or the broker's own, too: the tenant is being removed."""
        async with self.changing():
            for topic in list(self._by_key.values()):
                await self._catalog.delete_topic(topic.id, len(topic.parts))
                await self._forget(topic)

    async def _forget(self, topic: Topic) -> None:
        """Its row is gone: its files go."""
        del self._by_key[topic.key]
        self._owners.pop(topic.id)
        for part in topic.parts:
            del self._by_id[part.id]
            part.is_gone = True
            self._on_delete(part)
        for part in topic.parts:
            await part.log.close()
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

    # What other nodes changed

    async def follow(self) -> None:
        """Take over topics, settings and bindings that other nodes made, changed or removed."""
        async with self.changing():
            await self._follow()

    async def _follow(self) -> None:
        rows, bindings, _ = await self._catalog.load()
        by_id = {row.topic_id: row for row in rows}
        wanted = [(one.filter, by_id[one.topic_id].declared) for one in bindings]
        opened: list[list[Topic]] = []
        for topic_id, group in groupby(rows, lambda row: row.topic_id - row.partition):
            if topic_id not in self._by_id:
                opened.append([await self._open_new(row) for row in group])
        gone = [topic for topic in self._by_key.values() if topic.id not in by_id]
        # Without an await: nobody sees a name without its place.
        if gone or wanted != [(one.filter, self._spelling(one.topic)) for one in self._bound()]:
            for binding in self._bound():
                self.placement.unbind(binding.filter)
        for topic in gone:
            self.placement.remove_topic(topic.declared)
            self._let_go(topic)
        for parts in opened:
            self._add(parts)
            self._begin(parts)
        for filter, declared in wanted:
            self.placement.bind(filter, declared)
        for row in rows:
            self._by_id[row.topic_id].log.settings = msgspec.json.decode(
                row.settings, type=LogSettings
            )

    def _begin(self, parts: list[Topic]) -> None:
        """Whoever listens to commits hears all of these logs, also what came before."""
        store = self._store
        assert isinstance(store, SharedStore), "nodes store topics where all of them find them"
        for part in parts:
            store.follow(part.log)

    def _bound(self) -> tuple[Binding, ...]:
        return self.placement.bindings

    def _spelling(self, key: str) -> str:
        return self._by_key[key].declared

    async def _open_new(self, row: TopicRow) -> Topic:
        """A part that another node made: everything in it reaches the readers of this one."""
        store = self._store
        assert isinstance(store, SharedStore), "nodes store topics where all of them find them"
        settings = msgspec.json.decode(row.settings, type=LogSettings)
        return Topic(row, await store.open_new(identity_of(row), settings))

    def _let_go(self, topic: Topic) -> None:
        """Another node deleted a topic: its log there is gone, or will be."""
        del self._by_key[topic.key]
        self._owners.pop(topic.id)
        store = self._store
        assert isinstance(store, SharedStore), "nodes store topics where all of them find them"
        for part in topic.parts:
            del self._by_id[part.id]
            part.is_gone = True
            self._on_delete(part)
            store.drop(part.log)

    def learn_fences(self, known: Mapping[int, Mapping[int, int]]) -> None:
        """Offsets of fences, by the id of a part and by incarnation."""
        for topic_id, fences in known.items():
            part = self._by_id.get(topic_id)
            if part is not None and isinstance(part.log, SharedLog):
                part.log.learn_fences(fences)

    async def bind(self, filter: str, name: str) -> None:
        """Place names that match from now on; durable on return."""
        async with self.changing():
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
        async with self.changing():
            check_filter(filter)
            if all(binding.filter != filter for binding in self.placement.bindings):
                self.placement.unbind(filter)  # says what is wrong
            await self._catalog.delete_binding(filter)
            self.placement.unbind(filter)

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
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
            for topic in self._by_id.values():
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
