"""Is how a session ended saved, however long the catalog is away, and before all that follows?"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from penstock.broker.session.endings import Endings
from penstock.catalog.session.saving import Checkpoint, Ending
from penstock.model.errors import UnavailableError


class Catalog:
    """Away until it is back."""

    def __init__(self) -> None:
        self.is_away = True
        self.saved: list[tuple[str, int]] = []
        self.attempts = 0
        self.is_missed = asyncio.Event()

    async def end(self, client_id: str, incarnation: int) -> None:
        self.attempts += 1
        if self.attempts == 6:
            self.is_missed.set()
        if self.is_away:
            raise UnavailableError("away", 0.001)
        self.saved.append((client_id, incarnation))

    async def end_session(self, ending: Ending) -> None:
        await self.end(ending.client_id, ending.incarnation)


class Background:
    """The tasks that the endings start."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    async def outcomes(self) -> list[BaseException | None]:
        """How each of them ended."""
        return await asyncio.gather(*self._tasks, return_exceptions=True)


@pytest.fixture
def background() -> Background:
    return Background()


@pytest.fixture
def endings(background: Background) -> Endings:
    return Endings(background.spawn)


@pytest.fixture
def catalog() -> Catalog:
    return Catalog()


async def test_an_ending_is_saved_when_the_catalog_is_back_and_the_client_waits_for_it(
    endings: Endings, catalog: Catalog, background: Background
) -> None:
    endings.save(catalog.end, "a", 1)
    endings.save(catalog.end, "a", 2)
    waiting = asyncio.ensure_future(endings.wait("a"))
    await asyncio.wait_for(endings.wait("somebody else"), 10)
    await catalog.is_missed.wait()
    assert not waiting.done()
    catalog.is_away = False
    await waiting
    assert sorted(catalog.saved) == [("a", 1), ("a", 2)]
    assert await background.outcomes() == [None, None]


def ending(client_id: str) -> Ending:
    return Ending(client_id, 1, 60, 0, [], [], [], [], [])


def carry(endings: Endings) -> list[Ending]:
    point = Checkpoint()
    assert not endings.take_changes(point), "alone they need no checkpoint"
    return point.endings


async def test_a_checkpoint_carries_what_is_not_saved_and_nothing_saves_it_meanwhile(
    endings: Endings, catalog: Catalog, background: Background
) -> None:
    one = ending("a")
    endings.save_end(catalog.end_session, one)
    assert carry(endings) == [one]  # in the same breath: the catalog has not been asked yet
    catalog.is_away = False
    waiting = asyncio.ensure_future(endings.wait("a"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert catalog.attempts == 0 and not waiting.done()
    endings.settle(is_saved=True)
    await waiting
    assert catalog.saved == [] and carry(endings) == []
    assert await background.outcomes() == [None]


async def test_what_a_checkpoint_could_not_save_is_saved_on_its_own(
    endings: Endings, catalog: Catalog, background: Background
) -> None:
    endings.save_end(catalog.end_session, ending("a"))
    await catalog.is_missed.wait()
    carry(endings)
    catalog.is_away = False
    for _ in range(10):
        await asyncio.sleep(0.002)  # longer than it waits before it tries again
    assert catalog.saved == [], "a checkpoint still carries it"
    endings.settle(is_saved=False)
    await endings.wait("a")
    assert catalog.saved == [("a", 1)] and carry(endings) == []
    assert await background.outcomes() == [None]


async def test_a_broker_that_closes_does_not_wait_for_a_catalog_that_stays_away(
    endings: Endings, catalog: Catalog, background: Background
) -> None:
    endings.save(catalog.end, "a", 1)
    endings.close()
    await endings.wait("a")
    assert catalog.saved == []
    (error,) = await background.outcomes()
    assert isinstance(error, UnavailableError)


async def test_a_mistake_of_ours_is_not_repeated(
    endings: Endings, catalog: Catalog, background: Background
) -> None:
    async def wrong(client_id: str) -> None:
        raise KeyError(client_id)

    endings.save(wrong, "a")
    await endings.wait("a")
    (error,) = await background.outcomes()
    with pytest.raises(KeyError):
        raise error or AssertionError
