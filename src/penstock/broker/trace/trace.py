"""One trace: which messages it follows, and the newest events of them.

Invariant: it holds at most EVENTS_MAX events and takes at most EVENTS_PER_S of them in a second;
what it leaves out is counted. Numbers of events rise, so a reader that was told one asks for those
behind it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

import msgspec

from penstock.core.naming.names import matches

EVENTS_MAX: Final = 2_000
EVENTS_PER_S: Final = 500
NAMES_MAX: Final = 10_000  # whose answer is remembered

RECEIVED: Final = "received"
STORED: Final = "stored"
REFUSED: Final = "refused"
SENT: Final = "sent"
SENT_AGAIN: Final = "sent again"
ACKNOWLEDGED: Final = "acknowledged"
WAITING: Final = "waiting"
DROPPED: Final = "dropped"
READ: Final = "read"
GIVEN_BACK: Final = "given back"
REMOVED: Final = "removed"


class TraceEvent(msgspec.Struct, omit_defaults=True):
    """Something that happened to `count` messages of a name; `offset` is that of the first."""

    number: int
    at: int  # µs since 1970
    what: str
    name: str
    topic: str = ""  # empty where it is not known
    offset: int | None = None  # a message of QoS 0 is sent before it has one
    count: int = 1
    client: str = ""  # the publisher, or who it was for
    qos: int | None = None
    detail: str = ""
    partition: int = 0


class Trace:
    """Follows messages whose name matches a filter, and those that a client sends or receives."""

    def __init__(self, id: int, names: str, client: str, started_at: int, ends_at: int) -> None:
        self.id = id
        self.names = names  # '': none
        self.client = client  # '': none
        self.started_at = started_at
        self.ends_at = ends_at
        self.is_on = True
        self.skipped = 0  # events that came too fast
        self.last_number = 0
        self.timer: asyncio.TimerHandle | None = None
        self._events: deque[TraceEvent] = deque(maxlen=EVENTS_MAX)
        self._answers: dict[str, bool] = {}
        self._second = 0
        self._left = EVENTS_PER_S
        self._waiters: list[asyncio.Future[None]] = []

    def wants_name(self, name: str) -> bool:
        answer = self._answers.get(name)
        if answer is None:
            if len(self._answers) >= NAMES_MAX:
                self._answers.clear()
            answer = self._answers[name] = bool(self.names) and matches(self.names, name)
        return answer

    def wants(self, name: str, client: str) -> bool:
        return (bool(self.client) and client == self.client) or self.wants_name(name)

    def add(self, event: TraceEvent, now_us: int) -> None:
        """Keep an event; the oldest one goes when there are too many."""
        second = now_us // 1_000_000
        if second != self._second:
            self._second, self._left = second, EVENTS_PER_S
        if self._left <= 0:
            self.skipped += 1
            return
        self._left -= 1
        self.last_number += 1
        event.number = self.last_number
        self._events.append(event)
        self._wake()

    def events_after(self, number: int) -> list[TraceEvent]:
        return [one for one in self._events if one.number > number]

    def events_of(self, topic: str, partition: int, offset: int) -> list[TraceEvent]:
        """The events of one record."""
        return [
            one
            for one in self._events
            if one.topic == topic
            and one.partition == partition
            and one.offset is not None
            and one.offset <= offset < one.offset + one.count
        ]

    def end(self) -> None:
        """Nothing is added any more; its events can still be read."""
        self.is_on = False
        if self.timer is not None:
            self.timer.cancel()
        self._wake()

    def wait_event(self) -> asyncio.Future[None]:
        """Resolves with the next event, or at the end of the trace."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.is_on:
            self._waiters.append(waiter)
        else:
            waiter.set_result(None)
        return waiter

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for one in waiters:
            if not one.done():
                one.set_result(None)
