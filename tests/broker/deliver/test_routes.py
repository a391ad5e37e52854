"""Do routes stay true and within their bound, however many names come by?"""

from __future__ import annotations

import tracemalloc

import pytest

from penstock.broker.deliver import routes
from penstock.core.access import FULL, Principal
from penstock.model.record import DEFAULT_TENANT
from tests.broker.exchange_world import ExchangeWorld
from tests.broker.model_broker import Wanted

ALICE = Principal(DEFAULT_TENANT, "alice", FULL)


async def test_names_with_the_same_readers_share_them(world: ExchangeWorld) -> None:
    await world.connect("reader", clean=True, is_kept=False, window=10)
    await world.subscribe("reader", "a/#", Wanted(1))
    await world.subscribe("reader", "a/b/+", Wanted(2))
    router = world.exchange.router
    one, two, three = (router.find(name, ALICE) for name in ("a/1", "a/2", "a/b/3"))
    assert one.readers is two.readers
    assert [member.qos for member in one.strong] == [1]
    assert [member.qos for member in three.strong] == [2]
    assert router.find("a/1") is one  # the broker's own, once the message is durable
    await world.unsubscribe("reader", "a/#")
    assert not router.find("a/1", ALICE).members
    assert router.find("a/b/3", ALICE).members


@pytest.mark.over_a_second
async def test_routes_of_ever_new_names_take_bounded_memory_and_stay_true(
    world: ExchangeWorld,
) -> None:
    await world.connect("reader", clean=True, is_kept=False, window=10)
    await world.subscribe("reader", "hot", Wanted(0))
    router = world.exchange.router
    edition = router.edition
    found = router.find("hot", ALICE)
    largest = 0
    tracemalloc.start()
    try:
        for number in range(2_500):  # 150 MB of names
            router.find(f"{number}/{'x' * 60_000}", ALICE)
            largest = max(largest, router.bytes)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert largest < routes.BYTES_MAX + 100_000
    assert held <= peak < routes.BYTES_MAX * 1.2
    again = router.find("hot", ALICE)
    assert again is not found  # it was worked out anew
    assert list(again.members) == list(found.members)
    assert router.edition == edition  # what others keep at hand is as good as before


@pytest.mark.over_a_second
async def test_what_routes_say_they_take_is_about_what_they_take(world: ExchangeWorld) -> None:
    await world.connect("reader", clean=True, is_kept=False, window=10)
    await world.subscribe("reader", "plant/#", Wanted(1))
    router = world.exchange.router
    tracemalloc.start()
    try:
        for number in range(20_000):
            name = f"plant/hall/{number}/temperature"
            router.find(name, ALICE)
            router.find(name)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.5 * router.bytes < held < 1.2 * router.bytes
