"""A declared topic, its parts, and the rows that the catalog has of it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import asdict
from typing import Final

import msgspec

from penstock.catalog.catalog import TopicRow
from penstock.core.naming.names import (
    AUDIT_TOPIC,
    topic_key,
    topic_slug,
)
from penstock.log.format.batch import Batch
from penstock.log.interface import KeptLog, LogIdentity, LogSettings
from penstock.log.kafka.partitioner import partition_of
from penstock.model.errors import (
    PenstockError,
    UnavailableError,
)
from penstock.model.record import PartitionInfo, TenantId, TopicId, TopicInfo

TROUBLES_SHOWN_MAX: Final = 3  # of one topic; `penstock log verify` finds them all


class Topic:
    """A declared topic and its log. `refusal` says why it is unavailable; empty if it is not.

    A topic of several partitions has a part for each, with a log and an id of its own. The first
    part is the topic; `parts` holds them all.
    """

    def __init__(self, row: TopicRow, log: KeptLog, refusal: str = "") -> None:
        self.id = row.topic_id
        self.key = topic_key(row.declared)
        self.partition = row.partition
        self.parts = [self]
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

    def part_of(self, name: str) -> Topic:
        """The part that holds what is published under a name, as Kafka's own clients place it."""
        parts = self.parts
        return self if len(parts) == 1 else parts[partition_of(name.encode(), len(parts))]

    async def learn_count(self) -> None:
        """Let the log count what it can; where it is away, its count stays an upper bound."""
        with suppress(PenstockError):
            await self.log.learn_count()

    async def describe(self) -> TopicInfo:
        settings = self.log.settings
        bounds = [part.log.bounds() for part in self.parts]
        damage = [trouble for part in self.parts for trouble in part.log.damage]
        history = self.log.history
        for part in self.parts:
            await part.learn_count()
        return TopicInfo(
            topic=self.declared,
            id=self.id,
            first_offset=sum([first for first, _ in bounds]),
            end_offset=sum([end for _, end in bounds]),
            bytes=sum([await part.log.stored_bytes() for part in self.parts]),
            retention_age=settings.retention_age_s,
            retention_bytes=settings.retention_bytes,
            durability=settings.durability,
            epoch=self.log.epoch,
            is_available=not any(part.refusal for part in self.parts),
            trouble="; ".join(damage[:TROUBLES_SHOWN_MAX]),
            history=history.describe(settings.history_age_s)
            if history and settings.history
            else None,
            partitions=self._describe_parts() if len(self.parts) > 1 else (),
            records=sum([part.log.count_from(0) for part in self.parts]),
        )

    def _describe_parts(self) -> tuple[PartitionInfo, ...]:
        return tuple(
            PartitionInfo(part.partition, *part.log.bounds(), part.log.epoch, not part.refusal)
            for part in self.parts
        )


def identity_of(row: TopicRow) -> LogIdentity:
    topic_id = row.topic_id - row.partition
    return LogIdentity(row.tenant, topic_id, topic_slug(row.declared), row.partition)


def topic_rows(
    tenant: TenantId,
    topic_id: TopicId,
    declared: str,
    settings: LogSettings,
    created_at: int,
    *,
    is_automatic: bool = False,
    owner: str | None = None,
) -> list[TopicRow]:
    """The rows of a topic that is declared now, one for each partition."""
    text = msgspec.json.encode(asdict(settings)).decode()
    key = topic_key(declared)
    return [
        TopicRow(
            tenant=tenant,
            topic_id=TopicId(topic_id + number),
            key=f"{key}/{number}" if number else key,
            declared=declared,
            settings=text,
            created_at=created_at,
            is_automatic=int(is_automatic),
            owner=owner,
            partition=number,
        )
        for number in range(settings.partitions)
    ]
