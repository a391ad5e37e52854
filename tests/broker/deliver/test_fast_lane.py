"""The fast lane that runs: is every stored message seen once, in order, and not too soon?

The real publisher, delivery and log, with commits that are held, fail and succeed at random.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from penstock.log import appending
from tests.broker.deliver.fast_lane_world import FastLaneWorld, opened_world
from tests.sim.workers import VirtualLoop

SEEDS = 150
STEPS = 60
PENDING_BYTES_MAX = 200  # a handful of messages: then publishers wait for their turn


def habits(world: FastLaneWorld, chance: random.Random) -> list[Callable[[], Awaitable[None]]]:
    """Each world has habits of its own: a rare meeting of events is common in some of them."""
    return [
        *[world.publish] * 10,
        *[world.publish_mixed] * chance.randint(1, 4),
        *[world.publish_from_the_bus] * chance.randrange(3),
        *[world.place] * chance.randrange(4),
        *[world.end_round] * chance.randint(2, 10),
        *[world.wait] * chance.randint(2, 10),
        *[world.join_some] * chance.randrange(3),
        *[world.refuse] * chance.randrange(2),
        *[world.fence] * chance.randrange(2),
    ]


async def random_world(seed: int, *, keeps_qos0: bool) -> Counter[str]:
    chance = random.Random(seed)
    async with opened_world(chance, keeps_qos0=keeps_qos0) as world:
        await world.join("#", chance.randrange(2))
        actions = habits(world, chance)
        for _ in range(STEPS):
            await world.step(actions)
        await world.settle()
        return world.seen


@pytest.mark.parametrize("keeps_qos0", [False, True])
@pytest.mark.slow
def test_every_stored_message_is_seen_once_in_order_and_not_too_soon(
    keeps_qos0: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = int(os.environ.get("PENSTOCK_SEED", random.SystemRandom().randrange(10**9)))
    seen: Counter[str] = Counter()
    for seed in range(first, first + SEEDS):
        is_narrow = seed % 2 == 0
        monkeypatch.setattr(
            appending, "PENDING_BYTES_MAX", PENDING_BYTES_MAX if is_narrow else 1 << 20
        )
        try:
            with asyncio.Runner(loop_factory=VirtualLoop) as runner:
                seen += runner.run(random_world(seed, keeps_qos0=keeps_qos0))
        except BaseException as error:
            error.add_note(f"replay with PENSTOCK_SEED={seed}")
            raise
    events = ["acknowledged", "refused", "mixed declined", "placed", "commits", "failed commits"]
    events += [] if keeps_qos0 else ["ahead", "mixed"]
    assert min(seen[event] for event in events) > SEEDS // 5, f"the runs reach too little: {seen}"
    assert seen["fences"] and (not keeps_qos0 or not seen["ahead"]), seen
