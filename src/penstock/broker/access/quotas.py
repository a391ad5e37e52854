"""The quotas of one tenant: what it and its users hold is checked before anything is stored.

What exists is counted where it is kept; here are the connections and what publishers send. A quota
that stops somebody is counted as a refusal, by its name.
Compiled by mypyc; the same source runs interpreted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from penstock.broker.figures.metrics import Metrics
from penstock.core.naming.names import quoted
from penstock.core.quota_settings import QuotaSettings
from penstock.core.quotas import (
    CONNECTIONS,
    PUBLISH_BYTES_RATE,
    PUBLISH_RATE,
    STORED_BYTES,
    Bucket,
    Limits,
    Meter,
)
from penstock.model.clock import Clock
from penstock.model.errors import QuotaExceeded


class ClusterCounts(Protocol):
    """What all nodes hold together, where there are several."""

    async def take(self, kind: str, user: str | None, count: int = 1) -> None:
        """So many more are held from now on; QuotaExceeded if that is too much."""
        ...

    def give(self, kind: str, user: str | None, count: int = 1) -> None:
        """What was taken is held no longer."""
        ...

    def note(self, kind: str, user: str | None, more: int) -> None:
        """So many more or fewer are held, whatever the quota says."""
        ...

    def is_limited(self, kind: str) -> bool:
        """Whether `take` may refuse this kind."""
        ...


class Quotas:
    """Used on the event loop. The anonymous clients of a tenant are one user, ''."""

    def __init__(
        self, settings: QuotaSettings, tenant: str, clock: Clock, metrics: Metrics
    ) -> None:
        self._name = tenant
        self._clock = clock
        self._metrics = metrics
        self._connections: Counter[str] = Counter()  # by user
        self._connection_count = 0
        self._made: Counter[str] = Counter()  # what is being made, by kind, or by kind and user
        self.cluster: ClusterCounts | None = None  # as one of several nodes
        self.set(settings)

    def set(self, settings: QuotaSettings) -> None:
        """These quotas hold from now on; whoever has a `meter` has to ask for it again."""
        self._tenant = Limits(f"tenant {quoted(self._name)}", settings.of_tenant(self._name))
        self._user = Limits("a user", settings.of_user(self._name), "quotas.user")
        self._message_bucket = self._bucket(self._tenant, PUBLISH_RATE)
        self._byte_bucket = self._bucket(self._tenant, PUBLISH_BYTES_RATE)
        self.has_rates = any(
            limits.get(kind) is not None
            for limits in (self._tenant, self._user)
            for kind in (PUBLISH_RATE, PUBLISH_BYTES_RATE)
        )
        self._meters: dict[str, Meter] = {}  # of users who have published
        self._user_buckets: dict[tuple[str, str], Bucket] = {}  # by kind and user
        self.stored_bytes_max = self._tenant.get(STORED_BYTES)
        self.user_stored_bytes_max = self._user.get(STORED_BYTES)

    def check(self, kind: str, held: int, more: int = 1) -> None:
        """QuotaExceeded if the tenant, which holds so many, may not have more."""
        try:
            self._tenant.check(kind, held, more)
        except QuotaExceeded:
            self.count(kind)
            raise

    def check_user(self, kind: str, held: int, more: int = 1) -> None:
        """QuotaExceeded if one user, who holds so many, may not have more."""
        try:
            self._user.check(kind, held, more)
        except QuotaExceeded:
            self.count(kind)
            raise

    @contextmanager
    def making(self, kind: str, held: int) -> Iterator[None]:
        """Around making one more, which takes a while: those that are being made count, too."""
        self.check(kind, held + self._made[kind])
        self._made[kind] += 1
        try:
            yield
        finally:
            self._made[kind] -= 1

    @contextmanager
    def making_own(
        self, kind: str, held: int, user: str | None, held_by_user: int
    ) -> Iterator[None]:
        """As `making`, for something that belongs to a user; None: to nobody."""
        if user is None:
            with self.making(kind, held):
                yield
            return
        own = f"{kind} {user}"
        self.check_user(kind, held_by_user + self._made[own])
        with self.making(kind, held):
            self._made[own] += 1
            try:
                yield
            finally:
                self._made[own] -= 1
                if not self._made[own]:
                    del self._made[own]

    @property
    def both(self) -> tuple[Limits, Limits]:
        """Those of the tenant, and of each of its users."""
        return self._tenant, self._user

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Around something that somebody else checks: a quota that stops it is counted here."""
        try:
            yield
        except QuotaExceeded as exceeded:
            self.count(exceeded.kind)
            raise

    def limits(self, kind: str) -> tuple[int | None, int | None]:
        """What the tenant and each of its users may have; None: unlimited."""
        return self._tenant.get(kind), self._user.get(kind)

    def note(self, kind: str, user: str | None, more: int) -> None:
        """So many more or fewer exist here: as one of several nodes, the others hear of it."""
        if self.cluster is not None:
            self.cluster.note(kind, user, more)

    def count(self, kind: str, times: int = 1) -> None:
        """A quota stopped somebody."""
        self._metrics.refused[f"quota_{kind}"] += times

    # Connections

    def enter(self, user: str) -> None:
        """A client of this user begins a connection or a stream; QuotaExceeded if it may not."""
        self.check(CONNECTIONS, self._connection_count)
        self.check_user(CONNECTIONS, self._connections[user])
        self._connections[user] += 1
        self._connection_count += 1

    def leave(self, user: str) -> None:
        """What `enter` began has ended."""
        self._connection_count -= 1
        self._connections[user] -= 1
        if not self._connections[user]:
            del self._connections[user]

    # Publishing

    def meter(self, user: str) -> Meter | None:
        """What measures the messages of a user; None where no rate is limited."""
        known = self._meters.get(user)
        if known is not None:
            return known
        if not self.has_rates:
            return None
        tenant_buckets = (self._message_bucket, self._byte_bucket)
        user_buckets = (
            self._bucket_of(user, PUBLISH_RATE),
            self._bucket_of(user, PUBLISH_BYTES_RATE),
        )
        messages, sizes = (
            [bucket for bucket in pair if bucket is not None]
            for pair in zip(tenant_buckets, user_buckets, strict=True)
        )
        if not messages and not sizes:
            return None
        meter = self._meters[user] = Meter(messages, sizes)
        return meter

    def _bucket(self, limits: Limits, kind: str) -> Bucket | None:
        rate = limits.get(kind)
        return None if rate is None else Bucket(rate, self._now_us())

    def _bucket_of(self, user: str, kind: str) -> Bucket | None:
        bucket = self._bucket(self._user, kind)
        if bucket is not None:
            self._user_buckets[kind, user] = bucket
        return bucket

    def buckets(self) -> list[tuple[str, str | None, Bucket]]:
        """All that are in use: the kind, the user (None: all of the tenant) and the bucket."""
        found: list[tuple[str, str | None, Bucket]] = []
        if self._message_bucket is not None:
            found.append((PUBLISH_RATE, None, self._message_bucket))
        if self._byte_bucket is not None:
            found.append((PUBLISH_BYTES_RATE, None, self._byte_bucket))
        for (kind, user), bucket in self._user_buckets.items():
            found.append((kind, user, bucket))
        return found

    def _now_us(self) -> int:
        return int(self._clock.monotonic_s() * 1_000_000)

    def measure(self, meter: Meter, messages: int, size: int) -> float:
        """Count what was published; for how many seconds its sender has to wait, or 0."""
        if not meter.gather(messages, size):
            return 0.0
        wait_s = meter.take(0, 0, self._now_us())
        if wait_s > 0:
            self.count(meter.slowest)
        return wait_s

    def check_rate(self, user: str, messages: int, size: int) -> None:
        """Count what is about to be published; QuotaExceeded if its sender has to wait first."""
        meter = self.meter(user)
        if meter is None:
            return
        now_us = self._now_us()
        wait_s = meter.look(now_us)
        if wait_s > 0:
            self.count(meter.slowest)
            raise QuotaExceeded(
                f"messages are published faster than the quota allows ([quotas] {meter.slowest}): "
                f"nothing was stored; try again in {wait_s:.1f} s",
                meter.slowest,
                wait_s,
            )
        meter.take(messages, size, now_us)
