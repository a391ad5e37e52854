"""The checkpoint: what changed since the last one, of every view, in one transaction.

A view follows the logs and the clients in memory. All views are taken in one tick, together with
the levels of the topics they have seen: a view is never saved older or newer than the logs are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from penstock.broker.session.rows import feed_rows, outstanding_rows
from penstock.broker.session.session import Session
from penstock.broker.topic.topics import Topics
from penstock.catalog.session.saving import Checkpoint
from penstock.catalog.session.sessions import SessionCatalog
from penstock.model.timeline import Timeline

CHECKPOINT_S: Final = 1.0  # how much a crash may make us repeat


class View(Protocol):
    """Something of which a checkpoint saves the changes. One checkpoint at a time."""

    def take_changes(self, point: Checkpoint) -> bool:
        """Put into the checkpoint what changed since the last one; False if nothing did."""
        ...

    def settle(self, *, is_saved: bool) -> None:
        """What was taken is in the catalog, or else the next checkpoint has to take it again."""
        ...


class Levels:
    """A view: how far each topic is."""

    def __init__(self, topics: Topics) -> None:
        self.saved: dict[int, tuple[int, int]] = {}  # topic id -> epoch, end offset
        self._taken: dict[int, tuple[int, int]] = {}
        self._topics = topics

    def take_changes(self, point: Checkpoint) -> bool:
        for topic in self._topics.working():
            level = topic.log.epoch, topic.log.bounds().end
            if level != self.saved.get(topic.id):
                point.levels[topic.id] = level
        self._taken = point.levels
        return bool(point.levels)

    def settle(self, *, is_saved: bool) -> None:
        if is_saved:
            self.saved.update(self._taken)
        self._taken = {}


class BusySessions:
    """A view: sessions that are not level with their topics, and where each of them is."""

    def __init__(self, topics: Topics) -> None:
        self.sessions: set[Session] = set()
        self._taken: list[Session] = []
        self._topics = topics

    def take_changes(self, point: Checkpoint) -> bool:
        self._taken = [one for one in self.sessions if one.outbox is not None]
        self.sessions.intersection_update(self._taken)  # how the others ended is saved on its own
        for session in self._taken:
            if not self._describe(session, point):
                self.sessions.discard(session)
        return bool(self._taken)

    def settle(self, *, is_saved: bool) -> None:
        if not is_saved:
            self.sessions.update(self._taken)
        self._taken = []

    def _describe(self, session: Session, point: Checkpoint) -> bool:
        """Where a session is; False if it is level again."""
        point.busy.append(session.client_id)
        moves = False
        for topic_id, offset in session.lags.items():
            topic = self._topics.by_id(topic_id)
            if topic is not None:
                point.behind.append((session.client_id, topic_id, topic.log.epoch, offset))
                moves |= not topic.refusal
        rows = outstanding_rows(session)
        point.outstanding += [(session.client_id, row) for row in rows]
        feeds = session.feeds
        if feeds:
            behind = [row for feed in feeds for row in feed_rows(self._topics, feed, feed.lags)]
            point.feeds.append((session.client_id, [feed.id for feed in feeds], behind))
            lagging = {topic_id for feed in feeds for topic_id in feed.lags}
            moves |= any(topic.id in lagging for topic in self._topics.working())
        return moves or bool(rows)


class Checkpoints:
    """Saves the changes of all views."""

    def __init__(self, catalog: SessionCatalog, clock: Timeline, views: Sequence[View]) -> None:
        self._catalog = catalog
        self._clock = clock
        self._views = views
        self._turn = asyncio.Lock()

    async def save(self) -> None:
        """Save the views as of now, unless nothing changed; durable on return."""
        async with self._turn:
            await self._save()

    async def _save(self) -> None:
        point = Checkpoint()
        is_saved = False
        try:
            changed = [view for view in self._views if view.take_changes(point)]
            if changed:
                point.clock = self._clock.reading()
                await self._catalog.save(point)
                is_saved = True
        finally:
            for view in self._views:
                view.settle(is_saved=is_saved)
