"""The only place that knows the time; tests and simulation pass a ManualClock instead."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for stamps, monotonic time for waits."""

    def now_us(self) -> int:
        """Microseconds since 1970, UTC. May step backwards; whoever stamps guards against it."""
        ...

    def monotonic_s(self) -> float:
        """Seconds that never run backwards."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_us(self) -> int:
        return time.time_ns() // 1_000

    def monotonic_s(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that moves only when told to."""

    def __init__(self, now_us: int = 1_700_000_000_000_000) -> None:
        self._now_us = now_us
        self._monotonic_us = 0

    def now_us(self) -> int:
        return self._now_us

    def monotonic_s(self) -> float:
        return self._monotonic_us / 1_000_000

    def advance(self, seconds: float) -> None:
        """Let time pass on both clocks."""
        step_us = round(seconds * 1_000_000)
        self._now_us += step_us
        self._monotonic_us += step_us

    def set_wall(self, now_us: int) -> None:
        """Step the wall clock, as NTP or an operator may; monotonic time does not notice."""
        self._now_us = now_us
