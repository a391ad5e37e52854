"""Dispatch: messages meet the filters of persistent sessions; how the cost grows with messages."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.measure import Bar, Figure, Row, alternate
from bench.run import Bench
from bench.spark.tables import Tables, seconds
from penstock import AsyncBroker
from penstock.catalog.session.sessions import SubscriptionRow
from penstock.pipeline import dispatch

FULL: Final = (1_000_000, 100_000)  # messages, filters
QUICK: Final = (50_000, 10_000)
TIMES: Final = 10  # as many messages, for the second row
FILTERS_EACH: Final = 10  # of one session
BATCH: Final = 100
NAMES_SHARE: Final = 2  # filters for each name, so two deliveries for each message
SHAPES: Final = ("devices/{0}/temp", "devices/{0}/+", "devices/{0}/#", "+/{0}/temp")


def dispatch_rows(tables: Tables, bench: Bench) -> Iterator[Row]:
    messages, filters = QUICK if bench.is_quick else FULL
    few = tables.fresh("few")
    asyncio.run(_make(few, messages, filters))
    many = tables.fresh("many")
    asyncio.run(_make(many, TIMES * messages, filters))
    for what, is_kept in (("counting what waits", False), ("with a table of deliveries", True)):

        def run(data: Path, is_kept: bool = is_kept) -> float:
            to = tables.fresh("to") if is_kept else None
            took_s = seconds(lambda: dispatch(path=data, to=to, spark=tables.spark))
            if to is not None:
                shutil.rmtree(to)
            return took_s

        run(few)
        taken = alternate({"few": lambda: run(few), "many": lambda: run(many)}, bench.rounds)
        base = Figure.of(taken["few"]).value
        label = f"{messages / 1e6:g} M messages × {filters / 1e3:g} k filters"
        yield Row(f"dispatch, {label}, {what}", "s", {"value": Figure(base)})
        yield Row(
            f"dispatch, {TIMES} times the messages, {what}",
            "s",
            {"value": Figure.of(taken["many"], taken["few"])},
            (label, base),
            Bar(12.0, at_most=True),
        )


async def _make(path: Path, messages: int, filters: int) -> None:
    """A directory with that many messages, and sessions of clients that are away."""
    names = filters // NAMES_SHARE
    async with AsyncBroker(path, durability="os", upkeep_s=3_600) as broker:
        await broker.create_topic("devices")
        sessions = range(filters // FILTERS_EACH)
        for first in range(0, len(sessions), BATCH):
            some = sessions[first : first + BATCH]
            await asyncio.gather(*(_leave(broker, number, names) for number in some))
        payloads = [b"x" * 100] * BATCH
        for first in range(0, messages, BATCH):
            name = f"devices/{first // BATCH * 7_919 % names}/temp"
            await broker.publish_many(payloads, "devices", name=name)


async def _leave(broker: AsyncBroker, number: int, names: int) -> None:
    catalog = broker.engine.session_catalog
    client_id = f"client-{number}"
    stored, _ = await catalog.begin(client_id, "", 3_600_000, is_clean=False)
    rows = []
    for at in range(FILTERS_EACH):
        device = (number * FILTERS_EACH + at) % names
        rows.append(
            SubscriptionRow(SHAPES[at % len(SHAPES)].format(device), 1, False, False, 0, {})
        )
    await catalog.subscribe(client_id, rows)
    await catalog.leave(client_id, stored.incarnation)
