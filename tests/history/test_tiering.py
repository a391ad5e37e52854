"""Do sealed records reach the history before retention takes them, each exactly once?"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from penstock.app.aio import AsyncBroker
from penstock.log.history.tier import LIFE_NAME
from penstock.model.errors import Gap, RefusedError, UnavailableError
from tests.history.world import SEGMENT_BYTES, TOPIC, TieringWorld, history, hot_first, info, keep


async def test_retention_takes_only_what_the_history_has(world: TieringWorld) -> None:
    async with world.broker() as broker:
        await world.create(broker)
        await world.publish(broker)
        await keep(broker)
        found = await info(broker)
        told = await history(broker)
        assert 0 < hot_first(broker) <= told.end_offset < found.end_offset == 300
        assert (told.first_offset, told.files, told.trouble) == (0, 1, "")
        assert told.bytes > 0
        await world.check_all_there(broker)
        await world.publish(broker)
        await keep(broker)
        assert (await history(broker)).files == 2
        await world.check_all_there(broker)
    assert "pyarrow" not in sys.modules or "pytest" in sys.modules


async def test_without_need_nothing_is_written(world: TieringWorld) -> None:
    async with world.broker() as broker:
        await world.create(broker, retention_bytes="unlimited")
        await world.publish(broker)
        await keep(broker)
        told = await history(broker)
        assert (told.end_offset, told.files) == (0, 0)
        assert told.waiting_bytes > SEGMENT_BYTES
        assert not world.table.exists()


async def test_a_restarted_broker_goes_on_where_the_history_ends(world: TieringWorld) -> None:
    async with world.broker() as broker:
        await world.create(broker)
        await world.publish(broker)
        await keep(broker)
        end = (await history(broker)).end_offset
    async with world.broker() as broker:
        assert (await history(broker)).end_offset == end
        await world.publish(broker)
        await keep(broker)
        assert (await history(broker)).end_offset > end
        await world.check_all_there(broker)


async def test_a_broker_that_was_restarted_before_its_first_file_reads_what_it_tiers(
    world: TieringWorld,
) -> None:
    async with world.broker() as broker:
        await world.create(broker)
        await world.publish(broker)
    async with world.broker() as broker:
        await keep(broker)
        assert hot_first(broker) > 0
        await world.check_all_there(broker)


async def test_a_store_that_is_away_pins_records_and_publishing_goes_on(
    world: TieringWorld,
) -> None:
    (world.table.parent.parent).write_text("a file where the directory should be")
    async with world.broker() as broker:
        await world.create(broker)
        await world.publish(broker)
        await keep(broker)
        told = await history(broker)
        assert told.end_offset == 0 and "cannot be reached" in told.trouble
        assert told.waiting_bytes > SEGMENT_BYTES
        assert any("cannot be reached" in text for text in broker.engine.upkeep.troubles.values())
        assert hot_first(broker) == 0
        await world.publish(broker)
        world.table.parent.parent.unlink()
        await keep(broker)
        told = await history(broker)
        assert told.trouble == "" and told.end_offset > 300
        assert broker.engine.upkeep.troubles == {}
        await world.check_all_there(broker)


async def test_a_log_restored_from_an_older_copy_goes_on_behind_its_history(
    world: TieringWorld,
) -> None:
    async with world.broker() as broker:
        await world.create(broker)
        await world.publish(broker, 200)
        await keep(broker)
    shutil.copytree(world.data, world.data.with_name("backup"))
    async with world.broker() as broker:
        await world.publish(broker, 400)
        await keep(broker)
        end = (await history(broker)).end_offset
        assert end > 200
        epoch = (await info(broker)).epoch
    shutil.rmtree(world.data)
    shutil.move(world.data.with_name("backup"), world.data)
    del world.payloads[end:]
    async with world.broker() as broker:
        found = await info(broker)
        assert (hot_first(broker), found.end_offset, found.epoch) == (end, end, epoch + 1)
        await world.publish(broker)
        await keep(broker)
        assert (await history(broker)).end_offset > end
        await world.check_all_there(broker)
    async with world.broker() as broker:
        await world.check_all_there(broker)


# Up to a record that the history has too; beyond it, with the same segments and with others.
@pytest.mark.parametrize("published", [[10], [400], [13, 400]])
async def test_a_restored_log_that_was_written_to_without_its_history_is_refused(
    world: TieringWorld, published: list[int]
) -> None:
    async with world.broker() as broker:
        await world.create(broker)
        await world.publish(broker, 200)
        await keep(broker)
    shutil.copytree(world.data, world.data.with_name("backup"))
    async with world.broker() as broker:
        await world.publish(broker, 400)
        await keep(broker)
    shutil.rmtree(world.data)
    shutil.move(world.data.with_name("backup"), world.data)
    async with world.broker(history_url="") as broker:
        for count in published:
            await world.publish(broker, count)
        first = hot_first(broker)
    async with world.broker() as broker:
        await keep(broker)
        assert "restored and then written to" in (await history(broker)).trouble
        with pytest.raises(
            UnavailableError, match="the history that it wrote up to offset .* order"
        ):
            await broker.erase("#", TOPIC)
        await keep(broker)
        assert (await info(broker)).end_offset == 200 + sum(published)
        assert hot_first(broker) == first
        assert "restored and then written to" in (await history(broker)).trouble


async def test_erasing_is_refused_while_a_history_that_the_log_does_not_know_may_have_the_records(
    world: TieringWorld,
) -> None:
    """The backup is from before the history, and the restored log has other records."""
    async with world.broker() as broker:
        await world.create(broker)
        await world.publish(broker, 10)
    shutil.copytree(world.data, world.data.with_name("backup"))
    async with world.broker() as broker:
        await world.publish(broker, 400)
        await keep(broker)
    rows = world.cold()
    shutil.rmtree(world.data)
    shutil.move(world.data.with_name("backup"), world.data)
    async with world.broker(history_url="") as broker:
        await world.publish(broker, 13)
    async with world.broker() as broker:
        with pytest.raises(UnavailableError, match="which its log does not know"):
            await broker.erase("#", TOPIC)
    assert rows and world.cold() == rows
    shutil.rmtree(world.table)
    async with world.broker() as broker:
        await broker.engine.erasing.wait_done()
        assert not any(record.payload for record in await broker.read(TOPIC))


async def test_a_topic_created_anew_has_a_table_of_its_own(world: TieringWorld) -> None:
    async with world.broker() as broker:
        await world.create(broker)
        await world.publish(broker)
        await keep(broker)
        await broker.delete_topic(TOPIC)
        assert world.cold()
        await world.create(broker)
        await world.publish(broker)
        await keep(broker)
        assert (await history(broker)).url.endswith(f"{TOPIC}-2")
        assert (await history(broker)).first_offset == 0


async def test_a_table_of_another_life_is_refused_and_named(world: TieringWorld) -> None:
    async with world.broker() as broker:
        await world.create(broker)
        await world.publish(broker)
        await keep(broker)
    shutil.rmtree(world.data)
    rows = world.cold()
    async with world.broker() as broker:
        await world.create(broker)
        await world.publish(broker)
        await keep(broker)
        assert "is the history of another topic" in (await history(broker)).trouble
        assert hot_first(broker) == 0
    assert world.cold() == rows


async def test_readers_get_nothing_of_a_table_of_another_life(world: TieringWorld) -> None:
    """Also once history is off, and retention has taken what has the same offsets there."""
    async with world.broker() as broker:
        await world.create(broker)
        await world.publish(broker)
        await keep(broker)
    shutil.rmtree(world.data)
    world.payloads.clear()
    async with world.broker() as broker:
        await world.create(broker)
        await world.publish(broker)
        await keep(broker)
        await broker.alter_topic(TOPIC, history=False)
        await keep(broker)
        await check_only_hot(world, broker)
    async with world.broker() as broker:
        await check_only_hot(world, broker)


async def test_a_log_without_history_has_nothing_of_a_table_that_is_in_its_place(
    world: TieringWorld,
) -> None:
    async with world.broker() as broker:
        await world.create(broker)
        await world.publish(broker)
        await keep(broker)
    shutil.rmtree(world.data)
    world.payloads.clear()
    async with world.broker() as broker:
        await world.create(broker, history=False)
        await world.publish(broker)
        await keep(broker)
        await check_only_hot(world, broker)


async def check_only_hot(world: TieringWorld, broker: AsyncBroker) -> None:
    """Readers get what the log has and find nothing before it."""
    first = hot_first(broker)
    assert first > 0
    with pytest.raises(Gap):
        await broker.engine.topics.get(TOPIC).log.read(0)
    assert (await info(broker)).first_offset == first
    records = await broker.read(TOPIC)
    assert [one.payload for one in records] == world.payloads[first:]


async def test_a_table_that_another_broker_wrote_is_not_taken_for_our_own(
    world: TieringWorld, tmp_path: Path
) -> None:
    other = TieringWorld(tmp_path / "other")
    for one in (world, other):
        async with one.broker() as broker:
            await one.create(broker)
            await one.publish(broker, 200)
            await keep(broker)
    async with other.broker() as broker:
        await other.publish(broker, 400)
        await keep(broker)
    rows = other.cold()
    async with world.broker(history_url=other.url) as broker:
        assert "is the history of another topic" in (await history(broker)).trouble
        first = hot_first(broker)
        assert (await info(broker)).end_offset == 200, "it does not go on behind that table"
        await world.publish(broker)
        await keep(broker)
        assert "is the history of another topic" in (await history(broker)).trouble
        assert hot_first(broker) == first > 0
        with pytest.raises(
            UnavailableError, match="the history that it wrote up to offset .* order"
        ):
            await broker.erase("#", TOPIC)
    assert other.cold() == rows
    async with other.broker() as broker:
        await other.check_all_there(broker)
    async with world.broker() as broker:
        await broker.engine.erasing.wait_done()
        assert not any(payload for _, payload in world.cold())


async def test_a_table_that_somebody_else_appended_to_is_refused_and_named(
    world: TieringWorld,
) -> None:
    async with world.broker() as broker:
        await world.create(broker)
        await world.publish(broker)
        await keep(broker)
        first = hot_first(broker)
        table = DeltaTable(str(world.table))
        write_deltalake(table, table.to_pyarrow_table().slice(0, 1), mode="append")
        await world.publish(broker)
        await keep(broker)
        trouble = (await history(broker)).trouble
        assert "which Penstock did not write" in trouble and str(world.table) in trouble
        assert first <= hot_first(broker) <= (await history(broker)).end_offset < 600
        DeltaTable(str(world.table)).restore(1)
        # `restore` is a commit that somebody else made, and leaves the files as they were.
        await keep(broker)
        assert (await history(broker)).trouble == ""
        await world.check_all_there(broker)


async def test_a_missing_table_is_not_taken_for_a_new_one(world: TieringWorld) -> None:
    async with world.broker() as broker:
        await world.create(broker)
        await world.publish(broker)
        await keep(broker)
    moved = world.table.with_name("elsewhere")
    world.table.rename(moved)
    async with world.broker() as broker:
        assert "is missing" in (await history(broker)).trouble
        await world.publish(broker)
        await keep(broker)
        assert not world.table.exists()
        moved.rename(world.table)
        await keep(broker)
        assert (await history(broker)).trouble == ""
        await world.check_all_there(broker)


async def test_the_history_survives_a_lost_catalog(world: TieringWorld) -> None:
    async with world.broker() as broker:
        await world.create(broker)
        await world.publish(broker)
        await keep(broker)
    for path in world.data.glob("catalog*"):
        path.unlink()
    async with world.broker() as broker:
        assert (await history(broker)).end_offset > 0
        await world.publish(broker)
        await keep(broker)
        await world.check_all_there(broker)


async def test_records_that_are_too_old_leave_the_history_in_whole_files(
    world: TieringWorld,
) -> None:
    async with world.broker() as broker:
        await world.create(broker, history_age="1ms")
        await world.publish(broker)
        await keep(broker)
        told = await history(broker)
        assert told.files == 0 and told.first_offset == told.end_offset > 0
        await broker.alter_topic(TOPIC, history_age="unlimited")
        await world.publish(broker)
        await keep(broker)
        told = await history(broker)
        assert told.files == 1 and told.first_offset < told.end_offset
        assert world.cold()[0][0] == told.first_offset


async def test_history_without_a_place_is_refused(world: TieringWorld) -> None:
    async with world.broker(history_url="") as broker:
        with pytest.raises(RefusedError, match=r"\[history\] url"):
            await world.create(broker)
        await broker.create_topic(TOPIC)
        with pytest.raises(RefusedError, match=r"\[history\] url"):
            await broker.alter_topic(TOPIC, history=True)


async def test_a_broker_that_lost_its_setting_drops_nothing(world: TieringWorld) -> None:
    async with world.broker() as broker:
        await world.create(broker)
        await world.publish(broker)
    async with world.broker(history_url="") as broker:
        await keep(broker)
        assert hot_first(broker) == 0
        assert any("no [history] url" in note for note in broker.notes)
        await broker.alter_topic(TOPIC, history=False)
        await keep(broker)
        assert hot_first(broker) > 0


async def test_a_gap_from_a_time_without_history_is_refused_until_it_is_dropped(
    world: TieringWorld,
) -> None:
    async with world.broker() as broker:
        await world.create(broker)
        await world.publish(broker)
        await keep(broker)
        await broker.alter_topic(TOPIC, history=False)
        await world.publish(broker)
        await keep(broker)
        await broker.alter_topic(TOPIC, history=True)
        await world.publish(broker)
        await keep(broker)
        assert "took records while history was off" in (await history(broker)).trouble
    shutil.rmtree(world.table)
    (world.log / LIFE_NAME).unlink()
    async with world.broker() as broker:
        await keep(broker)
        told = await history(broker)
        assert told.trouble == "" and told.first_offset > 300


@pytest.mark.parametrize("torn", [b"", bytes(100), b'{"add":{"path":"0000'])
async def test_a_commit_that_power_loss_tore_is_made_again(
    world: TieringWorld, torn: bytes
) -> None:
    async with world.broker() as broker:
        await world.create(broker)
        await world.publish(broker)
        await keep(broker)
        end = (await history(broker)).end_offset
    # As after the commit and before its sync: its file is there, and its content is not.
    (world.table / "_delta_log" / f"{2:020}.json").write_bytes(torn)
    async with world.broker() as broker:
        await world.publish(broker)
        await keep(broker)
        told = await history(broker)
        assert told.trouble == "" and told.end_offset > end
        await world.check_all_there(broker)
