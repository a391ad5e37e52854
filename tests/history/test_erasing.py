"""Is nothing left of an erased record in any file, and does everything else stay as it was?"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.app.aio import AsyncBroker
from penstock.cli.main import main
from penstock.log.files.upkeep.ordered import ERASE_NAME
from penstock.model.errors import (
    InvalidFilter,
    InvalidPosition,
    RefusedError,
    UnavailableError,
)
from penstock.model.record import KIND_ERASED, Record
from tests.history.world import SEGMENT_BYTES, TOPIC, TieringWorld, history, hot_first, keep

pytestmark = pytest.mark.slow
CHANCE = random.Random(5)
SECRET = CHANCE.randbytes(24)  # as compression leaves it
HEADER = "marker-of-a-header"


async def publish(broker: AsyncBroker, count: int, first: int = 0) -> None:
    """Every third record is of Alice: its payload and its header hold markers."""
    for number in range(first, first + count):
        if number % 3 == 0:
            payload = SECRET + CHANCE.randbytes(400)
            await broker.publish(
                payload, TOPIC, name=f"{TOPIC}/alice/{number % 2}", headers={"who": HEADER}
            )
        else:
            name = f"{TOPIC}/bob"
            await broker.publish(
                {"n": number, "x": "y" * 400}, TOPIC, name=name, headers={"k": "v"}
            )


def files_with(root: Path, marker: bytes) -> list[str]:
    """The files below a directory in which some bytes occur."""
    return sorted(
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.is_file() and marker in path.read_bytes()
    )


def check_erased(
    found: list[Record], before: list[Record], is_erased: Callable[[Record], bool]
) -> None:
    """Erased records keep offset, time, name and QoS; the others keep everything."""
    assert len(found) == len(before)
    for record, was in zip(found, before, strict=True):
        if is_erased(was):
            assert (record.offset, record.timestamp, record.name, record.qos) == (
                was.offset, was.timestamp, was.name, was.qos,
            )  # fmt: skip
            assert (record.payload, record.headers, record.publisher) == (b"", (), "")
            assert (record.kind, record.expires_at, record.retain) == (
                KIND_ERASED,
                was.timestamp,
                False,
            )
            assert record.value == b""
        else:
            assert record == was


def is_alice(record: Record) -> bool:
    return "/alice/" in record.name


def verify(world: TieringWorld) -> int:
    return main(["log", "verify", "--history", "--at", str(world.data), "--url", world.url])


async def test_records_are_erased_from_log_and_history_and_no_byte_is_left(
    world: TieringWorld,
) -> None:
    async with world.broker() as broker:
        await world.create(broker)
        await publish(broker, 900)
        await keep(broker)
        await publish(broker, 30, 900)
        assert 0 < hot_first(broker) < (await history(broker)).end_offset < 900
        before = await broker.read(TOPIC, start=0)
        counted = await broker.erase(f"{TOPIC}/alice/#", TOPIC, dry_run=True)
        assert counted.dry_run and counted.end_offset == 930
        assert counted.history_records == len(
            [r for r in before[: (await history(broker)).end_offset] if is_alice(r)]
        )
        assert counted.log_records == len([r for r in before[hot_first(broker) :] if is_alice(r)])
        assert await broker.read(TOPIC, start=0) == before, "a dry run changes nothing"
        for root in (world.data, world.table):
            assert files_with(root, SECRET) and files_with(root, HEADER.encode())
        erased = await broker.erase(f"{TOPIC}/alice/#", TOPIC)
        assert (erased.log_records, erased.history_records) == (
            counted.log_records,
            counted.history_records,
        )
        check_erased(await broker.read(TOPIC, start=0), before, is_alice)
        await publish(broker, 60, 930)
        await keep(broker)
        after = await broker.read(TOPIC, start=0)
        check_erased(after[:930], before, is_alice)
        assert any(one.payload.startswith(SECRET) for one in after[930:]), (
            "published later: it stays"
        )
        again = await broker.erase(f"{TOPIC}/alice/#", TOPIC)
        assert 0 < again.log_records + again.history_records <= 40, "only what came since"
        nothing = await broker.erase(f"{TOPIC}/alice/#", TOPIC)
        assert (nothing.log_records, nothing.history_records) == (0, 0)
        assert files_with(world.data.parent, SECRET) == []
        assert files_with(world.data.parent, HEADER.encode()) == []
    async with world.broker() as broker:
        check_erased((await broker.read(TOPIC, start=0))[:930], before, is_alice)
    assert verify(world) == 0


async def test_only_records_before_a_time_are_erased(world: TieringWorld) -> None:
    async with world.broker() as broker:
        await world.create(broker)
        await publish(broker, 300)
        await keep(broker)
        before = await broker.read(TOPIC, start=0)
        middle = before[100]
        await broker.erase("#", TOPIC, before=middle.time)

        def is_old(record: Record) -> bool:
            return record.timestamp < middle.timestamp

        check_erased(await broker.read(TOPIC, start=0), before, is_old)
        assert not any(is_old(one) for one in await broker.read(TOPIC, start=middle.time))


async def test_names_that_match_nothing_change_no_file(world: TieringWorld) -> None:
    async with world.broker() as broker:
        await world.create(broker)
        await publish(broker, 300)
        await keep(broker)
        sealed = {path: path.stat().st_ino for path in world.log.glob("*.log")}
        cold = {path: path.stat().st_ino for path in world.table.rglob("*") if path.is_file()}
        erased = await broker.erase(f"{TOPIC}/carol", TOPIC)
        assert (erased.log_records, erased.history_records, erased.retained) == (0, 0, 0)
        assert sealed.items() <= {p: p.stat().st_ino for p in world.log.glob("*.log")}.items()
        assert cold == {p: p.stat().st_ino for p in world.table.rglob("*") if p.is_file()}


async def test_readers_and_publishers_go_on_while_records_are_erased(world: TieringWorld) -> None:
    async with world.broker() as broker:
        await world.create(broker, retention_bytes="unlimited")
        await publish(broker, 600)
        before = await broker.read(TOPIC, start=0)
        is_over = False

        async def write() -> int:
            number = 600
            while not is_over:
                await publish(broker, 3, number)
                number += 3
            return number

        async def read() -> int:
            walks = 0
            while not is_over:
                found = await broker.read(TOPIC, start=0, limit=600)
                assert [one.offset for one in found] == list(range(600))
                assert all(
                    one == was for one, was in zip(found, before, strict=True) if not is_alice(was)
                )
                walks += 1
                await asyncio.sleep(0)
            return walks

        work = asyncio.gather(write(), read(), read())
        erased = await broker.erase(f"{TOPIC}/alice/+", TOPIC)
        is_over = True
        end, *walks = await work
        assert erased.log_records >= 200 and min(walks) > 0
        assert [one.offset for one in await broker.read(TOPIC, start=0)] == list(range(end))
        assert erased.end_offset < end, "somebody published meanwhile"


async def test_an_order_that_a_store_holds_up_is_finished_when_it_is_back(
    world: TieringWorld,
) -> None:
    async with world.broker() as broker:
        await world.create(broker)
        await publish(broker, 600)
        await keep(broker)
        before = await broker.read(TOPIC, start=0)
        log = world.table / "_delta_log"
        shutil.move(log, log.with_name("away"))
        with pytest.raises(UnavailableError, match="order is stored"):
            await broker.erase(f"{TOPIC}/alice/#", TOPIC)
        assert (world.log / ERASE_NAME).exists()
        await broker.engine.erasing.go_on()
        shutil.move(log.with_name("away"), log)
    async with world.broker() as broker:
        await broker.engine.erasing.wait_done()
        check_erased(await broker.read(TOPIC, start=0), before, is_alice)
        assert not (world.log / ERASE_NAME).exists()
    assert files_with(world.data.parent, SECRET) == []
    assert verify(world) == 0


async def test_files_that_left_the_table_because_of_their_age_are_removed_as_well(
    world: TieringWorld,
) -> None:
    async with world.broker() as broker:
        await world.create(broker, history_age="1ms")
        await publish(broker, 300)
        await keep(broker)
        await publish(broker, 300, 300)
        await keep(broker)
        left = {path.name for path in world.table.glob("*.parquet")}
        assert len(left) > (await history(broker)).files, "the oldest file is not named any more"
        await broker.erase(f"{TOPIC}/alice/#", TOPIC)
        assert len(list(world.table.glob("*.parquet"))) == (await history(broker)).files
    assert files_with(world.data.parent, SECRET) == []


async def test_a_damaged_segment_is_named_and_the_others_are_erased(world: TieringWorld) -> None:
    async with world.broker() as broker:
        await world.create(broker, retention_bytes="unlimited")
        await publish(broker, 600)
        await keep(broker)
    damaged = sorted(world.log.glob("*.log"))[1]
    data = bytearray(damaged.read_bytes())
    data[SEGMENT_BYTES // 4] ^= 1
    damaged.write_bytes(data)
    async with world.broker() as broker:
        with pytest.raises(UnavailableError, match=damaged.name):
            await broker.erase(f"{TOPIC}/alice/#", TOPIC)
        assert files_with(world.data, HEADER.encode()) == [str(damaged.relative_to(world.data))]
        assert broker.engine.topics.get(TOPIC).log.erasures, "it is tried again"


async def test_a_broker_that_does_not_know_the_history_refuses(world: TieringWorld) -> None:
    async with world.broker() as broker:
        await world.create(broker)
        await publish(broker, 600)
        await keep(broker)
    async with world.broker(history_url="") as broker:
        with pytest.raises(RefusedError, match=r"\[history\] url"):
            await broker.erase("#", TOPIC)
        assert not broker.engine.topics.get(TOPIC).log.erasures


async def test_what_cannot_be_erased_is_refused(world: TieringWorld) -> None:
    async with world.broker() as broker:
        await world.create(broker)
        wrong: list[tuple[type[Exception], str, dict[str, Any]]] = [
            (InvalidFilter, "a/#/b", {}),
            (InvalidPosition, "#", {"before": "latest"}),
            (InvalidPosition, "#", {"before": 12}),
            (InvalidPosition, "#", {"before": "yesterday"}),
        ]
        for error, names, given in wrong:
            with pytest.raises(error):
                await broker.erase(names, TOPIC, **given)
        assert not (world.log / ERASE_NAME).exists()


async def test_records_in_memory_are_erased(world: TieringWorld) -> None:
    async with AsyncBroker.memory() as broker:
        await broker.create_topic(TOPIC)
        await publish(broker, 30)
        before = await broker.read(TOPIC)
        erased = await broker.erase(f"{TOPIC}/alice/#", TOPIC)
        assert erased.log_records == 10
        check_erased(await broker.read(TOPIC), before, is_alice)


async def test_a_damaged_order_is_named(world: TieringWorld) -> None:
    async with world.broker() as broker:
        await world.create(broker)
    (world.log / ERASE_NAME).write_text("[")
    async with world.broker() as broker:
        with pytest.raises(UnavailableError, match=ERASE_NAME):
            await broker.publish("x", TOPIC)
