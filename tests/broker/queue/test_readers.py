"""Do consumers and groups leave a node only when nothing uses them any more?"""

from __future__ import annotations

import asyncio

import pytest

from penstock.broker.queue.readers import Elsewhere, ReaderPlace, Readers

PLACE = ReaderPlace(2, "b", "http://b:80")


async def test_leaving_waits_for_what_is_under_way_and_refuses_what_comes() -> None:
    readers = Readers()
    readers.check()
    done = asyncio.Event()
    work = asyncio.create_task(readers.serve(done.wait()))
    await asyncio.sleep(0)
    leaving = asyncio.create_task(readers.leave("another node is to have them"))
    await asyncio.sleep(0)
    assert not leaving.done()
    with pytest.raises(Elsewhere, match="another node"):
        readers.check()
    done.set()
    await leaving
    assert work.done()
    assert not readers.is_leaving


async def test_who_waits_for_a_record_is_woken_when_they_leave() -> None:
    readers = Readers()
    never = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(readers.serve(readers.until_leaving(never)))
    await asyncio.sleep(0)
    await readers.leave("another node is to have them")
    await waiting
    assert never.cancelled()


async def test_what_goes_wrong_while_waiting_is_raised() -> None:
    async def fail() -> None:
        raise Elsewhere("gone")

    with pytest.raises(Elsewhere, match="gone"):
        await Readers().until_leaving(fail())


async def test_a_new_place_wakes_those_who_wait_for_it() -> None:
    readers = Readers()
    readers.lost("nobody")
    waiting = asyncio.create_task(readers.wait_moved(60))
    await asyncio.sleep(0)
    readers.found(PLACE)
    await waiting
    assert readers.place == PLACE and not readers.is_here
    waiting = asyncio.create_task(readers.wait_moved(60))
    await asyncio.sleep(0)
    readers.found(PLACE)  # it is where it was
    assert not waiting.done()
    readers.begin()
    await waiting
    assert readers.is_here
    readers.check()
