"""Does a history work in an S3-compatible store, also in one that fails again and again?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from penstock.app.aio import AsyncBroker
from tests.history.s3_server import BUCKET, failing_proxy, options_of, s3_server
from tests.history.world import TOPIC, TieringWorld, history, hot_first, keep

pytestmark = pytest.mark.slow
URL = f"s3://{BUCKET}/histories"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with s3_server() as found:
        yield found


class S3World(TieringWorld):
    """A world whose histories are in the store."""

    def __init__(self, root: Path, port: int, reached_by: int) -> None:
        super().__init__(root)
        self.url = f"{URL}/{root.name}"
        self.options = options_of(reached_by)
        self._straight = options_of(port)

    def settings(self) -> dict[str, object]:
        return {"history_options": self.options}

    def cold(self) -> list[tuple[int, bytes]]:
        table = DeltaTable(f"{self.url}/default/{TOPIC}-1", storage_options=self._straight)
        found = table.to_pyarrow_table(columns=["offset", "payload"])
        return sorted(zip(*(column.to_pylist() for column in found.columns), strict=True))


async def go_on(world: S3World, broker: AsyncBroker) -> None:
    """Publish, then keep house until the history has taken its part."""
    end = (await history(broker)).end_offset
    await world.publish(broker)
    for _ in range(30):
        await keep(broker)
        told = await history(broker)
        if told.end_offset > end and not told.trouble:
            return
    raise AssertionError(f"nothing was written: {told.trouble}")


async def test_a_history_in_s3_is_written_and_read_through_a_restart(
    tmp_path: Path, port: int
) -> None:
    world = S3World(tmp_path, port, port)
    async with world.broker(**world.settings()) as broker:
        await world.create(broker)
        await go_on(world, broker)
        assert hot_first(broker) > 0
        await world.check_all_there(broker)
    async with world.broker(**world.settings()) as broker:
        await go_on(world, broker)
        await world.check_all_there(broker)


@pytest.mark.parametrize("loses_answers", [False, True])
async def test_a_store_that_fails_every_third_request_holds_every_record_once(
    tmp_path: Path, port: int, loses_answers: bool
) -> None:
    with failing_proxy(port, 3, loses_answers=loses_answers) as proxied:
        world = S3World(tmp_path, port, proxied)
        async with world.broker(**world.settings()) as broker:
            await world.create(broker)
            for _ in range(3):
                await go_on(world, broker)
            offsets = [offset for offset, _ in world.cold()]
            assert offsets == list(range((await history(broker)).end_offset))
            await world.check_all_there(broker)
