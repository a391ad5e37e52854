"""Kill -9 while the broker tiers: is every acknowledged record in the log or the history, once?

And if only the process dies that writes the history?
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from deltalake import DeltaTable

from penstock import Broker
from penstock.cli.main import main
from penstock.log.history import child
from penstock.log.history.manifest import open_manifest
from penstock.log.history.storage import DirectoryStorage
from tests.crash.test_kill import SEED, Ack, check_directory, missing_or_wrong, run_and_kill
from tests.history.world import TieringWorld, history, keep

ROUNDS = int(os.environ.get("PENSTOCK_ROUNDS", "4"))  # 30 before a release
ACKS_MAX = 12_000  # about two seconds: some rounds end before the first file, some after several


def stored(directory: Path, url: Path) -> list[bytes]:
    """Everything from the first offset on, as a reader sees it: history, then log."""
    with Broker(directory, history_url=str(url)) as broker:
        return [record.payload for record in broker.read("orders", start=0)]


def check_history(table: Path, payloads: list[bytes]) -> int:
    """The table is whole and holds what the reader saw; how many records."""
    manifest = open_manifest(DirectoryStorage(table))
    if manifest is None:
        return 0
    for file in manifest.files:
        manifest.open_file(file).verify()
    rows = DeltaTable(str(table)).to_pyarrow_table(columns=["offset", "payload"]).sort_by("offset")
    assert rows.column("offset").to_pylist() == list(range(manifest.end))
    assert rows.column("payload").to_pylist() == payloads[: manifest.end]
    return manifest.end


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_killed_while_it_tiers_nothing_is_lost_and_nothing_is_there_twice(tmp_path: Path) -> None:
    print(f"PENSTOCK_SEED={SEED}")
    chance = random.Random(SEED)
    directory, url = tmp_path / "data", tmp_path / "history"
    acks: list[Ack] = []
    cold = 0
    for round_number in range(ROUNDS):
        acks += run_and_kill(
            directory, round_number * 1_000_000, chance.randint(1, ACKS_MAX), f"--history={url}"
        )
        check_directory(directory)
        payloads = stored(directory, url)
        assert missing_or_wrong(acks, payloads) == []
        assert [offset for _, _, offset in acks if offset >= len(payloads)] == []
        cold = check_history(url / "default" / "orders-1", payloads)
    assert cold > 1_000  # else nothing was tested
    asked = ["log", "verify", "--history", "--at", str(directory), "--url", str(url)]
    assert main(asked) == 0


DYING = """
import os
from penstock.log.history import child
from penstock.log.history.manifest import Manifest
from penstock.log.history.storage import DirectoryStorage

passed = 0

def step():
    global passed
    passed += 1
    if passed > {steps}:
        os._exit(9)

def dying(owner, name):
    inner = getattr(owner, name)
    def outer(*arguments):
        step()
        inner(*arguments)
        step()
    setattr(owner, name, outer)

for name in ("put", "remove", "sync_log"):
    dying(DirectoryStorage, name)
dying(Manifest, "_commit")
child.main()
"""


@pytest.mark.slow
async def test_a_writer_that_dies_at_any_step_is_followed_by_one_that_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = TieringWorld(tmp_path)
    steps, is_dead = 0, True
    while is_dead:
        with monkeypatch.context() as patched:
            patched.setattr(child, "_CHILD", DYING.format(steps=steps))
            async with world.broker() as broker:
                if steps == 0:
                    await world.create(broker)
                await world.publish(broker, 150)
                await keep(broker)
                is_dead = "ended with 9" in (await history(broker)).trouble
                await world.check_all_there(broker)
        async with world.broker() as broker:
            await keep(broker)
            assert (await history(broker)).trouble == ""
            await world.check_all_there(broker)
        named = {Path(uri).name for uri in DeltaTable(str(world.table)).file_uris()}
        assert {path.name for path in world.table.iterdir() if path.is_file()} == named
        steps += 1
    assert steps > 6
