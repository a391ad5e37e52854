"""The only place that asks the machine for the time; tests and simulation pass a ManualClock."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, Protocol

# It counts while the machine sleeps and goes on across restarts of the process. Where a system does
# not have it, the plain monotonic clock is used.
_STEADY_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


def read_boot_id() -> str:
    """Which run of the machine this is; empty where the system does not tell."""
    try:
        return Path(_BOOT_ID).read_text().strip()
    except OSError:
        return ""


class Clock(Protocol):
    """Wall time for people, stamps for records, steady time for durations, seconds for waits."""

    def now_us(self) -> int:
        """Microseconds since 1970, UTC. Jumps when somebody sets the machine's clock."""
        ...

    def stamp_us(self) -> int:
        """Wall time as records are stamped with it. The logs guard against one that falls."""
        ...

    def steady_us(self) -> int:
        """Microseconds that never jump. Only differences of two readings mean something."""
        ...

    def age_us(self, stamp_us: int) -> int:
        """How long ago something got a stamp; negative if the stamp lies ahead."""
        ...

    def monotonic_s(self) -> float:
        """Seconds that never run backwards, for waits of the event loop."""
        ...


class SystemClock:
    """The machine's clocks."""

    def __init__(self) -> None:
        # The very functions, where they are asked often.
        self.monotonic_s: Callable[[], float] = time.monotonic
        self.steady_ns: Callable[[], int] = partial(time.clock_gettime_ns, _STEADY_CLOCK)

    def now_us(self) -> int:
        return time.time_ns() // 1_000

    def stamp_us(self) -> int:
        return time.time_ns() // 1_000

    def steady_us(self) -> int:
        return self.steady_ns() // 1_000

    def age_us(self, stamp_us: int) -> int:
        return self.now_us() - stamp_us


class ManualClock:
    """A clock that moves only when told to."""

    def __init__(self, now_us: int = 1_700_000_000_000_000) -> None:
        self._now_us = now_us
        self._start_us = now_us
        self._monotonic_us = 0

    def now_us(self) -> int:
        return self._now_us

    def stamp_us(self) -> int:
        return self._now_us

    def steady_us(self) -> int:
        return self._start_us + self._monotonic_us

    def steady_ns(self) -> int:
        return self.steady_us() * 1_000

    def age_us(self, stamp_us: int) -> int:
        return self.now_us() - stamp_us

    def monotonic_s(self) -> float:
        return self._monotonic_us / 1_000_000

    def advance(self, seconds: float) -> None:
        """Let time pass on all clocks."""
        step_us = round(seconds * 1_000_000)
        self._now_us += step_us
        self._monotonic_us += step_us

    def set_wall(self, now_us: int) -> None:
        """Step the wall clock, as NTP or an operator may; steady time does not notice."""
        self._now_us = now_us
