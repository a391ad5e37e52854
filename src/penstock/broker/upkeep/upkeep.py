"""Looking after the logs of a tenant in the background: retention, sealing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from penstock.broker.access.quotas import Quotas
from penstock.broker.limited_log import LimitedLog
from penstock.broker.topic.topics import Topic, Topics
from penstock.broker.upkeep.space import Space
from penstock.core.naming.names import quoted
from penstock.core.quotas import STORED_BYTES
from penstock.log.interface import KeptLog
from penstock.model.errors import PenstockError, QuotaExceeded, UnavailableError
from penstock.model.timeline import Timeline

# Parts of the broker that may have trouble, besides the topics.
UNLIMITED_BYTES: Final = 1 << 62

DELIVERY: Final = "delivery"
SESSIONS: Final = "sessions"
WILLS: Final = "wills"


def topic_part(topic: Topic) -> str:
    """The part of the broker that a topic is; no other part has such a name."""
    return f"topic {topic.declared}"


class Upkeep:
    """Runs until cancelled. One log's trouble is remembered and does not stop the others."""

    def __init__(
        self,
        topics: Topics,
        clock: Timeline,
        period_s: float,
        log: LimitedLog,
        space: Space,
        quotas: Quotas,
    ) -> None:
        self.refusal = ""  # why publishes are refused; empty while they are accepted
        self.topic_bytes: dict[int, int] = {}  # topic id -> size on disk, when it was last measured
        self._over_quota = ""  # why the tenant's quota of stored bytes refuses publishes
        self._quotas = quotas
        self.on_quota: list[Callable[[], None]] = []  # topics are over a user's quota, or no longer
        # What is wrong now, by the part of the broker that has the trouble: DELIVERY, SESSIONS,
        # WILLS, or a topic (`topic_part`).
        self.troubles: dict[str, str] = {}
        self.errands: list[Callable[[], Awaitable[None]]] = []  # what else is done every round
        self._topics = topics
        self._clock = clock
        self._period_s = period_s
        self._log = log
        self._space = space
        space.listeners.append(self._weigh)
        self._weigh()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._period_s)
            await self.look_after_all()

    def close(self) -> None:
        self._space.listeners.remove(self._weigh)

    def _weigh(self) -> None:
        """The quota or the space of the disk has changed."""
        self.refusal = self._over_quota or self._space.refusal

    def refused(self, topic: Topic) -> UnavailableError | None:
        """The error for whoever publishes to a topic while it is refused."""
        over_quota = self._over_quota or topic.over_quota
        if over_quota:
            return QuotaExceeded(over_quota, STORED_BYTES, self._period_s)
        return UnavailableError(self.refusal) if self.refusal else None

    async def look_at_quotas(self) -> None:
        """Measure topics, and refuse publishes while they hold more than a quota."""
        quotas = self._quotas
        topics = self._topics.working()
        sizes = [await topic.log.stored_bytes() for topic in topics]
        self.topic_bytes = {topic.id: size for topic, size in zip(topics, sizes, strict=True)}
        # Without a quota there may still be a refusal of an earlier one, which has to end.
        if quotas.stored_bytes_max is not None or self._over_quota:
            self._look_at_tenant(sum(sizes), quotas.stored_bytes_max or UNLIMITED_BYTES)
        if quotas.user_stored_bytes_max is not None or any(one.over_quota for one in topics):
            self._look_at_users(topics, sizes, quotas.user_stored_bytes_max or UNLIMITED_BYTES)

    def _look_at_users(self, topics: list[Topic], sizes: list[int], bytes_max: int) -> None:
        stored: Counter[str | None] = Counter()
        for topic, size in zip(topics, sizes, strict=True):
            stored[topic.owner] += size
        is_changed = False
        for topic in topics:
            held = 0 if topic.owner is None else stored[topic.owner]
            whose = f"user {quoted(topic.owner)}" if topic.owner else "anonymous clients"
            text = _full(f"the topics of {whose} hold", held, bytes_max)
            is_over = held > bytes_max
            is_changed |= is_over != bool(topic.over_quota)
            topic.over_quota = text if is_over else ""
        if is_changed:
            for tell in self.on_quota:
                tell()

    def _look_at_tenant(self, stored: int, bytes_max: int) -> None:
        was_over, self._over_quota = self._over_quota, ""
        if stored > bytes_max:
            self._over_quota = _full("the topics hold", stored, bytes_max)
            if not was_over:
                text = "publishes are refused: the topics hold %(stored)d bytes, above the quota"
                self._log.warning("quota refusal begins", text, {"stored": stored})
        elif was_over:
            text = "publishes are accepted again: the topics hold %(stored)d bytes"
            self._log.info("quota refusal ends", text, {"stored": stored})
        self._weigh()

    def note_trouble(self, part: str, text: str) -> None:
        """Something is wrong that is tried again; it is logged when it is new."""
        if self.troubles.get(part) != text:
            self.troubles[part] = text
            self._log.warning("trouble", "%(trouble)s", {"trouble": text})

    def end_trouble(self, part: str) -> None:
        text = self.troubles.pop(part, "")
        if text:
            self._log.info("trouble ends", "no longer: %(trouble)s", {"trouble": text})

    async def look_after_all(self) -> None:
        for topic in self._topics.all():
            try:
                await self.look_after(topic.log)
            except (OSError, PenstockError) as trouble:
                self.note_trouble(topic_part(topic), f"{topic.declared}: {trouble}")
            else:
                self._note_damage(topic)
        with suppress(OSError, PenstockError):  # the next round tries again
            await self.look_at_quotas()
        for errand in self.errands:
            with suppress(OSError, PenstockError):  # the next round tries again
                await errand()

    def _note_damage(self, topic: Topic) -> None:
        damage = topic.log.damage
        if topic.refusal:
            self.note_trouble(topic_part(topic), topic.refusal)
        elif damage:
            self.note_trouble(
                topic_part(topic),
                f"{topic.declared}: {len(damage)} damaged files, the first is {damage[0]}; "
                "`penstock log verify` lists all of them; restore them from a backup",
            )
        else:
            self.end_trouble(topic_part(topic))

    async def look_after(self, log: KeptLog) -> int:
        """Apply retention, then seal what is closed; how many records went.

        In this order: on a full disk sealing finds no space until something was trimmed.
        """
        settings = log.settings
        before_us = stamp_before(self._clock, settings.retention_age_s)
        bytes_max = settings.retention_bytes
        if bytes_max is not None:
            bytes_max = -(-bytes_max // settings.partitions)
        gone = await log.trim(before_us, bytes_max)
        await log.seal_closed()
        return gone


def _full(who_holds: str, stored: int, bytes_max: int) -> str:
    return (
        f"{who_holds} {stored:,} bytes and the quota is {bytes_max:,}: nothing was stored; delete "
        "a topic, shorten its retention, or ask the operator for a higher quota ([quotas] "
        "stored_bytes)"
    )


def stamp_before(clock: Timeline, age_s: float | None) -> int | None:
    """The time stamp that a record of this age has; None without an age."""
    if age_s is None:
        return None
    return clock.stamp_at(clock.steady_us() - round(age_s * 1_000_000))
