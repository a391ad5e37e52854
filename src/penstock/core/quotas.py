"""Quotas: how much a tenant and each of its users may hold, and how fast they may publish.

A quota that is not set is unlimited. Whoever holds things counts them and asks `Limits` before it
takes another one; a `Meter` measures what a publisher sends. Compiled by mypyc; the same source
runs interpreted.
"""

from __future__ import annotations

from typing import Final

from penstock.model.errors import QuotaExceeded
from penstock.model.limits import GIB

CONNECTIONS: Final = "connections"
SESSIONS: Final = "sessions"
SUBSCRIPTIONS: Final = "subscriptions"
TOPICS: Final = "topics"
STORED_BYTES: Final = "stored_bytes"
RETAINED: Final = "retained"
RETAINED_BYTES: Final = "retained_bytes"
WILLS: Final = "wills"
GROUPS: Final = "groups"
CONSUMERS: Final = "consumers"
PRODUCERS: Final = "producers"
KEYS: Final = "keys"
IDEMPOTENCY_KEYS: Final = "idempotency_keys"  # beyond it, the oldest are forgotten
PUBLISH_RATE: Final = "publish_rate"  # messages a second
PUBLISH_BYTES_RATE: Final = "publish_bytes_rate"  # bytes a second

# What a quota counts, in words.
WORDS: Final = {
    CONNECTIONS: "connections",
    SESSIONS: "persistent sessions",
    SUBSCRIPTIONS: "subscriptions",
    TOPICS: "topics",
    STORED_BYTES: "bytes in topics",
    RETAINED: "retained messages",
    RETAINED_BYTES: "bytes of retained messages",
    WILLS: "wills",
    GROUPS: "groups",
    CONSUMERS: "consumers",
    PRODUCERS: "producers",
    KEYS: "keys",
    IDEMPOTENCY_KEYS: "idempotency keys",
    PUBLISH_RATE: "messages a second",
    PUBLISH_BYTES_RATE: "bytes a second",
}
KINDS: Final = tuple(WORDS)

# High enough for honest work on one machine, low enough that nobody fills a catalog by mistake.
TENANT_DEFAULTS: Final = {
    SESSIONS: 1_000_000,
    SUBSCRIPTIONS: 10_000_000,
    TOPICS: 10_000,
    RETAINED: 1_000_000,
    RETAINED_BYTES: 16 * GIB,  # the catalog holds their payloads
    WILLS: 100_000,
    GROUPS: 10_000,
    CONSUMERS: 100_000,
    PRODUCERS: 100_000,
    KEYS: 100_000,
    IDEMPOTENCY_KEYS: 20_000_000,  # some 4 GB of the catalog; an hour at 5,000 requests a second
}
USER_DEFAULTS: Final = {
    SESSIONS: 250_000,
    SUBSCRIPTIONS: 5_000_000,
    RETAINED: 500_000,
    RETAINED_BYTES: 8 * GIB,
    WILLS: 50_000,
    GROUPS: 5_000,
    CONSUMERS: 50_000,
    PRODUCERS: 50_000,
    KEYS: 1_000,
    IDEMPOTENCY_KEYS: 10_000_000,
}

BURST_S: Final = 1.0  # a publisher that was quiet may send this much of its rate at once
GATHER_S: Final = 0.001  # this much of a rate is sent before anybody looks at the clock
UNBOUNDED: Final = 1 << 60


class Limits:
    """The quotas of a tenant, or of each user of a tenant."""

    def __init__(self, holder: str, limits: dict[str, int], section: str = "quotas") -> None:
        self.holder = holder  # whose quota this is, in an error: "tenant 'acme'", "a user"
        self._section = section  # of the settings
        self._limits = limits

    def get(self, kind: str) -> int | None:
        """None: unlimited."""
        return self._limits.get(kind)

    def check(self, kind: str, held: int, more: int = 1) -> None:
        """QuotaExceeded if `more` would be too many beside those `held` already."""
        limit = self._limits.get(kind)
        if limit is not None and held + more > limit:
            raise QuotaExceeded(
                f"{self.holder} may have {limit:,} {WORDS[kind]} and has {held:,}: remove some, or "
                f"ask the operator for a higher quota ([{self._section}] {kind})",
                kind,
            )


def fair_share(tenant_max: int | None, user_max: int | None, held: list[int]) -> int:
    """How many one user may keep, so that all together have at most `tenant_max`.

    Users who hold less than the others keep everything; None: unlimited.
    """
    most = max(held, default=0)
    share = most if user_max is None else min(most, user_max)
    if tenant_max is None:
        return share
    room, users = tenant_max, len(held)
    for count in sorted(held):
        if count * users > room:
            return min(share, room // users)
        room -= count
        users -= 1
    return share


class Bucket:
    """A token bucket that may go below zero: what came is taken, what follows waits."""

    def __init__(self, rate: int, now_us: int) -> None:
        self.quota = rate
        self._rate = float(rate)  # tokens a second; a float is multiplied without an object
        self._tokens_max = rate * BURST_S
        self._tokens = self._tokens_max
        self._at_us = now_us
        self._taken = 0
        self.gather_max = int(rate * GATHER_S)

    def set_rate(self, rate: float) -> None:
        """As one of several nodes: its part of the quota."""
        self._rate = rate
        self._tokens_max = rate * BURST_S
        self._tokens = min(self._tokens, self._tokens_max)
        self.gather_max = int(rate * GATHER_S)

    def pop_taken(self) -> int:
        """How many were taken since the last call."""
        taken, self._taken = self._taken, 0
        return taken

    def take(self, count: int, now_us: int) -> float:
        """Take tokens; how many seconds it will be until the bucket is out of debt, or 0."""
        self._fill(now_us)
        self._tokens -= count
        self._taken += count
        return -self._tokens / self._rate if self._tokens < 0 else 0.0

    def _fill(self, now_us: int) -> None:
        past_us = now_us - self._at_us
        self._at_us = now_us
        if past_us > 0:
            tokens = self._tokens + past_us / 1_000_000 * self._rate
            self._tokens = tokens if tokens < self._tokens_max else self._tokens_max


class Meter:
    """What publishers with the same buckets send: those of one user, within its tenant.

    Asking the buckets costs more than many a message. So what is sent is gathered until it is
    GATHER_S of the lowest rate, which is every message where rates are low.
    """

    def __init__(self, message_buckets: list[Bucket], byte_buckets: list[Bucket]) -> None:
        self._message_buckets = message_buckets
        self._byte_buckets = byte_buckets
        self.slowest = PUBLISH_RATE  # the quota for which a sender had to be quiet last
        self._messages = self._bytes = 0  # sent since the buckets were asked
        self._messages_max = self._bytes_max = 0  # how much that may be, as they said then

    def gather(self, messages: int, bytes: int) -> bool:
        """Count what was sent; whether the buckets have to be asked now, with `take`."""
        self._messages += messages
        self._bytes += bytes
        return self._messages > self._messages_max or self._bytes > self._bytes_max

    def take(self, messages: int, bytes: int, now_us: int) -> float:
        """Count what was sent; for how many seconds its sender has to be quiet, 0 if not at all."""
        messages += self._messages
        bytes += self._bytes
        self._messages = self._bytes = 0
        self._messages_max = self._bytes_max = UNBOUNDED
        count_s = bytes_s = 0.0
        for bucket in self._message_buckets:
            count_s = max(count_s, bucket.take(messages, now_us))
            self._messages_max = min(self._messages_max, bucket.gather_max)
        for bucket in self._byte_buckets:
            bytes_s = max(bytes_s, bucket.take(bytes, now_us))
            self._bytes_max = min(self._bytes_max, bucket.gather_max)
        if count_s < bytes_s:
            self.slowest = PUBLISH_BYTES_RATE
            return bytes_s
        self.slowest = PUBLISH_RATE
        return count_s

    def look(self, now_us: int) -> float:
        """For how many seconds a sender has to be quiet, because of what was sent before."""
        return self.take(0, 0, now_us)
