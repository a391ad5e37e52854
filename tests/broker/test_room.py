"""Does what waits for room in a window go on as soon as there is some, without looking again?"""

from __future__ import annotations

import asyncio

import pytest

from tests.broker.exchange_world import ExchangeWorld, kept
from tests.broker.model_broker import Wanted

PAYLOADS = [b"1", b"2", b"3"]


def timers() -> int:
    """How many timers of the event loop are pending."""
    scheduled = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
    return len([one for one in scheduled if not one.cancelled()])


async def went_with_three_messages_out(world: ExchangeWorld) -> None:
    await kept(world, "reader")
    await kept(world, "writer")
    await world.subscribe("reader", "a", Wanted(1))
    world.publish("writer", "a", PAYLOADS, 1, False)
    await world.settle()
    assert len(world.clients["reader"].inbox) == 3
    world.disconnect("reader")
    await world.settle_catalog()


async def test_what_was_out_is_sent_again_in_the_tick_of_the_acknowledgement(
    world: ExchangeWorld,
) -> None:
    await went_with_three_messages_out(world)
    before = timers()
    session = await kept(world, "reader", window=1)
    reader = world.clients["reader"]
    for payload in PAYLOADS:
        await world.settle()
        assert [one.message.payload for one in reader.inbox if one.message] == [payload]
        assert timers() == before, "nobody looks again after a while"
        reader.take(world.exchange, 1)
    await world.settle()
    assert not session.is_resending and not session.is_behind
    assert [one.payload for one in reader.received] == PAYLOADS


async def test_retained_messages_go_on_in_the_tick_of_the_acknowledgement(
    world: ExchangeWorld,
) -> None:
    await kept(world, "writer")
    for payload in PAYLOADS:
        world.publish("writer", f"a/{payload.decode()}", [payload], 1, True)
    await world.settle()
    before = timers()
    session = await kept(world, "reader", window=1)
    await world.subscribe("reader", "#", Wanted(1))
    reader = world.clients["reader"]
    for count in range(1, 4):
        await world.settle()
        assert len(reader.inbox) == 1
        assert timers() == before, "nobody looks again after a while"
        reader.take(world.exchange, 1)
        assert len(reader.received) == count
    await world.settle()
    assert not session.is_behind
    assert sorted(one.payload for one in reader.received) == PAYLOADS


async def test_retained_messages_wait_until_the_connection_has_room(world: ExchangeWorld) -> None:
    await kept(world, "writer")
    world.publish("writer", "a", [b"x"], 0, True)
    await world.settle()
    session = await kept(world, "reader")
    reader = world.clients["reader"]
    reader.has_room = False
    await world.subscribe("reader", "a", Wanted(0))
    await world.settle()
    assert reader.received == [] and session.is_behind
    reader.has_room = True
    world.exchange.sessions.resume(session)  # as a door does when its socket took something
    await world.settle()
    assert [one.payload for one in reader.received] == [b"x"] and not session.is_behind


@pytest.mark.parametrize("what", ["what was out", "retained"])
async def test_who_waits_for_room_ends_with_the_connection(what: str, world: ExchangeWorld) -> None:
    if what == "what was out":
        await went_with_three_messages_out(world)
        session = await kept(world, "reader", window=1)
    else:
        await kept(world, "writer")
        world.publish("writer", "a", [b"x"], 1, True)
        await world.settle()
        session = await kept(world, "reader")
        world.clients["reader"].has_room = False
        await world.subscribe("reader", "a", Wanted(1))
    await world.settle()
    assert session.room_waiters
    tasks = len(asyncio.all_tasks())
    world.disconnect("reader")
    await world.settle_catalog()
    await world.settle()
    assert not session.room_waiters
    assert len(asyncio.all_tasks()) == tasks - 1
