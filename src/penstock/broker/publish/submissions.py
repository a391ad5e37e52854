"""Messages that name their topic, from doors that answer with offsets.

All runs of a submission go into one batch, next to each other: they are stored together or not at
all. Where more waits for a log's commit than should, submissions wait in order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from penstock.broker.deliver.exchange import Exchange
from penstock.broker.publish.run import Run
from penstock.broker.topics import Topic
from penstock.core.access import PUBLISH, Principal
from penstock.core.names import quoted
from penstock.log.format.batch_bytes import KIND_SHIFT, RETAIN
from penstock.log.format.marks import Mark, encode_headers
from penstock.model.errors import NotAuthorized, UnavailableError
from penstock.model.messages import check_payload

HOLD_S: Final = 0.002  # between looks whether a full log has room again
RECORDS_MAX: Final = 50_000  # of one submission; a batch holds many

OnStored = Callable[[int, Exception | None], None]  # the first offset, or why there is none


class Submission:
    """Implements the log's Waiter for runs that were handed over together."""

    __slots__ = ("_exchange", "_on_stored", "marks", "runs", "topic")

    def __init__(
        self,
        exchange: Exchange,
        topic: Topic,
        runs: Sequence[Run],
        on_stored: OnStored,
        marks: Sequence[Mark],
    ) -> None:
        self._exchange = exchange
        self._on_stored = on_stored
        self.topic = topic
        self.runs = runs
        self.marks = marks

    def committed(self, offset: int) -> None:
        at = offset
        for run in self.runs:
            self._exchange.deliver(self.topic, run, at)
            at += run.count
        self._on_stored(offset, None)

    def refused(self, error: Exception) -> None:
        for run in self.runs:
            self._exchange.withdraw(self.topic, run)
        self._on_stored(-1, error)


class Submissions:
    """Takes submissions for all topics, on the event loop."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._engine = exchange.engine
        self._held: dict[int, deque[Submission]] = {}  # by topic id: the log had no room

    def submit(
        self,
        principal: Principal,
        topic: Topic,
        runs: Sequence[Run],
        on_stored: OnStored,
        marks: Sequence[Mark] = (),
    ) -> None:
        """Store runs of checked names; `on_stored` hears when all are durable, or why none is.

        A mark's index counts within the first run. Raises what refuses them before anything else.
        """
        self._check(principal, runs)
        submission = Submission(self._exchange, topic, runs, on_stored, marks)
        held = self._held.get(topic.id)
        if held is None and not topic.log.is_congested:
            self._append(submission)
            return
        if held is None:
            held = self._held[topic.id] = deque()
            asyncio.get_running_loop().call_later(HOLD_S, self._go_on, topic, held)
        held.append(submission)

    def _check(self, principal: Principal, runs: Sequence[Run]) -> None:
        engine = self._engine
        if engine.upkeep.refusal:
            engine.metrics.refused["disk"] += sum([run.count for run in runs])
            raise UnavailableError(engine.upkeep.refusal)
        bytes_max = engine.settings.payload_bytes_max
        for run in runs:
            if not self._exchange.authorise(principal, PUBLISH, run.name):
                engine.metrics.dropped["not_authorized"] += run.count
                raise NotAuthorized(f"publishing to {quoted(run.name)} is not allowed")
            if len(run.data) > bytes_max:
                for start, length in zip(run.starts, run.lengths, strict=True):
                    check_payload(run.data[start : start + length], bytes_max)

    def _append(self, submission: Submission) -> None:
        topic = submission.topic
        log = topic.log
        waiter: Submission | None = submission
        marks = submission.marks
        for run in submission.runs:
            self._exchange.enter(topic, run)
        for run in submission.runs:
            log.append_run(
                run.name,
                run.data,
                run.starts,
                run.lengths,
                run.qos | (RETAIN if run.retain else 0) | run.kind << KIND_SHIFT,
                run.publisher,
                self._engine.clock.expires_at(run.until_us) if run.until_us else 0,
                encode_headers(run.headers) if run.headers else b"",
                waiter,
                is_urgent=True,
                marks=marks,
            )
            waiter, marks = None, ()  # a log that refuses the first refuses them all

    def _go_on(self, topic: Topic, held: deque[Submission]) -> None:
        """Hand over what waited, in order, as far as there is room."""
        while held and not topic.log.is_congested:
            self._append(held.popleft())
        if held:
            asyncio.get_running_loop().call_later(HOLD_S, self._go_on, topic, held)
        else:
            del self._held[topic.id]
