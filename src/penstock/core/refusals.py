"""How many refused logins are recorded one by one: strangers may not fill the audit topic.

In each window of time so many of one network, and so many of all. The others are counted, by
network.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

NETWORK_MAX: Final = 100  # more than a person's mistakes, or a fleet's after a change of passwords
ALL_MAX: Final = 1_000  # some 30 KB of records a second
NETWORKS_MAX: Final = 10_000  # counted one by one
OTHERS: Final = "other networks"


class Refusals:
    """Those of one window."""

    def __init__(self) -> None:
        self._recorded: Counter[str] = Counter()
        self._recorded_count = 0
        self._left_out: Counter[str] = Counter()

    def admit(self, network: str) -> bool:
        """Whether one more of this network is recorded; if not, it is counted."""
        if self._recorded_count < ALL_MAX and self._recorded[network] < NETWORK_MAX:
            self._recorded_count += 1
            self._recorded[network] += 1
            return True
        is_known = network in self._left_out or len(self._left_out) < NETWORKS_MAX
        self._left_out[network if is_known else OTHERS] += 1
        return False

    def take(self) -> list[tuple[str, int]]:
        """How many of each network were left out, most first; a new window begins."""
        left_out, self._left_out = self._left_out, Counter()
        self._recorded, self._recorded_count = Counter(), 0
        named = left_out.most_common(ALL_MAX)
        rest = left_out.total() - sum(count for _, count in named)
        return [*named, (OTHERS, rest)] if rest else named
