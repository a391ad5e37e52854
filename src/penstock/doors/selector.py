"""A selector for asyncio that also serves sockets of its own, without asyncio's cost per event.

asyncio's own descriptors are reported to it as usual. A descriptor registered with `serve` has its
handler called right inside `select`: one epoll for both, no transport, no handle per event. What
handlers leave for the end of the tick is done here too, and so is what other threads ask for. It
comes back only when asyncio has something to do: a descriptor, a timer, or a call that a handler
asked for, of which `DoorLoop` tells it (docs/decisions/0005).
"""

from __future__ import annotations

import math
import os
import select
import selectors
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

Handler = Callable[[int], None]  # takes the epoll events

EVENTS_MAX: Final = 512  # of one round; the rest comes with the next
READABLE: Final = select.EPOLLIN
WRITABLE: Final = select.EPOLLOUT
GONE: Final = select.EPOLLHUP | select.EPOLLERR
CROWD_ROUNDS: Final = 64  # so long after a third descriptor was active the loop is not quiet
# Who waits for each answer before it asks again is back sooner than a processor falls asleep and
# wakes up: the selector stays awake for it (docs/decisions/0037).
BRIEF_S: Final = 0.000_08  # a wait this short, with the waking up, was for such a client
BRIEF_WAITS_MIN: Final = 8  # in a row, until the next one is expected to be brief, too
AWAKE_S_MAX: Final = 0.000_05
# Only who is answered waits for answers. Who sends one message after the other is read less often
# if the selector sleeps: more messages at once, which costs less.
ANSWERED_WAITS: Final = 4  # so many waits after an answer; others are active between two of them
NO_FD: Final = -1


class DoorSelector(selectors.BaseSelector):
    """Implements what asyncio needs of a selector, on epoll."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._keys: dict[int, selectors.SelectorKey] = {}
        self._handlers: dict[int, Handler] = {}
        # Calls for the end of this tick: once all handlers were called, and those that come last,
        # when the tick will bring nothing more to send. Whoever wants one appends it.
        self.ending: list[Callable[[], None]] = []
        self.flushing: list[Callable[[], None]] = []
        self._asked: deque[Callable[[], None]] = deque()  # calls that other threads ask for
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_wanted = False  # asyncio has something to do that was not there when it asked
        self._now_s: Callable[[], float] = time.monotonic
        # The two descriptors that were active last: one client and its reader, while no other is.
        self._active = self._active_before = NO_FD
        self._crowd_rounds = CROWD_ROUNDS  # until it is quiet, if no other becomes active
        self._is_lone_event = False  # this round has one
        self._brief_waits = 0  # in a row
        self._answered_waits = 0  # that may still be for a client that was answered
        # The loop's: hears what a call at the end of a tick raised.
        self.on_mistake: Callable[[Exception], object] = _refuse
        self.serve(self._wake, self._answer)

    def come_back(self) -> None:
        """asyncio has something to do: return to the loop after this round of handlers."""
        self._is_wanted = True

    def is_quiet(self) -> bool:
        """Has nobody anything to do but the client that is served now, as far as is known?"""
        return self._is_lone_event and not self._crowd_rounds and not self._is_wanted

    def note_answer(self) -> None:
        """Who sent something last was sent something, too."""
        self._answered_waits = ANSWERED_WAITS

    def call_from_thread(self, call: Callable[[], None]) -> None:
        """Have this called as a handler is; from any thread."""
        self._asked.append(call)
        with suppress(OSError, ValueError):  # closed meanwhile: nobody is there to call it
            os.eventfd_write(self._wake, 1)

    def _answer(self, events: int) -> None:
        os.eventfd_read(self._wake)
        asked = self._asked
        while asked:
            self.ending.append(asked.popleft())

    def serve(self, fd: int, handler: Handler, events: int = READABLE) -> None:
        """Call `handler` whenever `fd` is ready for `events`, until `leave`."""
        self._epoll.register(fd, events)
        self._handlers[fd] = handler

    def change(self, fd: int, events: int) -> None:
        """From now on only these events of a served descriptor."""
        self._epoll.modify(fd, events)

    def leave(self, fd: int) -> None:
        """Stop serving; call it before the descriptor is closed."""
        del self._handlers[fd]
        self._epoll.unregister(fd)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._is_wanted = False
        # What asyncio called may have asked for the end of a tick. While asyncio has more to call
        # it comes after the poll: then nothing a client answers to the first part is taken before
        # the rest is put behind it.
        if (self.ending or self.flushing) and (timeout is None or timeout > 0):
            self._end_tick()
            if self._is_wanted:
                timeout = 0.0
                self._is_wanted = False
        end_s = 0.0 if timeout is None else self._now_s() + timeout
        left_s = timeout
        while True:
            if left_s is None:
                wait_s = -1.0
            elif left_s <= 0:
                wait_s = 0.0
            else:
                wait_s = math.ceil(left_s * 1e3) * 1e-3  # epoll counts milliseconds
            try:
                events = self._wait(wait_s)
            except InterruptedError:
                return []
            if not events:
                if self.ending or self.flushing:
                    self._end_tick()
                return []
            ready = self._serve_events(events)
            if ready or self._is_wanted:
                return ready
            if left_s is not None:
                left_s = end_s - self._now_s()
                if left_s <= 0:
                    return ready

    def _wait(self, wait_s: float) -> list[tuple[int, int]]:
        """The next events, at the latest after so long."""
        if self._crowd_rounds or not self._answered_waits or wait_s == 0.0:
            return self._epoll.poll(wait_s, EVENTS_MAX)
        self._answered_waits -= 1
        begin_s = self._now_s()
        if self._brief_waits >= BRIEF_WAITS_MIN:
            events = self._wait_awake(begin_s + AWAKE_S_MAX)
            if not events:
                self._brief_waits = 0
                events = self._epoll.poll(wait_s, EVENTS_MAX)
            return events
        events = self._epoll.poll(wait_s, EVENTS_MAX)
        if self._now_s() - begin_s < BRIEF_S:
            self._brief_waits += 1
        else:
            self._brief_waits = 0
        return events

    def _wait_awake(self, end_s: float) -> list[tuple[int, int]]:
        """The next events, if they come before then; other threads can run between two looks."""
        while True:
            events = self._epoll.poll(0.0, EVENTS_MAX)
            if events or self._now_s() >= end_s:
                return events

    def _serve_events(
        self, events: list[tuple[int, int]]
    ) -> list[tuple[selectors.SelectorKey, int]]:
        """Call the handlers; what is left is for asyncio."""
        ready = []
        handlers = self._handlers
        self._is_lone_event = len(events) == 1
        if self._crowd_rounds:
            self._crowd_rounds -= 1
        for fd, event in events:
            if fd != self._active and fd != self._active_before and fd != self._wake:
                self._active_before, self._active = self._active, fd
                self._crowd_rounds = CROWD_ROUNDS
            handler = handlers.get(fd)
            if handler is not None:
                handler(event)
                continue
            key = self._keys.get(fd)  # a handler may have closed what comes after it
            if key is not None:
                mask = 0
                if event & ~READABLE:
                    mask |= selectors.EVENT_WRITE
                if event & ~WRITABLE:
                    mask |= selectors.EVENT_READ
                if mask & key.events:
                    ready.append((key, mask & key.events))
        if self.ending or self.flushing:
            self._end_tick()
        self._is_lone_event = False
        return ready

    def _end_tick(self) -> None:
        while self.ending or self.flushing:
            calls = self.ending or self.flushing
            call = calls.pop() if len(calls) == 1 else calls.pop(0)
            try:
                call()
            except Exception as mistake:  # else it would end the loop
                self.on_mistake(mistake)

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        if fd in self._keys:
            raise KeyError(f"descriptor {fd} is registered already")
        key = selectors.SelectorKey(fileobj, fd, events, data)
        self._epoll.register(fd, _epoll_events(events))
        self._keys[fd] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        key = self.get_key(fileobj)
        del self._keys[key.fd]
        with suppress(OSError):  # closed before it was unregistered: epoll forgot it by itself
            self._epoll.unregister(key.fd)
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        old = self.get_key(fileobj)
        key = selectors.SelectorKey(old.fileobj, old.fd, events, data)
        if events != old.events:
            self._epoll.modify(old.fd, _epoll_events(events))
        self._keys[old.fd] = key
        return key

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        key = self._keys.get(fd)
        if key is None:
            raise KeyError(f"descriptor {fd} is not registered")
        return key

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys

    def close(self) -> None:
        self._epoll.close()
        os.close(self._wake)
        self._wake = -1
        self._keys.clear()
        self._handlers.clear()


def _refuse(argument: object) -> None:
    raise AssertionError("a DoorLoop belongs to the selector")


def _epoll_events(events: int) -> int:
    mask = 0
    if events & selectors.EVENT_READ:
        mask |= READABLE
    if events & selectors.EVENT_WRITE:
        mask |= WRITABLE
    return mask
