"""`stats`: what went through topics, by name and minute, how far their readers are, and a picture.

Tables below one directory: `minutes`, with messages, bytes and the pauses between messages of a
name; and `lag`, with every consumer and group. Each run looks at a range and replaces both, each in
one commit, so a run that was killed has changed nothing or is simply done again.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.catalog.outside import CatalogPlace
from penstock.core.position import AtOffset, parse_position
from penstock.model.clock import SystemClock
from penstock.model.errors import InvalidPosition
from penstock.pipeline.connecting import link_to, origin_of
from penstock.pipeline.jobs import (
    LOCAL,
    LateSession,
    Progress,
    Report,
    check_directory,
    ignore_progress,
)
from penstock.pipeline.jobs.stats.lags import saved_lags, told_lags
from penstock.pipeline.packages import check_spark
from penstock.pipeline.source.offsets import Places
from penstock.pipeline.source.options import Connection
from penstock.pipeline.source.plan import place_at, resolve

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.pipeline.source.origin import Origin, TopicState

SAYS: Final = "compute traffic by topic, name and minute and the lag of readers, and draw a chart"
MINUTES: Final = "minutes"  # tables below --to
LAG: Final = "lag"
CHART: Final = "stats.png"
SINCE: Final = "-24h"
_COLUMNS: Final = "topic string, offset long, timestamp timestamp, name string, payload binary"
_LAG_COLUMNS: Final = {
    "kind": "string",
    "consumer": "string",
    "topic": "string",
    "position": "int64",
    "end": "int64",
    "lag": "int64",
}


def stats(
    topics: str | Sequence[str] = (),
    to: str | Path = "./stats",
    *,
    path: str | Path = "./penstock_data",
    url: str = "",
    user: str = "",
    password: str = "",
    token: str = "",
    tenant: str = "",
    start: str | int | datetime | timedelta = SINCE,
    chart: bool = True,
    catalog_url: str = "",
    catalog_schema: str = "penstock",
    spark: SparkSession | None = None,
    master: str = LOCAL,
    report: Report = ignore_progress,
) -> Progress:
    """Look at topics, all of them if none is named, from a position up to their ends.

    They are in the data directory `path`, or at the address `url` of a running broker.
    """
    check_spark()
    names = tuple([topics] if isinstance(topics, str) else topics)
    data, folder = Path(path), Path(to)
    connection = Connection(
        None if url else data.absolute(), url, user, password=password, token=token, tenant=tenant
    )
    check_directory(folder)
    began_s = time.monotonic()
    origin = origin_of(connection)
    states = origin.states(names)
    begin = _begin(origin, states, start)
    if url:
        lags = told_lags(link_to(connection), states)
    else:
        place = CatalogPlace(data, catalog_url, catalog_schema)
        lags = saved_lags(place, connection.stored_tenant, origin, states)
    end = {state.key: place_at(state, state.end) for state in states}
    count = sum(end[topic].offset - place.offset for topic, place in begin.items())
    folder.mkdir(parents=True, exist_ok=True)
    with LateSession(spark, master) as session:
        from penstock.pipeline.delta.table import replace_table
        from penstock.pipeline.jobs.stats.minutes import Minutes

        report(Progress(0, 0, 0.0, says=f"counting {count:,} records"))
        counted = Minutes(_read(session, connection, begin, end))
        counted.save(folder / MINUTES)
        replace_table(folder / LAG, _LAG_COLUMNS, lags)
        if chart:
            from penstock.pipeline.jobs.stats.chart import draw

            draw(counted.picture(), lags, folder / CHART)
    took_s = max(time.monotonic() - began_s, 1e-3)
    says = f"tables{' and a chart' if chart else ''} in {folder}"
    ends = {topic: place.offset for topic, place in end.items()}
    done = Progress(count, 1, count / took_s, ends, says=says)
    report(done)
    return done


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topics", metavar="TOPIC", nargs="*", help="topics to read (all topics)")
    parser.add_argument(
        "--to", metavar="DIR", default="./stats", help="directory for tables and chart (./stats)"
    )
    parser.add_argument(
        "--from",
        dest="start",
        metavar="POSITION",
        default=SINCE,
        help=f"start position: earliest, an offset, a time, or a duration back ({SINCE})",
    )
    parser.add_argument("--no-chart", action="store_true", help="do not draw the chart")


def run(options: argparse.Namespace, report: Report) -> Progress:
    return stats(
        options.topics,
        options.to,
        **options.place,
        start=options.start,
        chart=not options.no_chart,
        master=options.master,
        report=report,
        catalog_url=options.storage["catalog_url"],
        catalog_schema=options.storage["catalog_schema"],
    )


def _begin(
    origin: Origin,
    states: list[TopicState],
    start: str | int | datetime | timedelta,
) -> Places:
    position = parse_position(start, SystemClock().now_us())
    topics = {state.topic for state in states}
    if isinstance(position, AtOffset) and len(topics) != 1:
        raise InvalidPosition(
            f"offset {position.offset} belongs to one topic, but the job reads {len(topics)} "
            "topics: name one topic, or give a time such as -24h"
        )
    found = resolve(origin, states, position, "from")
    return {
        state.key: place_at(state, max(found[state.key].offset, state.first)) for state in states
    }


def _read(
    session: LateSession, connection: Connection, begin: Places, end: Places
) -> DataFrame | None:
    """The records of the range; None if it holds none."""
    asked = [topic for topic, place in begin.items() if place.offset < end[topic].offset]
    if not asked:
        return None
    from penstock.pipeline.tables.reading import read_past

    return read_past(
        session.get(),
        connection,
        {topic: begin[topic] for topic in asked},
        {topic: end[topic] for topic in asked},
        _COLUMNS,
        fails_on_loss=False,  # what retention takes meanwhile is of no interest
    )
