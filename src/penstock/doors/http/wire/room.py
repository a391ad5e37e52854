"""Large answers on their way to clients that may be slow: bounded together, sent piece by piece.

An answer above `LARGE_BYTES` has a place in the door's `Room` until its client has taken it. Who
finds no place waits for one in turn; what it will be sent is read when it has the place. So clients
that take nothing cannot grow the memory, however many they are. While others wait, a client that
takes its answer too slowly loses its place and its connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeVar

from penstock.doors.budget import Budget, Share
from penstock.doors.http.wire.messages import Pairs, Streamed, Writer
from penstock.model.limits import KIB, MIB

T = TypeVar("T")

LARGE_BYTES: Final = 256 * KIB  # smaller answers are made whole and need no place
ROOM_BYTES_MAX: Final = 96 * MIB  # of all large answers together; the largest record fits
READS_MAX: Final = 16  # at once, before it is known how large they are
SCANS_MAX: Final = 16  # the same for reads with filters, which may take seconds each
# While others wait, a client has to take 1 Mbit/s, after some seconds to begin with.
PACE_BYTES_S: Final = 128 * KIB
PACE_S: Final = 5


class Place:
    """Room for one large answer; `Room.release` gives it back."""

    __slots__ = ("_since", "_task", "sent_bytes", "share", "size")

    def __init__(self, share: Share, size: int) -> None:
        self.share = share
        self.size = size
        self.sent_bytes = 0  # handed to the connection, which takes little before its client does
        self._since = -1  # when the client could begin to take it
        self._task: asyncio.Task[Any] | None = None  # that sends it

    def begin(self, tick: int) -> None:
        """The current task sends the answer from now on."""
        self._since = tick
        self._task = asyncio.current_task()

    def is_slow(self, tick: int) -> bool:
        """Does its client take less than it has to while others wait?"""
        took_s = tick - self._since
        return self._since >= 0 and took_s > PACE_S and self.sent_bytes < took_s * PACE_BYTES_S

    def end(self) -> None:
        """Break the answer off."""
        if self._task is not None:
            self._task.cancel()


class Room:
    """Places for large answers."""

    def __init__(self, bytes_max: int = ROOM_BYTES_MAX) -> None:
        self._budget = Budget(bytes_max)
        self._waiting: deque[tuple[asyncio.Future[None], Place]] = deque()
        self._places: set[Place] = set()
        self._reads = asyncio.Semaphore(READS_MAX)
        self._scans = asyncio.Semaphore(SCANS_MAX)
        self._tick = 0  # seconds

    @staticmethod
    def is_small(size: int) -> bool:
        """An answer made of so many bytes needs no place."""
        return size <= LARGE_BYTES

    @property
    def is_crowded(self) -> bool:
        """Would a large answer have to wait for a place?"""
        budget = self._budget
        return bool(self._waiting) or budget.bytes > budget.bytes_max // 2

    # Reading what will be sent

    async def read(
        self,
        read: Callable[[], Awaitable[T]],
        size_of: Callable[[T], int],
        measure: Callable[[], Awaitable[int]] | None = None,
        *,
        is_scan: bool = False,
    ) -> tuple[T, Place | None]:
        """What `read` returns, and its place if it is large.

        While the room is crowded, nobody holds in memory what has no place: it is looked at first
        how large the answer will be. `measure` does so where reading changes something; by default
        it is read twice.
        """
        found: T | None = None
        async with self._scans if is_scan else self._reads:
            if not self.is_crowded:
                found = await read()
                size = size_of(found)
            elif measure is None:
                size = size_of(await read())
            else:
                size = await measure()
            # At most READS_MAX and SCANS_MAX wait with what they found: then it is crowded.
            entered = None if self.is_small(size) else self._enter(size)
        place = None if entered is None else await self._wait(*entered)
        if found is None:
            try:
                found = await read()
            except BaseException:
                self.release(place)
                raise
        return found, place

    async def reserve(self, size: int) -> Place:
        """A place for an answer made of so many bytes; waits in turn."""
        return await self._wait(*self._enter(size))

    def find(self, size: int) -> Place | None:
        """A place, if there is one at once."""
        size = self._place_bytes(size)
        place = Place(Share(self._budget), size)
        if self._waiting or not place.share.take(size):
            return None
        self._places.add(place)
        return place

    def _place_bytes(self, size: int) -> int:
        return min(2 * size, self._budget.bytes_max)  # as it was stored, and as text

    def _enter(self, size: int) -> tuple[asyncio.Future[None], Place]:
        """Who is next in line for a place."""
        place = self.find(size)
        granted = asyncio.get_running_loop().create_future()
        if place is not None:
            granted.set_result(None)
        else:
            place = Place(Share(self._budget), self._place_bytes(size))
            self._waiting.append((granted, place))
        return granted, place

    async def _wait(self, granted: asyncio.Future[None], place: Place) -> Place:
        try:
            await granted
        except asyncio.CancelledError:
            self.release(place)
            raise
        return place

    def release(self, place: Place | None) -> None:
        """May be called again."""
        if place is None:
            return
        place.share.close()
        self._places.discard(place)
        while self._waiting:
            granted, following = self._waiting[0]
            if not granted.done():
                if not following.share.take(following.size):
                    return
                self._places.add(following)
                granted.set_result(None)
            self._waiting.popleft()

    # Sending it

    async def send(self, place: Place | None, pieces: Iterable[bytes], writer: Writer) -> None:
        """Hand the pieces over as the client takes them."""
        if place is not None:
            place.begin(self._tick)
        for piece in pieces:
            writer.write(piece)
            await writer.wait_room()
            if place is not None:
                place.sent_bytes += len(piece)

    def stream(
        self, place: Place, pieces: Iterable[bytes], content_type: str, headers: Pairs = ()
    ) -> Streamed:
        """An answer that has its place until it is sent."""

        async def produce(writer: Writer) -> None:
            await self.send(place, pieces, writer)

        return Streamed(
            produce, content_type, headers, on_end=lambda: self.release(place), is_finite=True
        )

    def look_at_time(self) -> None:
        """Called each second: while others wait, clients that are too slow lose their places."""
        self._tick += 1
        if self._waiting:
            for place in list(self._places):
                if place.is_slow(self._tick):
                    place.end()
