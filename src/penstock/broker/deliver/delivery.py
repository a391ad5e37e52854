"""Delivery: what a commit brings to connected sessions, shares and the retained messages.

The commit of a batch is the one way to them (QoS 0 of the fast lane aside). A batch comes with the
runs it was made of, or is decoded here once.
Compiled by mypyc; the same source runs interpreted.
"""

from __future__ import annotations

import asyncio

from penstock.broker.deliver.commits import Runs
from penstock.broker.deliver.retained import Retained
from penstock.broker.deliver.routes import (
    Router,
    forward,
    offer_kept,
    offer_selected,
    spread,
)
from penstock.broker.deliver.stored_runs import stored_runs
from penstock.broker.engine import Engine
from penstock.broker.topic.topics import Topic
from penstock.core.delivery.run import Run
from penstock.log.format.batch import Batch
from penstock.log.waiting import append_durably


class Delivery:
    """Follows the commits of all topics."""

    def __init__(
        self, engine: Engine, router: Router, retained: Retained, *, keeps_qos0: bool = False
    ) -> None:
        self._topics = engine.topics
        self._clock = engine.clock
        self._metrics = engine.metrics
        self._router = router
        self._retained = retained
        self._keeps_qos0 = keeps_qos0
        engine.followers.append(self._committed)
        if keeps_qos0:
            engine.watch_all()

    def _committed(self, topic: Topic, batch: Batch, runs: Runs) -> None:
        """A batch is durable: keep what it retains, hand it to those who read its names."""
        base = batch.base_offset
        if runs is not None:
            is_heard = not self._router.is_empty
            is_retained = False
            for index, run in runs:
                if is_heard:
                    self._deliver(topic, run, base + index)
                if run.retain:
                    is_retained = True
            if is_retained:
                self._retained.follow(topic.id, batch)
            return
        self._retained.follow(topic.id, batch)
        if self._router.is_empty or not self._has_readers(topic, batch):
            return
        wanted = {
            number
            for number, name in enumerate(batch.strings)
            if self._router.find_in(topic, name).has_readers
        }
        if wanted:
            for offset, run in stored_runs(batch, base, self._clock, wanted):
                self._deliver(topic, run, offset)

    def _has_readers(self, topic: Topic, batch: Batch) -> bool:
        """Whether somebody here may want a message of a batch; decodes nothing."""
        if batch.undecoded is None:
            return True  # its names are at hand
        return any(self._router.find_in(topic, name).has_readers for name in batch.glimpse_names())

    def _deliver(self, topic: Topic, run: Run, offset: int) -> None:
        route = self._router.find_in(topic, run.name)
        lanes = route.lanes_weak if run.qos else route.lanes_later
        delivered = forward(lanes, run) if lanes else 0
        if run.qos > 0:
            for member in route.strong:
                if member.no_local:
                    delivered += offer_selected(member, topic.id, offset, run)
                    continue
                member.session.offer(topic.id, offset, run, member.encodings[run.qos])
                delivered += run.count
            for one in route.shares:
                delivered += one.share.offer(topic.id, offset, run, one.members)
        elif route.shares:
            if self._keeps_qos0:
                for one in route.shares:
                    delivered += one.share.offer(topic.id, offset, run, one.members)
            else:
                spread(route.shares, run, self._metrics)
        if route.kept:
            delivered += offer_kept(route, topic.id, offset, run)
        self._metrics.records_delivered += delivered

    @property
    def is_retaining(self) -> bool:
        """Is a retained message on its way to the disk?"""
        return any(topic.log.is_retaining for topic in self._topics.all())

    async def wait_retained(self) -> None:
        """Suspends until every retained message that is on its way now is durable, or refused.

        A subscriber is given what is retained when it subscribes (MQTT 5 §3.3.1.3), and a message
        is in that view from its commit on. Later ones hold nobody up.
        """
        logs = [topic.log for topic in self._topics.all() if topic.log.is_retaining]
        await asyncio.gather(*[append_durably(log, []) for log in logs], return_exceptions=True)
