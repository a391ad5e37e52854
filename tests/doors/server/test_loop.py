"""Does asyncio get its turn while the selector serves sockets of its own?"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from penstock.doors.loop import DoorLoop
from penstock.doors.selector import CROWD_ROUNDS, DoorSelector


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
