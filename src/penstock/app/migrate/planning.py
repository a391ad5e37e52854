"""What a migration will do: topics and their settings in Kafka, and about how long it takes."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import msgspec

from penstock.app.migrate.source import Source, SourceTopic
from penstock.catalog.moving import Change
from penstock.log.interface import FSYNC, REPLICATED, LogSettings
from penstock.log.kafka.records.mapping import encode_batch
from penstock.model.errors import RefusedError

SAMPLE_S_MAX: Final = 1.0
# Sending, storing and reading back take about as long as reading and encoding, which is measured.
PASSES: Final = 3.0
FILLED_PER_S: Final = 2_000_000  # control records that one Kafka broker takes
ROWS_PER_S: Final = 10_000  # of the catalog, written and read again
TOPIC_S: Final = 0.5  # to create one and to wait for its leader

# The column with the offset in every table that has an epoch.
OFFSET_COLUMNS: Final = ("next_offset", "level_offset", "end_offset")


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the caller chose."""

    durability: str = ""  # of all topics; empty: as close to what they have as Kafka offers
    without_history: bool = False  # leave records behind that only a history has


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """One topic and what it becomes."""

    topic: SourceTopic
    settings: LogSettings
    notes: list[str] = field(default_factory=list)

    @property
    def records(self) -> int:
        return self.topic.end - self.topic.first


def plan_topics(source: Source, wishes: Wishes) -> list[TopicPlan]:
    """RefusedError if something would be left behind that nobody agreed to leave."""
    plans = [_plan(topic, wishes) for topic in source.topics]
    left = [plan for plan in plans if plan.topic.history_records]
    if left and not wishes.without_history:
        names = ", ".join(repr(plan.topic.declared) for plan in left)
        raise RefusedError(
            f"records of {names} are only in the history of the topic, which does not move to "
            "Kafka: copy them into tables with `penstock pipeline run archive` first, or import "
            "them into another topic (`penstock history import`); then migrate with "
            "--without-history, which leaves them where they are"
        )
    return plans


def _plan(topic: SourceTopic, wishes: Wishes) -> TopicPlan:
    old = topic.settings
    notes = []
    durability = wishes.durability or (FSYNC if old.durability == FSYNC else REPLICATED)
    if durability != old.durability:
        notes.append(f"durability {old.durability} becomes {durability}")
    if topic.history_records:
        count = "an unknown number of" if topic.history_records < 0 else topic.history_records
        notes.append(f"{count} records stay behind in the history")
    if old.history:
        notes.append("no history any more")
    settings = replace(old, durability=durability, history=False, history_age_s=None, partitions=1)
    return TopicPlan(topic, settings, notes)


def estimate_s(source: Source) -> float:
    """About how long it will take; reads and encodes a part of the records to see."""
    records = source.records
    filled = sum(topic.first for topic in source.topics)
    rows = sum(source.catalog.count(table) for table in source.catalog.tables)
    took_s, sampled = _sample(source)
    per_record = took_s / sampled if sampled else 0.0
    return (
        records * per_record * PASSES
        + filled / FILLED_PER_S
        + rows / ROWS_PER_S
        + len(source.topics) * TOPIC_S
    )


def _sample(source: Source) -> tuple[float, int]:
    started_s, sampled = time.perf_counter(), 0
    largest = sorted(source.topics, key=lambda topic: topic.first - topic.end)
    for topic in largest:
        for batch in topic.rebatched(topic.first):
            encode_batch(batch, (0, 0), 0)
            sampled += batch.header.count
            if time.perf_counter() - started_s > SAMPLE_S_MAX:
                return time.perf_counter() - started_s, sampled
    return time.perf_counter() - started_s, sampled


def catalog_changes(
    source: Source, plans: list[TopicPlan], epochs: dict[int, int]
) -> dict[str, Change]:
    """What rows of the catalog become: positions have the epoch that their log has in Kafka.

    An epoch of the data directory means nothing there, so records that were lost in an earlier one
    move positions back now.
    """
    changes: dict[str, Change] = {"topics": _with_settings(plans)}
    topics = {topic.identity.topic_id: topic for topic in source.topics}
    for table in source.catalog.tables:
        columns = source.catalog.columns(table)
        if "epoch" in columns:
            (offset,) = [column for column in OFFSET_COLUMNS if column in columns]
            changes[table] = _with_epochs(topics, epochs, offset)
    return changes


def _with_settings(plans: list[TopicPlan]) -> Change:
    texts = {
        plan.topic.identity.topic_id: msgspec.json.encode(asdict(plan.settings)).decode()
        for plan in plans
    }

    def change(row: dict[str, Any]) -> bool:
        row["settings"] = texts[row["topic_id"]]
        return True

    return change


def _with_epochs(topics: dict[int, SourceTopic], epochs: dict[int, int], offset: str) -> Change:
    ends: dict[tuple[int, int], int] = {}  # topic id and epoch -> up to where positions are right

    def change(row: dict[str, Any]) -> bool:
        place = row["topic_id"], row["epoch"]
        if place not in ends:
            ends[place] = topics[place[0]].kept_end(place[1])
        row["epoch"], row[offset] = epochs[place[0]], min(row[offset], ends[place])
        return True

    return change
