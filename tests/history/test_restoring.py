"""Is a broker that was restored from a backup the same one, although its history went on?"""

from __future__ import annotations

import asyncio
import json
import shutil
from base64 import b64decode
from pathlib import Path
from random import randbytes
from typing import Any
from urllib.request import urlopen

import pytest

from penstock.cli.main import main
from penstock.core.erasure import Erasure
from tests.doors.served import Served
from tests.doors.wire import Wire
from tests.history.test_erasing import SECRET, files_with, publish
from tests.history.world import RECORD_BYTES, TOPIC, TieringWorld, history, hot_first, info, keep
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


async def back_up(world: TieringWorld) -> None:
    kept = str(world.data.with_name("kept"))
    assert await asyncio.to_thread(main, ["backup", kept, "--at", str(world.data)]) == 0


async def restore(world: TieringWorld) -> None:
    """The data directory is lost, and comes from the backup; the history is as it is."""
    shutil.rmtree(world.data)
    kept = str(world.data.with_name("kept"))
    assert await asyncio.to_thread(main, ["restore", kept, str(world.data)]) == 0


async def test_a_restored_broker_reads_its_history_and_goes_on_behind_it(
    world: TieringWorld,
) -> None:
    async with world.broker() as broker:
        await world.create(broker)
        await world.publish(broker, 300)
        await keep(broker)
    await back_up(world)
    await restore(world)
    async with world.broker() as broker:
        assert hot_first(broker) > 0
        await world.check_all_there(broker)
        await world.publish(broker, 400)
        await keep(broker)
        assert (await history(broker)).end_offset > 300
        await world.check_all_there(broker)


async def test_an_order_to_erase_that_was_in_a_backup_is_carried_out_after_a_restore(
    world: TieringWorld,
) -> None:
    async with world.broker() as broker:
        await world.create(broker)
        await publish(broker, 600)
        await keep(broker)
        log = broker.engine.topics.get(TOPIC).log
        await log.keep_erasures([Erasure(f"{TOPIC}/alice/#", 600, None)])
    await back_up(world)
    await restore(world)
    async with world.broker() as broker:
        await broker.engine.erasing.wait_done()
        assert (await info(broker)).end_offset == 600
    assert files_with(world.data, SECRET) == files_with(world.table, SECRET) == []


class Rows:
    """Records over HTTP and MQTT, as users of a running broker send and read them."""

    def __init__(self, broker: Served) -> None:
        self._broker = broker

    def publish(self, first: int, end: int) -> None:
        with Wire(self._broker.port, "publisher") as wire:
            wire.connect()
            for number in range(first, end):
                wire.publish(f"{TOPIC}/x", b"%d \xff" % number + randbytes(RECORD_BYTES), 1)

    def numbers(self) -> list[tuple[int, int]]:
        """(offset, number) of all records from the first offset on."""
        found: list[tuple[int, int]] = []
        end = 1
        while len(found) < end:
            page = self._get(f"/records?from={len(found)}&limit=500")
            end = page["end_offset"]
            found += [
                (one["offset"], int(b64decode(one["payload_base64"]).split()[0]))
                for one in page["records"]
            ]
        return found

    def history_end(self) -> int:
        return int((self._get("").get("history") or {"end_offset": 0})["end_offset"])

    def _get(self, path: str) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self._broker.http_port}/v1/topics/{TOPIC}{path}"
        with urlopen(url) as answer:
            found: dict[str, Any] = json.load(answer)
        return found


# Of 20 records none is in the history when the backup is made, of 200 some are.
@pytest.mark.parametrize(("backed_up", "is_cold"), [(20, False), (200, True)])
def test_a_broker_restored_from_before_its_history_goes_on_behind_what_the_history_has(
    tmp_path: Path, backed_up: int, is_cold: bool
) -> None:
    data, kept = tmp_path / "data", tmp_path / "kept"
    settings = tmp_path / "penstock.toml"
    settings.write_text(
        f'[history]\nurl = "{tmp_path / "history"}"\n'
        '[log]\nsegment_bytes = "64 KiB"\nupkeep_every = "100ms"\n'
    )
    broker = Served(data, "--config", str(settings)).start()
    create = ["topic", "create", TOPIC, "--history", "--retention-bytes", "64 KiB"]
    assert main([*create, "--at", str(data)]) == 0
    rows = Rows(broker)
    rows.publish(0, backed_up)
    wait_until(lambda: rows.history_end() > 0 or not is_cold)
    assert (rows.history_end() > 0) == is_cold
    assert main(["backup", str(kept), "--at", str(data)]) == 0
    rows.publish(backed_up, 600)
    wait_until(lambda: rows.history_end() > 300)
    broker.kill()
    shutil.rmtree(data)
    assert main(["restore", str(kept), str(data)]) == 0
    broker.start()
    wait_until(lambda: rows.history_end() > 300)
    end = rows.history_end()
    assert rows.numbers() == [(number, number) for number in range(end)]
    rows.publish(end, end + 200)  # offsets that the history has are not given again
    assert rows.numbers() == [(number, number) for number in range(end + 200)]
    wait_until(lambda: rows.history_end() > end)  # and it grows behind them
    broker.stop()
    asked = ["log", "verify", "--history", "--at", str(data), "--url", str(tmp_path / "history")]
    assert main(asked) == 0
