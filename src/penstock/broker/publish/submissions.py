"""Messages that name their topic, from doors that answer with offsets.

All runs of a submission go into one batch, next to each other: they are stored together or not at
all. Where a topic has several partitions that holds for the runs of each partition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from penstock.broker.deliver.retained import Retained
from penstock.broker.engine import Engine
from penstock.broker.topic.topics import Topic
from penstock.broker.trace.watch import Watched
from penstock.core.access import PUBLISH, Authorise, Principal, denial
from penstock.core.delivery.run import Run
from penstock.core.naming.names import quoted
from penstock.log.format.marks import Mark
from penstock.log.interface import Waiter
from penstock.model.errors import NotAuthorized, PenstockError, QuotaExceeded

RECORDS_MAX: Final = 50_000  # of one submission; a batch holds many

OnStored = Callable[[int, Exception | None], None]  # the first offset, or the error


class Submission:
    """Implements the log's Waiter for runs that were handed over together."""

    __slots__ = ("_on_stored",)

    def __init__(self, on_stored: OnStored) -> None:
        self._on_stored = on_stored

    @property
    def has_given_up(self) -> bool:
        return False

    def committed(self, offset: int) -> None:
        self._on_stored(offset, None)

    def refused(self, error: Exception) -> None:
        self._on_stored(-1, error)


class PartAnswers:
    """What the parts of a submission have answered by now."""

    __slots__ = ("_error", "_firsts", "_left", "_on_stored")

    def __init__(
        self, count: int, on_stored: Callable[[dict[int, int], Exception | None], None]
    ) -> None:
        self._left = count
        self._on_stored = on_stored
        self._firsts: dict[int, int] = {}
        self._error: Exception | None = None

    def note(self, part_id: int, offset: int, error: Exception | None) -> None:
        self._left -= 1
        if error is None:
            self._firsts[part_id] = offset
        else:
            self._error = error
        if not self._left:
            self._on_stored(self._firsts, self._error)


class PartSubmission:
    """Implements the log's Waiter for the runs of one part."""

    __slots__ = ("_answers", "_part_id")

    def __init__(self, answers: PartAnswers, part_id: int) -> None:
        self._answers = answers
        self._part_id = part_id

    @property
    def has_given_up(self) -> bool:
        return False

    def committed(self, offset: int) -> None:
        self._answers.note(self._part_id, offset, None)

    def refused(self, error: Exception) -> None:
        self._answers.note(self._part_id, -1, error)


def built_in_denial(topic: Topic) -> str:
    """What somebody is told who writes to a topic of the broker itself."""
    return f"topic {quoted(topic.declared)} is built in: only the broker itself writes to it"


class Submissions:
    """Takes submissions for all topics, on the event loop."""

    def __init__(self, engine: Engine, authorise: Authorise, retained: Retained) -> None:
        self._engine = engine
        self._authorise = authorise
        self._retained = retained

    def submit(
        self,
        principal: Principal,
        topic: Topic,
        runs: Sequence[Run],
        on_stored: OnStored,
        marks: Sequence[Mark] = (),
    ) -> None:
        """Store runs of checked names; `on_stored` hears when all are durable, or why none is.

        A mark's index counts within the runs. Raises what refuses them before anything else.
        """
        if topic.is_built_in:
            raise NotAuthorized(built_in_denial(topic))
        self._check(principal, topic, runs)
        topic.log.append(runs, self._heard(runs, Submission(on_stored)), marks)

    def submit_parts(
        self,
        principal: Principal,
        topic: Topic,
        groups: Sequence[tuple[Topic, list[Run]]],
        on_stored: Callable[[dict[int, int], Exception | None], None],
    ) -> None:
        """As `submit`, for runs of several parts, each of which stores its own as a whole.

        `on_stored` hears when all have answered: the first offset by part id, or why one failed.
        """
        if topic.is_built_in:
            raise NotAuthorized(built_in_denial(topic))
        self._check(principal, topic, [run for _, runs in groups for run in runs])
        answers = PartAnswers(len(groups), on_stored)
        for part, runs in groups:
            part.log.append(runs, self._heard(runs, PartSubmission(answers, part.id)))

    def _heard(self, runs: Sequence[Run], waiter: Waiter) -> Waiter:
        """A trace hears of it, too, if they cannot be written."""
        watch = self._engine.watch
        return waiter if watch is None else Watched(watch, runs, waiter)

    def _check(self, principal: Principal, topic: Topic, runs: Sequence[Run]) -> None:
        engine = self._engine
        count = size = 0
        for run in runs:
            try:
                if not self._authorise(principal, PUBLISH, run.name, topic.key):
                    engine.metrics.dropped["not_authorized"] += run.count
                    raise NotAuthorized(denial(principal, PUBLISH, run.name))
                engine.check(topic, run)
            except PenstockError as error:
                self._tell(principal, [run], error)
                raise
            count += run.count
            size += len(run.data)
        try:
            engine.quotas.check_rate(principal.user, count, size)
            retained = [run for run in runs if run.retain]
            if retained:
                self._admit_retained(retained, principal.owner)
        except QuotaExceeded as exceeded:
            self._tell(principal, runs, exceeded)
            raise
        engine.metrics.records_submitted += count

    def _tell(self, principal: Principal, runs: Sequence[Run], error: Exception) -> None:
        """Let a trace know that messages were refused."""
        if self._engine.watch is not None:
            for run in runs:
                self._engine.watch.refused(principal.user, run, type(error).__name__, error)

    def _admit_retained(self, runs: Sequence[Run], owner: str | None) -> None:
        """QuotaExceeded if one of them may not be retained: then none is stored."""
        for at, run in enumerate(runs):
            exceeded = self._retained.exceeded(self._engine.quotas, run, owner)
            if exceeded is not None:
                for admitted in runs[:at]:
                    self._retained.give_up(admitted.name)
                raise exceeded
