"""When logs commit: one round takes what all of them collected while the last round ran.

The same for every backend; what a job is and where a round runs is theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

LINGER_S: Final = 0.1  # how long what nobody waits for may gather (docs/decisions/0003)
LINGER_S_WATCHED: Final = 0.005  # the same while readers wait at the end of the log


class Job(Protocol):
    """One batch on its way into one log."""

    @property
    def is_quick(self) -> bool:
        """It is done sooner than handed to a thread."""
        ...

    @property
    def is_short(self) -> bool:
        """The same, while the event loop has nothing else to do."""
        ...

    def run(self) -> None:
        """Do it here and now; only asked of a quick one or a short one."""
        ...


J = TypeVar("J", bound=Job)


class CommitTarget(Protocol[J]):
    """A log's side of a round; called on the event loop."""

    def begin_commit(self) -> J | None: ...

    def finish_commit(self, job: J) -> None: ...


class Rounds(Protocol[J]):
    """Where rounds run."""

    def commit(self, jobs: list[J], done: Callable[[], None]) -> None:
        """Do the jobs elsewhere, then call `done` on the event loop."""
        ...


class Committer(Generic[J]):
    """Decides when a round begins. Used on the event loop only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rounds: Rounds[J]) -> None:
        self._loop = loop
        # All that arrives in this tick shares the round; a loop may know where its tick ends.
        self._at_tick_end: Callable[[Callable[[], None]], object]
        self._at_tick_end = getattr(loop, "call_at_tick_end", loop.call_soon)
        # A loop may know that only one client is active: then nobody else waits for a short job.
        self._is_quiet: Callable[[], bool] = getattr(loop, "is_quiet", _never)
        self._rounds = rounds
        self._dirty: dict[CommitTarget[J], None] = {}
        self._targets: list[CommitTarget[J]] = []  # logs with a job in the round that runs
        self._jobs: list[J] = []  # theirs
        self._is_busy = False
        self._is_scheduled = False
        self._is_awaited = False  # somebody waits for what is dirty
        self._is_watched = False  # readers wait at the end of what is dirty
        self._is_hasty = False  # the timer takes that into account
        self._timer: asyncio.TimerHandle | None = None

    def touch(self, log: CommitTarget[J]) -> None:
        """The log has something pending: it takes part in the next round."""
        self._dirty[log] = None
        self._is_awaited = True
        if not self._is_busy and not self._is_scheduled:
            self._is_scheduled = True
            self._at_tick_end(self._begin)

    def touch_soon(self, log: CommitTarget[J], is_watched: bool) -> None:
        """The log has something pending that no publisher waits for: let more of it gather."""
        self._dirty[log] = None
        if is_watched:
            self._is_watched = True
        self._linger()

    def _linger(self) -> None:
        if self._is_busy or self._is_scheduled:
            return
        if self._is_watched and not self._is_hasty and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._is_hasty = self._is_watched
            wait_s = LINGER_S_WATCHED if self._is_hasty else LINGER_S
            self._timer = self._loop.call_later(wait_s, self._begin)

    def _begin(self) -> None:
        self._is_scheduled = self._is_awaited = self._is_watched = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_busy:
            return
        logs = list(self._dirty)
        self._dirty.clear()
        for log in logs:
            job = log.begin_commit()
            if job is None:
                continue
            if job.is_quick or (len(logs) == 1 and job.is_short and self._is_quiet()):
                job.run()
                log.finish_commit(job)
            else:
                self._targets.append(log)
                self._jobs.append(job)
        if self._jobs:
            self._is_busy = True
            self._rounds.commit(self._jobs, self._finish)

    def _finish(self) -> None:
        self._is_busy = False
        targets, self._targets = self._targets, []
        jobs, self._jobs = self._jobs, []
        for log, job in zip(targets, jobs, strict=True):
            log.finish_commit(job)
        if self._dirty and not self._is_scheduled:
            if self._is_awaited:
                self._begin()
            else:  # what came during the round may gather as if none had run
                self._linger()


def _never() -> bool:
    return False
