"""What `penstock migrate` does and says. Needs the packages of Kafka and PostgreSQL."""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path
from typing import Any, Final

from penstock.app.migrate.moving import MovedTopic, Outcome, migrate
from penstock.app.migrate.planning import TopicPlan, Wishes, estimate_s, plan_topics
from penstock.app.migrate.source import Source, open_source
from penstock.app.migrate.target import TargetPlace, check_place, look, open_target
from penstock.broker.settings import BrokerSettings
from penstock.cli.output import (
    EXIT_DONE,
    Progress,
    counted,
    human_bytes,
    show_facts,
    show_json,
    show_table,
    warn,
)
from penstock.cli.target import filled_path

# Tables of the catalog whose rows people have a word for.
_WORDS: Final = (
    ("tenants", "tenant"),
    ("credentials", "user"),
    ("access_keys", "key"),
    ("roles", "role"),
    ("rules", "rule"),
    ("bindings", "binding"),
    ("consumers", "consumer"),
    ("groups", "group"),
    ("sessions", "session"),
    ("subscriptions", "subscription"),
    ("retained", "retained message"),
    ("wills", "will"),
    ("clients", "known client"),
)


def migrate_directory(options: argparse.Namespace, settings: BrokerSettings, data: Path) -> int:
    path = filled_path(options)
    place = TargetPlace(settings, data)
    check_place(place, path)
    with open_source(path) as source:
        wishes = Wishes(options.durability, options.without_history)
        plans = plan_topics(source, wishes)
        if options.dry_run:
            is_continued = asyncio.run(look(place, source.origin))
            _show_plan(source, plans, place, is_continued=is_continued, as_json=options.json)
            return EXIT_DONE
        started_s = time.monotonic()
        watcher = _Telling(source)
        outcome = asyncio.run(_migrate(source, plans, place, watcher))
        watcher.progress.done()
        _show_outcome(outcome, options.to, time.monotonic() - started_s, as_json=options.json)
    return EXIT_DONE


async def _migrate(
    source: Source, plans: list[TopicPlan], place: TargetPlace, watcher: _Telling
) -> Outcome:
    async with open_target(place, source.origin) as target:
        return await migrate(source, plans, target, watcher)


class _Telling:
    """Says on standard error how far it is: on a terminal all the time, else topic by topic."""

    def __init__(self, source: Source) -> None:
        self.progress = Progress("migrating")
        self._records = source.records
        self._topics = len(source.topics)
        self._copied = self._compared = self._finished = self._rows = 0

    def copied(self, records: int) -> None:
        self._copied += records
        self._tell()

    def compared(self, records: int) -> None:
        self._compared += records
        self._tell()

    def _tell(self) -> None:
        self.progress.tell(
            f"{self._copied:,} of {self._records:,} records copied, {self._compared:,} compared"
        )

    def finished(self, topic: MovedTopic) -> None:
        self._finished += 1
        self.progress.done()
        warn(
            f"topic {topic.topic.declared} is in Kafka: {counted(topic.plan.records, 'record')} "
            f"compared ({self._finished} of {self._topics} topics)"
        )

    def moved_rows(self, rows: int) -> None:
        self._rows += rows
        self.progress.tell(f"{counted(self._rows, 'row')} of the catalog")


def _show_plan(
    source: Source,
    plans: list[TopicPlan],
    place: TargetPlace,
    *,
    is_continued: bool,
    as_json: bool,
) -> None:
    seconds = estimate_s(source)
    tables = {table: source.catalog.count(table) for table in source.catalog.tables}
    if as_json:
        facts = [_plan_facts(plan) for plan in plans]
        show_json(
            {"topics": facts, "tables": tables, "seconds": seconds, "continues": is_continued}
        )
        return
    show_facts(
        [
            (
                "from",
                f"{source.path}: {counted(len(plans), 'topic')}, "
                f"{counted(source.records, 'record')}, {human_bytes(source.stored_bytes)}",
            ),
            ("to", place.shown),
            ("catalog", _in_words(tables)),
            ("takes", f"about {_rounded(seconds)}"),
        ]
    )
    print()
    show_table(
        ("topic", "first", "end", "size", "to note"),
        [
            (
                plan.topic.declared,
                plan.topic.first,
                plan.topic.end,
                human_bytes(plan.topic.stored_bytes),
                "; ".join(plan.notes) or "-",
            )
            for plan in plans
        ],
    )
    print()
    if is_continued:
        print("An earlier attempt will be continued.")
    print("Nothing was changed. Run the same command without --dry-run to migrate.")


def _plan_facts(plan: TopicPlan) -> dict[str, Any]:
    topic = plan.topic
    return {
        "tenant": topic.identity.tenant,
        "topic": topic.declared,
        "id": topic.identity.topic_id,
        "first": topic.first,
        "end": topic.end,
        "records": plan.records,
        "bytes": topic.stored_bytes,
        "durability": plan.settings.durability,
        "notes": plan.notes,
    }


def _rounded(seconds: float) -> str:
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5_400 else f"{seconds / 3_600:.1f} h"


def _in_words(tables: dict[str, int]) -> str:
    parts = [counted(tables[table], word) for table, word in _WORDS if tables.get(table)]
    return ", ".join(parts)


def _show_outcome(outcome: Outcome, config: str, took_s: float, *, as_json: bool) -> None:
    records = sum(one.plan.records for one in outcome.topics)
    if as_json:
        topics = [_plan_facts(one.plan) | {"verified": True} for one in outcome.topics]
        show_json({"topics": topics, "tables": outcome.tables, "seconds": took_s})
        return
    show_table(
        ("topic", "first", "end", "records", "verified"),
        [
            (one.topic.declared, one.topic.first, one.topic.end, one.plan.records, "identical")
            for one in outcome.topics
        ],
    )
    rows = sum(outcome.tables.values())
    print()
    print(
        f"verified: {counted(len(outcome.topics), 'topic')}, {counted(records, 'record')} with "
        f"offset, time, name, payload, headers, publisher and marks"
    )
    print(f"verified: {counted(rows, 'row')} of the catalog: {_in_words(outcome.tables)}")
    print(f"done in {_rounded(took_s)}; start the broker: penstock serve --config {config}")
