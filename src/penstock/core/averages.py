"""Moving averages of a counter, as the load of a machine is told: over 1, 5 and 15 minutes."""

from __future__ import annotations

import math
from typing import Final

MINUTES: Final = (1, 5, 15)


class Averages:
    """How much a counter grows in a minute; the last minutes weigh more than those before."""

    __slots__ = ("_total", "per_minute")

    def __init__(self, total: int = 0) -> None:
        self._total = total
        self.per_minute = [0.0] * len(MINUTES)  # one for each of MINUTES

    def update(self, total: int, elapsed_s: float) -> None:
        """The counter stands at `total` now, `elapsed_s` after the last update."""
        if elapsed_s <= 0:
            return
        now = (total - self._total) * 60 / elapsed_s
        self._total = total
        for index, minutes in enumerate(MINUTES):
            weight = math.exp(-elapsed_s / (60 * minutes))
            self.per_minute[index] = now + weight * (self.per_minute[index] - now)
