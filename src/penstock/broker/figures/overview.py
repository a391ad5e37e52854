"""How a broker is doing, now and in the last hour, for people who look.

A sample holds the rates since the one before it. Samples are taken whether somebody looks or not,
so a page that opens late still shows an hour.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Iterator
from heapq import nlargest
from itertools import islice
from typing import Final

import msgspec

from penstock.broker.engine import Engine
from penstock.broker.exchange import Exchange
from penstock.broker.figures.gauges import resident_bytes
from penstock.broker.figures.metrics import Histogram, Metrics
from penstock.broker.session.backlog import find_sessions
from penstock.broker.session.waiting import count_waiting
from penstock.broker.topic.topics import Topic
from penstock.core.engine_kind import engine_kind
from penstock.model.errors import PenstockError
from penstock.model.version import VERSION

SAMPLE_S: Final = 5
SAMPLES_MAX: Final = 3_600 // SAMPLE_S
SLOWEST_MAX: Final = 20
ESTIMATE_US: Final = 60_000_000
ESTIMATED_MAX: Final = 500  # topics
DAY_S: Final = 86_400
AWAY_US: Final = 60_000_000
AWAY_MAX: Final = 200  # sessions that are away, of which those furthest behind are shown

# What a sample holds, besides its time.
RATES: Final = (
    "published",
    "delivered",
    "published_bytes",
    "mqtt_in",
    "mqtt_out",
    "http_in",
    "http_out",
    "dropped",
)
GAUGES: Final = (
    "clients",
    "ack_ms",
    "ack_p99_ms",
    "commit_ms",
    "commit_p99_ms",
    "loop_lag_ms",
    "memory_bytes",
)


class Series(msgspec.Struct):
    """Equally long lists: times in µs since 1970, and for each name its values at those times."""

    interval_s: int
    at: list[int]
    values: dict[str, list[float]]


class SlowReader(msgspec.Struct):
    """A reader that is behind the end of a topic by `lag` records, or has so many waiting."""

    kind: str
    topic: str
    reader: str
    lag: int


class Disk(msgspec.Struct):
    """Null where the log is not in files of this machine."""

    used_bytes: int
    free_bytes: int | None
    size_bytes: int | None
    expiring_bytes: int | None  # about what retention removes within a day; null: not estimated
    refusal: str  # why publishes are refused; empty while they are accepted


class Overview(msgspec.Struct):
    """How the broker is doing."""

    version: str
    engine: str
    tenant: str
    started_at: int
    now: int
    clients: int
    sessions_away: int
    subscriptions: int
    retained: int
    topics: int
    records: int
    memory_bytes: int
    disk: Disk
    troubles: list[str]
    dropped: dict[str, int]
    refused: dict[str, int]
    slowest: list[SlowReader]
    series: Series


class _Window:
    """What a histogram saw since it was asked last."""

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._counts = list(histogram.counts)
        self._sum = histogram.sum

    def take(self) -> tuple[float, float]:
        """Mean, and the bound that 99 of 100 values did not exceed; 0 where there was none."""
        counts, total = list(self._histogram.counts), self._histogram.sum
        new = [now - before for now, before in zip(counts, self._counts, strict=True)]
        mean = (total - self._sum) / max(1, sum(new))
        self._counts, self._sum = counts, total
        return mean, self._histogram.bound_of(new, 0.99)


class Samples:
    """The last hour of one tenant. Runs on the event loop from `start` to `stop`."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._clock = exchange.engine.clock
        self._loop = asyncio.get_running_loop()
        metrics = exchange.engine.metrics
        self._syncs = _Window(metrics.sync_seconds)
        self._acks = _Window(metrics.ack_seconds)
        self._totals = _totals(metrics)
        self._times: array[int] = array("q")
        self._values = {name: array("d") for name in (*RATES, *GAUGES)}
        self._lag_s = 0.0  # the longest of this sample's seconds
        self._ticks = 0
        self._due_s = self._taken_s = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self.expiring = Expiring(exchange.engine)
        self.away = Away(exchange)

    def start(self) -> None:
        self._due_s = self._loop.time() + 1
        self._timer = self._loop.call_at(self._due_s, self._tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        """Each second: how late the loop calls us is how late it calls everybody."""
        self._lag_s = max(self._lag_s, self._loop.time() - self._due_s)
        self._ticks += 1
        if self._ticks % SAMPLE_S == 0:
            self.take()
        self.start()

    def take(self) -> None:
        """Add a sample; the oldest one goes when an hour is full."""
        now_s = self._loop.time()
        elapsed_s = max(now_s - self._taken_s, 1e-3)
        self._taken_s = now_s
        totals = _totals(self._exchange.engine.metrics)
        sync_s, sync_p99_s = self._syncs.take()
        ack_s, ack_p99_s = self._acks.take()
        sample = {name: (totals[name] - self._totals[name]) / elapsed_s for name in RATES}
        sample |= {
            "clients": len(self._exchange.sessions.connected),
            "ack_ms": ack_s * 1e3,
            "ack_p99_ms": ack_p99_s * 1e3,
            "commit_ms": sync_s * 1e3,
            "commit_p99_ms": sync_p99_s * 1e3,
            "loop_lag_ms": self._lag_s * 1e3,
            "memory_bytes": resident_bytes(),
        }
        self._totals, self._lag_s = totals, 0.0
        self._times.append(self._clock.now_us())
        del self._times[:-SAMPLES_MAX]
        for name, value in sample.items():
            self._values[name].append(value)
            del self._values[name][:-SAMPLES_MAX]

    @property
    def loop_lag_s(self) -> float:
        """The longest delay of the event loop in the newest sample and since."""
        newest = self._values["loop_lag_ms"][-1:]
        return max(self._lag_s, newest[0] / 1e3 if newest else 0.0)

    def since(self, after_us: int) -> Series:
        """The samples behind a time."""
        skipped = sum(1 for at in self._times if at <= after_us)
        values = {
            name: [round(one, 3) for one in column[skipped:]]
            for name, column in self._values.items()
        }
        return Series(SAMPLE_S, self._times[skipped:].tolist(), values)


def _totals(metrics: Metrics) -> dict[str, int]:
    traffic = metrics.traffic
    return {
        "published": metrics.records_published,
        "delivered": metrics.records_delivered,
        "published_bytes": metrics.bytes_published,
        "mqtt_in": traffic.publishes_received,
        "mqtt_out": traffic.publishes_sent,
        "http_in": metrics.records_submitted,
        "http_out": metrics.records_read,
        "dropped": sum(metrics.dropped.values()),
    }


class Expiring:
    """About how many bytes retention by age removes within a day: asked again after a minute."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._asked_us = -ESTIMATE_US
        self._bytes: int | None = None

    async def estimate(self) -> int | None:
        """None with so many topics that looking at all of them would take long."""
        now_us = self._engine.clock.steady_us()
        if now_us - self._asked_us >= ESTIMATE_US:
            self._asked_us = now_us
            topics = self._engine.topics.working()
            parts = [await self._of(topic) for topic in topics[:ESTIMATED_MAX]]
            self._bytes = sum(parts) if len(topics) <= ESTIMATED_MAX else None
        return self._bytes

    async def _of(self, topic: Topic) -> int:
        age_s = topic.log.settings.retention_age_s
        first, end = topic.log.bounds()
        if age_s is None or first == end:
            return 0
        before_us = self._engine.clock.stamp_us() + round((DAY_S - age_s) * 1e6)
        try:
            gone = await topic.log.offset_at(max(before_us, 0)) - first
            return await topic.log.stored_bytes() * max(gone, 0) // (end - first)
        except (OSError, PenstockError):
            return 0  # it is in trouble, which the overview says elsewhere


class Away:
    """What waits for sessions that are away: counted in the logs, at most once a minute."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._asked_us = -AWAY_US
        self._found: list[SlowReader] = []

    async def find(self) -> list[SlowReader]:
        now_us = self._exchange.engine.clock.steady_us()
        if now_us - self._asked_us >= AWAY_US:
            self._asked_us = now_us
            self._found = await self._count()
        return self._found

    async def _count(self) -> list[SlowReader]:
        engine, connected = self._exchange.engine, self._exchange.sessions.connected
        away = (one for one in self._exchange.store.stored if one not in connected)
        sessions = await find_sessions(self._exchange, list(islice(away, AWAY_MAX)))
        found = []
        for topic in engine.topics.working():
            before = [one.waiting for one in sessions]
            readers = [reader for one in sessions for reader in one.readers]
            await count_waiting(topic, readers, engine.clock)
            found += [
                SlowReader("session, away", topic.declared, one.client_id, one.waiting - counted)
                for one, counted in zip(sessions, before, strict=True)
                if one.waiting > counted
            ]
        return found


async def describe(exchange: Exchange, samples: Samples, after_us: int) -> Overview:
    engine = exchange.engine
    metrics = engine.metrics
    working = engine.topics.working()
    used = sum([await topic.log.stored_bytes() for topic in working])
    behind = [*await samples.away.find(), *_behind(exchange)]
    return Overview(
        version=VERSION,
        engine=engine_kind(),
        tenant=engine.tenant,
        started_at=engine.shared.started_us,
        now=engine.clock.now_us(),
        clients=len(exchange.sessions.connected),
        sessions_away=exchange.sessions.away_count,
        subscriptions=exchange.sessions.subscription_count + len(exchange.store.shares),
        retained=len(exchange.store.retained),
        topics=len([topic for topic in working if not topic.partition]),
        records=sum(topic.log.count_from(0) for topic in working),
        memory_bytes=resident_bytes(),
        disk=_disk(exchange, used, await samples.expiring.estimate()),
        troubles=list(engine.upkeep.troubles.values()),
        dropped=_seen(metrics.dropped),
        refused=_seen(metrics.refused),
        slowest=nlargest(SLOWEST_MAX, behind, key=lambda one: one.lag),
        series=samples.since(after_us),
    )


def _disk(exchange: Exchange, used_bytes: int, expiring: int | None) -> Disk:
    free, size = exchange.engine.shared.space.seen
    is_known = size > 1  # else the broker is in memory, or its topics are in a database
    refusal = exchange.engine.upkeep.refusal
    if not is_known:
        return Disk(used_bytes, None, None, expiring, refusal)
    return Disk(used_bytes, free, size, expiring, refusal)


def _seen(counts: dict[str, int]) -> dict[str, int]:
    return {reason: count for reason, count in sorted(counts.items()) if count}


def _behind(exchange: Exchange) -> Iterator[SlowReader]:
    """Every reader that has something to pass, whether it wants it or not."""
    engine = exchange.engine
    for topic in engine.topics.working():
        for consumer in engine.consumers.of(topic):
            lag = topic.log.count_from(consumer.next_offset)
            if lag > 0:
                yield SlowReader("consumer", topic.declared, consumer.name, lag)
        for group in () if topic.partition else engine.groups.of(topic):
            if group.lag > 0:
                yield SlowReader("group", topic.declared, group.group, group.lag)
    for session in exchange.sessions.connected.values():
        for topic_id, offset in session.lags.items():
            found = engine.topics.by_id(topic_id)
            if found is not None and not found.refusal:
                lag = found.log.count_from(offset)
                if lag > 0:
                    yield SlowReader("session", found.declared, session.client_id, lag)
