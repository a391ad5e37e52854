"""How many refused logins are recorded one by one: strangers may not fill the audit topic.

So many of one network at once, and so many of all; whoever goes on is recorded a few times in each
window of time. The others are counted, by network.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

WINDOW_S: Final = 10.0
NETWORK_MAX: Final = 100  # more than a person's mistakes, or a fleet's after a change of passwords
NETWORK_MORE: Final = 2  # in each window after that: some 5 MB of records a day
ALL_MAX: Final = 1_000
ALL_MORE: Final = 20  # with the sums some 100 MB a day, however many attack
NETWORKS_MAX: Final = 10_000  # counted one by one
NAMED_MAX: Final = 20  # in the sums of a window
OTHERS: Final = "other networks"


class Refusals:
    """Those of one window, and what was recorded before."""

    def __init__(self) -> None:
        self._recorded: Counter[str] = Counter()  # less what time has made good
        self._recorded_count = 0
        self._left_out: Counter[str] = Counter()
        self._counted_s = 0.0  # up to when time was counted

    def admit(self, network: str, now_s: float) -> bool:
        """Whether one more of this network is recorded; if not, it is counted."""
        self._make_good(now_s)
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
        named = left_out.most_common(NAMED_MAX)
        rest = left_out.total() - sum(count for _, count in named)
        return [*named, (OTHERS, rest)] if rest else named

    def _make_good(self, now_s: float) -> None:
        windows = int((now_s - self._counted_s) / WINDOW_S)
        if windows > 0:
            self._counted_s += windows * WINDOW_S
            self._recorded_count = max(0, self._recorded_count - windows * ALL_MORE)
            self._recorded -= Counter(dict.fromkeys(self._recorded, windows * NETWORK_MORE))
