"""`dispatch`: messages meet the filters of persistent sessions.

Gives a table of deliveries, a row for each message and session it goes to, and what each session
whose client is away has waiting. A report: the broker delivers by itself and waits for nobody. What
it counts is what `penstock session list` counts.
"""

from __future__ import annotations

import argparse
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.catalog.outside import CatalogPlace, SessionsSeen
from penstock.model.clock import SystemClock
from penstock.pipeline.connecting import link_to, origin_of
from penstock.pipeline.delta.following import BATCH_RECORDS, DATE, Follower
from penstock.pipeline.jobs import (
    LOCAL,
    LateSession,
    Progress,
    Report,
    add_batch_arguments,
    check_directory,
    ignore_progress,
)
from penstock.pipeline.jobs.dispatch.sessions import (
    begins,
    every_reader,
    saved_sessions,
    told_sessions,
    waiting_readers,
)
from penstock.pipeline.packages import check_spark
from penstock.pipeline.source.offsets import Places
from penstock.pipeline.source.options import Connection
from penstock.pipeline.source.plan import place_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.pipeline.jobs.dispatch.readers import Readers
    from penstock.pipeline.source.origin import TopicState

SAYS: Final = "compute which messages go to which persistent session, and how many wait"
DELIVERIES: Final = "deliveries"  # tables below --to
WAITING: Final = "waiting"


@dataclass(frozen=True, slots=True)
class Dispatched:
    """What a run found."""

    progress: Progress  # rows are deliveries
    waiting: dict[str, int]  # by client id: messages for each session whose client is away
    by_topic: dict[tuple[str, str], int] = field(default_factory=dict)  # (client id, topic)


def dispatch(
    topics: str | Sequence[str] = (),
    to: str | Path | None = None,
    *,
    path: str | Path = "./penstock_data",
    url: str = "",
    user: str = "",
    password: str = "",
    token: str = "",
    tenant: str = "",
    catalog_url: str = "",
    catalog_schema: str = "penstock",
    batch_records: int = BATCH_RECORDS,
    fail_on_data_loss: bool = True,
    spark: SparkSession | None = None,
    master: str = LOCAL,
    report: Report = ignore_progress,
) -> Dispatched:
    """Match what the topics hold, all of them if none is named, with the sessions' filters.

    They are in the data directory `path`, or at the address `url` of a running broker. With `to`,
    a directory, its Delta table `deliveries` goes on where it ended, and `waiting` is
    replaced. Sessions are taken as they are now: a filter that is gone delivers nothing.
    """
    check_spark()
    names = tuple([topics] if isinstance(topics, str) else topics)
    data = Path(path)
    connection = Connection(
        None if url else data.absolute(), url, user, password=password, token=token, tenant=tenant
    )
    if to is not None:
        check_directory(Path(to))
    if url:
        seen = told_sessions(link_to(connection))
    else:
        place = CatalogPlace(data, catalog_url, catalog_schema)
        seen = saved_sessions(place, connection.stored_tenant)
    origin = origin_of(connection)
    states = origin.states(names)
    with LateSession(spark, master) as session:
        done = Progress(0, 0, 0.0)
        if to is not None and states:
            done = _deliver(
                session,
                connection,
                Path(to),
                readers=every_reader(seen, origin, states),
                states=states,
                batch_records=batch_records,
                fails_on_loss=fail_on_data_loss,
                report=report,
            )
        report(replace(done, says="counting what waits"))
        found = _count(session, connection, waiting_readers(seen, origin, states), states)
        if to is not None:
            _replace_waiting(Path(to) / WAITING, found)
    waiting = _totals(seen, found)
    return Dispatched(replace(done, says=_summary(waiting)), waiting, found)


def _summary(waiting: dict[str, int]) -> str:
    messages, sessions = sum(waiting.values()), len(waiting)
    return (
        f"{messages:,} message{'s wait' if messages != 1 else ' waits'} for {sessions:,} "
        f"session{'s' if sessions != 1 else ''}"
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topics", metavar="TOPIC", nargs="*", help="topics to read (all topics)")
    parser.add_argument("--to", metavar="DIR", help="write tables deliveries and waiting to DIR")
    add_batch_arguments(parser, BATCH_RECORDS)


def run(options: argparse.Namespace, report: Report) -> Progress:
    return dispatch(
        options.topics,
        options.to,
        **options.place,
        batch_records=options.batch_records,
        fail_on_data_loss=not options.skip_lost,
        master=options.master,
        report=report,
        catalog_url=options.storage["catalog_url"],
        catalog_schema=options.storage["catalog_schema"],
    ).progress


def _deliver(
    session: LateSession,
    connection: Connection,
    to: Path,
    readers: Readers,
    states: list[TopicState],
    batch_records: int,
    fails_on_loss: bool,
    report: Report,
) -> Progress:
    from penstock.pipeline.delta.table import ArchiveTable
    from penstock.pipeline.jobs.dispatch import dispatching

    def shape(records: DataFrame, places: Places) -> DataFrame:
        work: Any = partial(dispatching.deliver, readers)
        return records.mapInArrow(work, dispatching.DELIVERIES_SQL).selectExpr("*", DATE)

    to.mkdir(parents=True, exist_ok=True)
    follower = Follower(
        session,
        connection,
        ArchiveTable(to / DELIVERIES, dispatching.DELIVERIES, "a table of deliveries"),
        tuple(dict.fromkeys(state.topic for state in states)),
        batch_records,
        columns=dispatching.columns_for(readers),
        shape=shape,
        fails_on_loss=fails_on_loss,
    )
    follower.set_target({state.key: place_at(state, state.end) for state in states})
    return follower.follow(report, None, threading.Event())


def _count(
    session: LateSession, connection: Connection, readers: Readers, states: list[TopicState]
) -> dict[tuple[str, str], int]:
    """What waits, by client and topic."""
    begin = begins(readers, states)
    asked = [state for state in states if begin[state.key] < state.end]
    if not asked:
        return {}
    from penstock.pipeline.jobs.dispatch import dispatching
    from penstock.pipeline.tables.reading import read_past

    start = {state.key: place_at(state, begin[state.key]) for state in asked}
    end = {state.key: place_at(state, state.end) for state in asked}
    records = read_past(
        session.get(),
        connection,
        start,
        end,
        dispatching.columns_for(readers),
        fails_on_loss=False,  # records that retention removed do not wait
    )
    work: Any = partial(dispatching.count, readers, SystemClock().now_us())
    counts = records.mapInArrow(work, dispatching.COUNTS_SQL).groupBy("reader", "topic")
    found: Counter[tuple[str, str]] = Counter()
    for number, topic, waiting in counts.sum("waiting").collect():
        found[readers.readers[number].client_id, topic] += waiting
    return dict(found)


def _totals(seen: SessionsSeen, found: dict[tuple[str, str], int]) -> dict[str, int]:
    totals = {client: 0 for client, is_connected in seen.connected.items() if not is_connected}
    for (client, _), waiting in found.items():
        totals[client] += waiting
    return totals


def _replace_waiting(path: Path, found: dict[tuple[str, str], int]) -> None:
    from penstock.pipeline.delta.table import replace_table

    rows = sorted((client, topic, waiting) for (client, topic), waiting in found.items())
    replace_table(path, {"client_id": "string", "topic": "string", "waiting": "int64"}, rows)
