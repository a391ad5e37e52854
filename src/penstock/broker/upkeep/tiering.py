"""Copying sealed records of a tenant's topics into their histories, in the background.

Not part of upkeep: a store that is slow or away must not hold up retention.
"""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.broker.topic.topics import Topic, Topics
from penstock.broker.upkeep.upkeep import Upkeep, stamp_before
from penstock.log.history.tier import LogHistory
from penstock.model.errors import PenstockError
from penstock.model.timeline import Timeline

EXPIRE_S: Final = 3_600.0  # how often files that are too old are looked for


class Tiering:
    """Runs until cancelled. One history's trouble is remembered and does not stop the others."""

    def __init__(self, topics: Topics, clock: Timeline, period_s: float, upkeep: Upkeep) -> None:
        self._topics = topics
        self._clock = clock
        self._period_s = period_s
        self._upkeep = upkeep
        self._expired_at: dict[int, float] = {}  # by topic id, on the loop's clock

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._period_s)
            await self.look_after_all()

    async def look_after_all(self) -> None:
        for topic in self._topics.working():
            history = topic.log.history
            if history is None or not topic.log.settings.history:
                continue
            try:
                await self._look_after(topic, history)
            except (OSError, PenstockError) as trouble:
                if not topic.is_gone:
                    history.note(trouble)
                    self._upkeep.note_trouble(
                        history_part(topic), f"history of {topic.declared}: {trouble}"
                    )
            else:
                history.note(None)
                self._upkeep.end_trouble(history_part(topic))

    async def _look_after(self, topic: Topic, history: LogHistory) -> None:
        settings = topic.log.settings
        before_us = stamp_before(self._clock, settings.retention_age_s)
        await topic.log.tier(before_us, settings.retention_bytes)
        oldest_us = stamp_before(self._clock, settings.history_age_s)
        now_s = self._clock.monotonic_s()
        every_s = min(EXPIRE_S, settings.history_age_s or EXPIRE_S)
        if oldest_us is not None and now_s >= self._expired_at.get(topic.id, 0.0) + every_s:
            await history.expire(oldest_us)
            self._expired_at[topic.id] = now_s


def history_part(topic: Topic) -> str:
    """The part of the broker that the history of a topic is."""
    return f"history {topic.declared}"
