"""Does asyncio get its turn while the selector serves sockets of its own?"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from penstock.doors.lingering import Lingering
from penstock.doors.loop import DoorLoop
from penstock.doors.mqtt.limits import MqttLimits
from penstock.doors.selector import (
    ANSWERED_WAITS,
    AWAKE_S_MAX,
    BRIEF_S,
    BRIEF_WAITS_MIN,
    CROWD_ROUNDS,
    READABLE,
    DoorSelector,
)
from penstock.doors.serving import Serving
from penstock.doors.tcp import SocketLink


@pytest.fixture
def selector() -> DoorSelector:
    return DoorSelector()


@pytest.fixture
def runner(selector: DoorSelector) -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=lambda: DoorLoop(selector)) as opened:
        yield opened


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


async def test_a_call_asked_for_by_a_handler_comes_although_nothing_else_happens(
    selector: DoorSelector, pair: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = pair
    loop = asyncio.get_running_loop()
    called = asyncio.Event()

    def handler(events: int) -> None:
        ours.recv(100)
        loop.call_soon(called.set)

    selector.serve(ours.fileno(), handler)
    late = loop.call_later(5.0, called.set)
    theirs.send(b"x")
    await called.wait()
    assert loop.time() < late.when(), "it did not wait for something else to happen"
    late.cancel()
    selector.leave(ours.fileno())


async def test_a_timer_set_by_a_handler_fires_before_a_later_one_that_was_there(
    selector: DoorSelector, pair: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = pair
    loop = asyncio.get_running_loop()
    fired = asyncio.Event()

    def handler(events: int) -> None:
        ours.recv(100)
        loop.call_later(0.01, fired.set)

    selector.serve(ours.fileno(), handler)
    late = loop.call_later(5.0, fired.set)
    loop.call_later(0.01, theirs.send, b"x")
    await fired.wait()
    assert loop.time() < late.when()
    late.cancel()
    selector.leave(ours.fileno())


async def test_timers_fire_while_a_served_socket_is_always_ready(
    selector: DoorSelector, pair: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = pair
    served = 0

    def handler(events: int) -> None:
        nonlocal served
        served += 1  # and leaves the byte where it is: ready again at once

    selector.serve(ours.fileno(), handler)
    theirs.send(b"x")
    for _ in range(3):  # each is a turn of the loop, however busy the machine is
        await asyncio.sleep(0.001)
    assert served > 1
    selector.leave(ours.fileno())


async def test_the_loop_is_quiet_while_two_sockets_are_active_and_not_for_a_while_after_a_third(
    selector: DoorSelector,
) -> None:
    pairs = [socket.socketpair() for _ in range(3)]
    heard: asyncio.Queue[bool] = asyncio.Queue()

    def serve(ours: socket.socket) -> None:
        def handler(events: int) -> None:
            ours.recv(100)
            heard.put_nowait(selector.is_quiet())

        selector.serve(ours.fileno(), handler)

    async def send(number: int) -> bool:
        pairs[number][1].send(b"x")
        return await heard.get()

    for ours, _ in pairs:
        serve(ours)
    assert not await send(0) and not await send(1)
    for _ in range(CROWD_ROUNDS):
        await send(0)
    assert [await send(0), await send(1), await send(0)] == [True, True, True]
    assert not await send(2)
    assert not await send(0), "a third was active just now"
    assert not selector.is_quiet(), "outside a round nothing is known"
    for ours, theirs in pairs:
        selector.leave(ours.fileno())
        ours.close()
        theirs.close()


class Arrivals:
    """An epoll whose only descriptor becomes ready so long after it was waited for, by a clock."""

    def __init__(self, selector: DoorSelector, fd: int) -> None:
        self.now_s = 0.0
        self.after_s = 0.0
        self.is_answered = True
        self.slept: list[bool] = []  # of each wait: did the processor sleep
        self._fd = fd
        self._ready_s = -1.0
        selector._epoll.close()
        selector._epoll = self  # type: ignore[assignment]
        selector._now_s = lambda: self.now_s

    def poll(self, timeout: float, maxevents: int) -> list[tuple[int, int]]:
        if self._ready_s < 0:
            self._ready_s = self.now_s + self.after_s
            self.slept.append(False)
        if timeout == 0.0:
            self.now_s += AWAKE_S_MAX / 10
            if self.now_s < self._ready_s:
                return []
        else:
            self.now_s = max(self.now_s, self._ready_s)
            self.slept[-1] = True
        self._ready_s = -1.0
        return [(self._fd, READABLE)]

    def close(self) -> None:
        pass


def taken(selector: DoorSelector, arrivals: Arrivals, after_s: float, count: int) -> list[bool]:
    """Waits for so many events that come this late: during which did the processor sleep?"""
    arrivals.after_s = after_s
    arrivals.slept = []
    for _ in range(count):
        selector.select(5.0)
    return arrivals.slept


@pytest.fixture
def arrivals(selector: DoorSelector) -> Iterator[Arrivals]:
    """Of one client, which is alone for long enough."""
    fd = 1_000_000

    arrivals = Arrivals(selector, fd)

    def handler(events: int) -> None:
        if arrivals.is_answered:
            selector.note_answer()
        selector.come_back()

    selector._handlers[fd] = handler
    arrivals.after_s = BRIEF_S * 2
    for _ in range(CROWD_ROUNDS + 1):
        selector.select(5.0)
    yield arrivals
    selector.close()


def test_the_selector_stays_awake_for_a_client_that_came_back_soon_each_time(
    selector: DoorSelector, arrivals: Arrivals
) -> None:
    soon_s = AWAKE_S_MAX / 2
    assert taken(selector, arrivals, soon_s, BRIEF_WAITS_MIN) == [True] * BRIEF_WAITS_MIN
    assert taken(selector, arrivals, soon_s, 20) == [False] * 20


def test_the_selector_sleeps_when_a_client_does_not_come_back_and_learns_it_anew(
    selector: DoorSelector, arrivals: Arrivals
) -> None:
    soon_s = AWAKE_S_MAX / 2
    taken(selector, arrivals, soon_s, BRIEF_WAITS_MIN)
    begin_s = arrivals.now_s
    assert taken(selector, arrivals, 1.0, 1) == [True], "awake for a moment, then asleep"
    assert arrivals.now_s == pytest.approx(begin_s + 1.0)
    assert taken(selector, arrivals, soon_s, BRIEF_WAITS_MIN) == [True] * BRIEF_WAITS_MIN
    assert taken(selector, arrivals, soon_s, 1) == [False]


def test_one_longer_wait_among_brief_ones_keeps_the_selector_asleep(
    selector: DoorSelector, arrivals: Arrivals
) -> None:
    for _ in range(5):
        taken(selector, arrivals, AWAKE_S_MAX / 2, BRIEF_WAITS_MIN - 1)
        assert taken(selector, arrivals, BRIEF_S * 1.5, 1) == [True]
    assert taken(selector, arrivals, AWAKE_S_MAX / 2, 1) == [True]


def test_the_selector_sleeps_while_many_clients_are_active(
    selector: DoorSelector, arrivals: Arrivals
) -> None:
    selector._crowd_rounds = CROWD_ROUNDS
    soon_s = AWAKE_S_MAX / 2
    assert taken(selector, arrivals, soon_s, CROWD_ROUNDS) == [True] * CROWD_ROUNDS


def test_the_selector_sleeps_for_a_client_that_waits_for_no_answer(
    selector: DoorSelector, arrivals: Arrivals
) -> None:
    soon_s = AWAKE_S_MAX / 2
    taken(selector, arrivals, soon_s, 2 * BRIEF_WAITS_MIN)
    arrivals.is_answered = False
    assert taken(selector, arrivals, soon_s, 40)[ANSWERED_WAITS:] == [True] * (40 - ANSWERED_WAITS)


class Client:
    """A connection that has something to send to some connections whenever it hears something."""

    def __init__(self, serving: Serving, *others: Client) -> None:
        self.tells: tuple[Client, ...] = others
        self.is_closed = False
        self._serving = serving

    def receive(self, data: bytes) -> None:
        for client in self.tells:
            self._serving.mark_dirty(client)  # type: ignore[arg-type]

    def flush(self) -> None:
        pass


@pytest.mark.parametrize("is_answered", [False, True])
def test_a_client_is_answered_if_it_is_sent_something_itself(
    selector: DoorSelector,
    runner: asyncio.Runner,
    pair: tuple[socket.socket, socket.socket],
    is_answered: bool,
) -> None:
    ours, theirs = pair
    serving = Serving(selector, runner.get_loop())
    reader = Client(serving)
    publisher = Client(serving, reader)
    if is_answered:
        publisher.tells += (publisher,)
    link = SocketLink(ours, selector, Lingering(selector, runner.get_loop(), MqttLimits()))
    theirs.send(b"x")
    serving.serve(publisher, link, READABLE)  # type: ignore[arg-type]
    selector._end_tick()
    assert bool(selector._answered_waits) == is_answered
