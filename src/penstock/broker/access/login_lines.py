"""Logins wait in one line for each network, so that nobody uses up the places of the others.

Of one network LOGINS_PER_SOURCE_MAX are under way at once and the others wait behind them. All
lines together have LOGINS_MAX places. When these are taken, a login from a shorter line takes the
place of the newest one in the longest line: however many one network sends, another one gets in.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final

from penstock.model.errors import UnavailableError

LOGINS_MAX: Final = 1_000  # waiting or under way: what is done within 10 s, a client's patience
LOGINS_PER_SOURCE_MAX: Final = 8  # under way at once; the others of that network wait


class LoginLines:
    """The lines of all networks; used on the event loop."""

    def __init__(self, places_max: int = LOGINS_MAX) -> None:
        self._places_max = places_max
        self._lines: dict[str, _Line] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def join(self, network: str) -> Place:
        """A place at the end of the network's line; UnavailableError if there is none.

        Use the place with `async with`: the body runs when it is this login's turn.
        """
        line = self._lines.get(network)
        if self._count >= self._places_max:
            self._make_room(0 if line is None else line.length)
        if line is None:
            line = self._lines[network] = _Line()
        place = Place(self, network)
        self._count += 1
        if len(line.under_way) < LOGINS_PER_SOURCE_MAX:
            place.turn.set_result(None)
            line.under_way.add(place)
        else:
            line.waiting[place] = None
        return place

    def _make_room(self, length: int) -> None:
        """For a line of this length: the newest login that waits in the longest line gives way."""
        longest = max(self._lines.values(), key=_waiting_length)
        if not longest.waiting or longest.length <= length + 1:
            raise busy()
        place, _ = longest.waiting.popitem()
        self._count -= 1
        if not place.turn.done():
            place.turn.set_exception(busy())

    def leave(self, place: Place) -> None:
        """The login is over, or nobody waits for it; the next one of its network has its turn."""
        line = self._lines.get(place.network)
        if line is None:
            return
        if place in line.waiting:
            del line.waiting[place]
        elif place in line.under_way:
            line.under_way.remove(place)
            if line.waiting:
                first = next(iter(line.waiting))
                del line.waiting[first]
                line.under_way.add(first)
                if not first.turn.done():
                    first.turn.set_result(None)
        else:
            return  # it gave way
        self._count -= 1
        if not line.length:
            del self._lines[place.network]


class _Line:
    """The logins of one network."""

    __slots__ = ("under_way", "waiting")

    def __init__(self) -> None:
        self.under_way: set[Place] = set()
        self.waiting: dict[Place, None] = {}  # the oldest first

    @property
    def length(self) -> int:
        return len(self.under_way) + len(self.waiting)


class Place:
    """One login's place in its line."""

    __slots__ = ("_lines", "network", "turn")

    def __init__(self, lines: LoginLines, network: str) -> None:
        self._lines = lines
        self.network = network
        self.turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> None:
        try:
            await self.turn
        except BaseException:
            self._lines.leave(self)
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lines.leave(self)


def busy() -> UnavailableError:
    return UnavailableError("too many clients log in at once: try again")


def _waiting_length(line: _Line) -> int:
    return line.length if line.waiting else 0
