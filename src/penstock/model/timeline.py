"""The broker's time: a steady timeline for durations, stamps for records, and how they relate.

Steady time advances at the rate of the machine's steady clock, whatever somebody does to the wall
clock. It began as wall time with the first start of the broker and goes on across restarts.

Stamps follow the wall clock and never fall. The ledger notes each time they had to leave a straight
line: *pieces*, in each of which a stamp belongs to exactly one steady time. So the age of a record
is known from its stamp, however often the wall clock was set since.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.model.clock import ManualClock, SystemClock

STEP_US_MIN: Final = 100_000  # NTP corrects less without a step; stamps may be off by so much
AWAY_US_MAX: Final = 24 * 3600 * 1_000_000  # what a wall clock is trusted with across a boot
PIECES_MAX: Final = 1_000  # a clock that is set every day fills them in a year or more

FULL_RATE: Final = 0
# Stamps wait for a wall clock that was set back: a 1,024th of the rate is almost standing still,
# and a stamp still tells its steady time to a millisecond.
SLOW_RATE: Final = 10


@dataclass(frozen=True, slots=True)
class Piece:
    """From here on a stamp advances by 1 / 2**slowness µs in each steady µs."""

    stamp_us: int
    steady_us: int
    slowness: int


@dataclass(frozen=True, slots=True)
class ClockReading:
    """All clocks at one moment, for the next start."""

    boot_id: str  # of the machine's run; empty if nobody knows
    machine_us: int  # the machine's steady clock, which only this run of the machine has
    steady_us: int
    wall_us: int
    pieces: tuple[Piece, ...]


class Timeline:
    """A Clock for everything in one broker. Used on the event loop."""

    def __init__(self, clock: SystemClock | ManualClock, boot_id: str = "") -> None:
        # Not a Clock: compiled code calls the methods of these classes without looking them up.
        self._clock = clock
        self._boot_id = boot_id
        now_us = clock.now_us()
        self._lead_us = now_us - clock.steady_us()  # of steady time over the machine's
        self._pieces = [Piece(now_us, now_us, FULL_RATE)]
        self._enter(self._pieces[0])

    def _enter(self, piece: Piece) -> None:
        self._stamp_us = piece.stamp_us
        self._steady_us = piece.steady_us
        self._slowness = piece.slowness

    # What time it is

    def now_us(self) -> int:
        return self._clock.now_us()

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s()

    def steady_us(self) -> int:
        return self._clock.steady_us() + self._lead_us

    def stamp_us(self) -> int:
        steady_us = self._clock.steady_ns() // 1_000 + self._lead_us  # with every append: no detour
        return self._stamp_us + ((steady_us - self._steady_us) >> self._slowness)

    def _stamp_at(self, steady_us: int) -> int:
        """In the newest piece."""
        return self._stamp_us + ((steady_us - self._steady_us) >> self._slowness)

    # Stamps and steady time

    def stamp_at(self, steady_us: int) -> int:
        """What a record would have been stamped with at a steady time."""
        for piece in reversed(self._pieces):
            if piece.steady_us <= steady_us:
                return piece.stamp_us + ((steady_us - piece.steady_us) >> piece.slowness)
        first = self._pieces[0]
        return first.stamp_us + steady_us - first.steady_us

    def steady_at(self, stamp_us: int) -> int:
        """When a record was stamped; one from before the ledger lies on a straight line."""
        until_us = self.steady_us() if self._slowness else 0  # 0: no piece has ended yet
        for piece in reversed(self._pieces):
            if piece.stamp_us <= stamp_us:
                found_us = piece.steady_us + ((stamp_us - piece.stamp_us) << piece.slowness)
                return min(found_us, until_us) if until_us else found_us
            until_us = piece.steady_us
        first = self._pieces[0]
        return first.steady_us + stamp_us - first.stamp_us

    def age_us(self, stamp_us: int) -> int:
        return self.steady_us() - self.steady_at(stamp_us)

    def until_us(self, stamp_us: int, expires_at: int) -> int:
        """The steady time at which a stored message expires."""
        return self.steady_at(stamp_us) + expires_at - stamp_us

    def expires_at(self, until_us: int) -> int:
        """What to store with a message, stamped now, that expires at a steady time."""
        steady_us = self.steady_us()
        return self._stamp_at(steady_us) + until_us - steady_us

    # Following the wall clock

    def follow(self) -> bool:
        """Let stamps follow a wall clock that was set; True if they did. Called every second."""
        steady_us, now_us = self.steady_us(), self.now_us()
        stamp_us = self._stamp_at(steady_us)
        ahead_us = now_us - stamp_us
        if ahead_us > STEP_US_MIN or (self._slowness and ahead_us >= 0):
            piece = Piece(now_us, steady_us, FULL_RATE)
        elif ahead_us < -STEP_US_MIN and not self._slowness:
            piece = Piece(stamp_us, steady_us, SLOW_RATE)
        else:
            return False
        self._pieces.append(piece)
        del self._pieces[:-PIECES_MAX]
        self._enter(piece)
        return True

    # Across restarts

    def reading(self) -> ClockReading:
        machine_us = self._clock.steady_us()
        steady_us = machine_us + self._lead_us
        pieces = tuple(self._pieces)
        return ClockReading(self._boot_id, machine_us, steady_us, self.now_us(), pieces)

    def resume(self, saved: ClockReading) -> None:
        """Go on where an earlier broker was, plus the time that has passed since.

        The machine's steady clock knows it while the machine has not been restarted. Else there is
        only the wall clock, which is trusted for at most a day.
        """
        machine_us = self._clock.steady_us()
        if self._boot_id and saved.boot_id == self._boot_id:
            passed_us = max(machine_us - saved.machine_us, 0)
        else:
            passed_us = min(max(self.now_us() - saved.wall_us, 0), AWAY_US_MAX)
        self._lead_us = saved.steady_us + passed_us - machine_us
        self._pieces = list(saved.pieces)
        self._enter(self._pieces[-1])
