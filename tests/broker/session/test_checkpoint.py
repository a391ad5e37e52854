"""Does a checkpoint save the changes of every view once, and again when it failed?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.app.wiring import open_memory
from penstock.broker.session.checkpoint import Checkpoints
from penstock.broker.session.will_marks import WillMarks
from penstock.broker.settings import BrokerSettings
from penstock.catalog.session.saving import Checkpoint
from penstock.model.errors import UnavailableError


class Story:
    """Real checkpoints over a view; their catalog can be away, or take its time."""

    def __init__(self, checkpoints: Checkpoints, views: list[WillMarks]) -> None:
        self.checkpoints = checkpoints
        self.views = views
        self.saved: list[list[int]] = []
        self.is_away = False
        self.may_save = asyncio.Event()
        self.may_save.set()

    async def save(self, point: Checkpoint) -> None:
        await self.may_save.wait()
        if self.is_away:
            raise UnavailableError("away")
        self.saved.append(sorted(point.wills))


@pytest.fixture
async def story() -> AsyncIterator[Story]:
    opened = await open_memory(BrokerSettings())
    catalog = opened.engine.session_catalog
    views = [WillMarks()]
    story = Story(Checkpoints(catalog, opened.engine.clock, views), views)
    catalog.save = story.save  # type: ignore[method-assign]
    yield story
    await opened.close(True)


async def test_nothing_is_saved_when_nothing_changed(story: Story) -> None:
    await story.checkpoints.save()
    assert story.saved == []


async def test_what_a_checkpoint_could_not_save_is_in_the_next_one(story: Story) -> None:
    story.views[0].note(1)
    story.is_away = True
    with pytest.raises(UnavailableError):
        await story.checkpoints.save()
    story.is_away = False
    story.views[0].note(2)
    await story.checkpoints.save()
    await story.checkpoints.save()
    assert story.saved == [[1, 2]]


async def test_a_checkpoint_that_is_cancelled_leaves_its_changes_to_the_next_one(
    story: Story,
) -> None:
    story.views[0].note(1)
    story.may_save.clear()
    first = asyncio.ensure_future(story.checkpoints.save())
    await asyncio.sleep(0)
    first.cancel()
    second = asyncio.ensure_future(story.checkpoints.save())
    story.may_save.set()
    await second
    assert first.cancelled() and story.saved == [[1]]


async def test_checkpoints_take_turns(story: Story) -> None:
    story.views[0].note(1)
    story.may_save.clear()
    first = asyncio.ensure_future(story.checkpoints.save())
    await asyncio.sleep(0)
    story.views[0].note(2)
    second = asyncio.ensure_future(story.checkpoints.save())
    await asyncio.sleep(0)
    story.may_save.set()
    await asyncio.gather(first, second)
    assert story.saved == [[1], [2]]
