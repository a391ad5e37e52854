"""Connections whose clients have not logged in, counted by network.

There are at most so many, and so many of one network. When all are there, the oldest one of the
network that has the most is closed for a newcomer: however many connections one network holds open,
the others get in. A network that has too many itself gets in when its oldest one had time to log
in: else a fleet that comes back through one address would keep closing what it just opened.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.core.networks import network_of

STRANGERS_MAX: Final = 10_000  # of a door: 2 to 3 KB each
STRANGERS_PER_NETWORK_MAX: Final = 5_000
GRACE_S: Final = 2.0  # for a stranger to log in before others of its network may take its place

# Log lines of the doors.
FULL: Final = "connection from %(peer)s refused: connections_max are open"
CROWDED: Final = (
    "connection from %(peer)s refused: too many clients of its address have not logged in"
)
EVICTED: Final = (
    "connection from %(network)s closed: it had not logged in, its address has the most of such "
    "connections, and there was no room for another client"
)


class Strangers:
    """The strangers of one door, or of one stage before it; used on the event loop."""

    def __init__(
        self,
        now_s: Callable[[], float],
        count_max: int = STRANGERS_MAX,
        per_network_max: int = STRANGERS_PER_NETWORK_MAX,
        *,
        on_evict: Callable[[str], None],
    ) -> None:
        """`on_evict` hears the network of each stranger that is closed for another one."""
        self._now_s = now_s
        self._on_evict = on_evict
        self._count_max = count_max
        self._per_network_max = per_network_max
        self._networks: dict[str, dict[Stranger, None]] = {}  # each with the oldest first
        # Networks by how many strangers they have, so that the greediest is known at once.
        self._by_count: list[dict[str, None]] = [{}]
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def has_room(self, source: str, room: int) -> bool:
        """Whether another one may come from here; if need be, one of another network goes.

        `room` is how many the door can hold now, whatever the bounds are.
        """
        network = network_of(source)
        own = len(self._networks.get(network, ()))
        if own < self._per_network_max and self._count < min(room, self._count_max):
            return True
        if not self._count:
            return False
        greediest = network
        if own < min(self._per_network_max, len(self._by_count) - 1):
            greediest = next(iter(self._by_count[-1]))
        oldest = next(iter(self._networks[greediest]), None)
        if oldest is None or (greediest == network and self._now_s() - oldest.since_s < GRACE_S):
            return False
        self._evict(oldest)
        return True

    def evict(self) -> bool:
        """Close the oldest stranger of the greediest network; False if there is no stranger."""
        if not self._count:
            return False
        self._evict(next(iter(self._networks[next(iter(self._by_count[-1]))])))
        return True

    def _evict(self, one: Stranger) -> None:
        one.leave()
        one.close()
        self._on_evict(one.network)

    def enter(self, source: str, close: Callable[[], None]) -> Stranger:
        """A connection begins; `close` ends it at once."""
        one = Stranger(self, network_of(source), self._now_s(), close)
        own = self._networks.setdefault(one.network, {})
        own[one] = None
        self._count += 1
        self._recount(one.network, len(own) - 1, len(own))
        return one

    def leave(self, one: Stranger) -> None:
        own = self._networks[one.network]
        del own[one]
        self._count -= 1
        self._recount(one.network, len(own) + 1, len(own))
        if not own:
            del self._networks[one.network]

    def _recount(self, network: str, before: int, after: int) -> None:
        by_count = self._by_count
        by_count[before].pop(network, None)
        if after == len(by_count):
            by_count.append({})
        if after:
            by_count[after][network] = None
        while len(by_count) > 1 and not by_count[-1]:
            by_count.pop()


class Stranger:
    """One connection, until its client is known or it is closed."""

    __slots__ = ("_strangers", "close", "is_inside", "network", "since_s")

    def __init__(
        self, strangers: Strangers, network: str, since_s: float, close: Callable[[], None]
    ) -> None:
        self._strangers = strangers
        self.network = network
        self.since_s = since_s
        self.close = close
        self.is_inside = True

    def leave(self) -> None:
        """It is known who it is, or the connection is closed; again: nothing happens."""
        if self.is_inside:
            self.is_inside = False
            self._strangers.leave(self)
