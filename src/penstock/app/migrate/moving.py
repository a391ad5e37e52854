"""Moving everything: records first, then the catalog in one transaction, then the word to begin.

Every step may be repeated after a crash. A topic in Kafka has the offsets of its source, so its end
tells how far an earlier attempt came; what was copied then is compared like everything else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from penstock.app.migrate.comparing import find_difference
from penstock.app.migrate.planning import TopicPlan, catalog_changes
from penstock.app.migrate.source import Source, SourceTopic
from penstock.app.migrate.target import Target
from penstock.catalog.moving import check, move
from penstock.log.files.layout import tenant_root
from penstock.log.kafka.copied import CopiedPartition, MisplacedError
from penstock.log.staging.area import StagingArea
from penstock.model.errors import CorruptError

TOPICS_AT_ONCE: Final = 4  # one is encoded while Kafka stores batches of others
ATTEMPTS: Final = 2  # of a topic that an earlier run, or another program, left different


class Watcher(Protocol):
    """Hears how far it is."""

    def copied(self, records: int) -> None: ...

    def compared(self, records: int) -> None: ...

    def finished(self, topic: MovedTopic) -> None: ...

    def moved_rows(self, rows: int) -> None: ...


@dataclass(frozen=True, slots=True)
class MovedTopic:
    """A topic that is in Kafka now, every record compared."""

    plan: TopicPlan
    epoch: int  # that its log has in Kafka

    @property
    def topic(self) -> SourceTopic:
        return self.plan.topic


@dataclass(slots=True)
class Outcome:
    """What was moved and verified."""

    topics: list[MovedTopic] = field(default_factory=list)
    tables: dict[str, int] = field(default_factory=dict)  # rows by table


async def migrate(
    source: Source, plans: list[TopicPlan], target: Target, watcher: Watcher
) -> Outcome:
    """Move it all; CorruptError if something cannot be moved as it is."""
    await _drop_others(source, target)
    room = asyncio.Semaphore(TOPICS_AT_ONCE)

    async def one(plan: TopicPlan) -> MovedTopic:
        async with room:
            moved = await _move_topic(plan, target, watcher)
            watcher.finished(moved)
            return moved

    outcome = Outcome(await _all([one(plan) for plan in plans]))
    epochs = {one.topic.identity.topic_id: one.epoch for one in outcome.topics}
    changes = catalog_changes(source, plans, epochs)
    moved = move(source.catalog, target.database, changes, target.cluster, watcher.moved_rows)
    problems = check(source.catalog, target.database, moved)
    if problems:
        raise CorruptError("; ".join(problems))
    outcome.tables = {table: one.rows for table, one in moved.items()}
    _copy_finished_batches(source, target.place.data)
    await target.finish()
    return outcome


async def _all(work: list[Coroutine[None, None, MovedTopic]]) -> list[MovedTopic]:
    """Do it side by side; the first that fails ends the others."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _drop_others(source: Source, target: Target) -> None:
    """Topics that an earlier attempt copied and that were deleted from the source since."""
    known = {topic.identity for topic in source.topics}
    for identity in target.store.list():
        if identity not in known:
            await target.store.delete(identity)


async def _move_topic(plan: TopicPlan, target: Target, watcher: Watcher) -> MovedTopic:
    topic, problem = plan.topic, ""
    for _ in range(ATTEMPTS):
        copied = await target.store.create_copy(topic.identity, topic.declared, plan.settings)
        try:
            await _copy(topic, copied, watcher.copied)
            problem = await find_difference(topic, copied, watcher.compared)
        except MisplacedError as misplaced:
            problem = str(misplaced)
        if not problem:
            return MovedTopic(plan, copied.epoch)
        await target.store.delete(topic.identity)
    raise CorruptError(
        f"topic {topic.declared!r} in Kafka is not what the data directory has: {problem}; see "
        "that no other program writes to it, then run `penstock migrate` again"
    )


async def _copy(topic: SourceTopic, copied: CopiedPartition, tell: Callable[[int], None]) -> None:
    """Copy what is missing."""
    if copied.end > topic.end:
        return  # the comparison says so
    await copied.fill(topic.first, topic.segments[0].body.header.created_at)
    tell(copied.end - topic.first)  # of an earlier attempt
    for batch in topic.rebatched(copied.end):
        await copied.append(batch)
        tell(batch.header.count)
    await copied.trim(topic.first)


def _copy_finished_batches(source: Source, data: Path) -> None:
    """What streaming queries of Spark have written: they may ask again after the migration."""
    for tenant in source.catalog.tenants:
        there = StagingArea(tenant_root(source.path, tenant))
        StagingArea(tenant_root(data, tenant)).take_over(there)
