"""Power loss while a broker tiers, trims and erases: is every acknowledged record in the log or in
the history exactly once, and is no byte left of what was said to be erased?

PENSTOCK_POWERLOSS_POINTS sets how many crash points are tried, PENSTOCK_SEED which ones.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from penstock.app.aio import AsyncBroker
from penstock.log.history.tier import LIFE_NAME
from penstock.log.history.work import Tables
from penstock.model.record import KIND_ERASED
from tests.history.test_erasing import files_with
from tests.history.world import SEGMENT_BYTES, TOPIC, keep
from tests.peers.powerloss import tiering_child
from tests.peers.powerloss.erasing_child import NoLock
from tests.peers.powerloss.tiering_child import SECRET, is_erased, payload
from tests.powerloss import (
    DROP_ALL,
    KEEP_ALL,
    Crash,
    RandomLoss,
    Recording,
    Trace,
    crashes,
    sampled_points,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]
POINTS = int(os.environ.get("PENSTOCK_POWERLOSS_POINTS", "12"))
SEED = int(os.environ.get("PENSTOCK_SEED", "1"))


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """A broker and its writer of histories, in one order of events."""
    folder = tmp_path_factory.mktemp("tiering")
    root, acks = folder / "root", folder / "acks"
    acks.write_bytes(b"")
    recording = Recording(root, folder / "trace")
    ended = subprocess.run(
        [sys.executable, "-m", tiering_child.__name__, str(root), str(acks)],
        cwd=Path(__file__).parents[3],
        env=recording.env(ack_fd=None, ack_file=acks),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return recording.trace()


@pytest.fixture(scope="module")
def workdir() -> Iterator[Path]:
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture
def writes_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Orders are carried out by the same code in this process: starting one takes a second."""

    class Writer:
        def __init__(self) -> None:
            self._tables = Tables(NoLock())
            self.ask = self._tables.perform

        def close(self) -> None: ...

    monkeypatch.setattr("penstock.log.history.tier.HistoryWriter", Writer)


class Told:
    """What the acknowledgements up to a crash promise."""

    def __init__(self, lines: list[str]) -> None:
        self.end = 0
        self.is_erasing = self.is_erased = False
        for line in lines:
            what, *rest = json.loads(line)
            self.end = rest[0] if what == "stored" else self.end
            self.is_erasing |= what == "erasing"
            self.is_erased |= what == "erased"


async def problems_of(crash: Crash) -> str:
    """What the next broker finds wrong; empty when every promise holds."""
    told = Told(crash.acked_lines())
    root = crash.directory
    if told.is_erased and (left := files_with(root, SECRET)):
        return f"{crash}: said to be erased, and still in {left}"
    settings = {
        "upkeep_s": 3_600.0,
        "segment_bytes": SEGMENT_BYTES,
        "history_url": str(root / "history"),
        "disk_free_percent_min": 0,
    }
    async with AsyncBroker(root / "data", **settings) as broker:
        if not await broker.topics():
            return f"{crash}: the topic is gone" if told.end else ""
        was_ordered = bool(broker.engine.topics.get(TOPIC).log.erasures)
        await broker.engine.erasing.wait_done()
        await keep(broker)
        if broker.engine.upkeep.troubles:
            return f"{crash}: {broker.engine.upkeep.troubles}"
        log = broker.engine.topics.get(TOPIC).log
        found = await broker.read(TOPIC, start=0)
        hot_first, end = log.hot_first, log.bounds().end
    if [one.offset for one in found] != list(range(end)) or end < told.end:
        return f"{crash}: {len(found)} records up to {end}, told {told.end}, hot from {hot_first}"
    for one in found:
        may_be_erased = told.is_erasing and is_erased(one.offset)
        must_be = may_be_erased and (told.is_erased or was_ordered)
        is_empty = one.kind == KIND_ERASED and not one.payload
        if is_empty and may_be_erased:
            continue
        if must_be or one.payload != payload(one.offset):
            return f"{crash}: offset {one.offset} holds {one.payload[:20]!r}"
    if was_ordered and (left := files_with(root, SECRET)):
        return f"{crash}: erased by the next broker, and still in {left}"
    return _table_problem(crash, hot_first)


def _table_problem(crash: Crash, hot_first: int) -> str:
    """The table has each offset once, without a hole, up to where the log begins."""
    table = crash.directory / "history" / "default" / f"{TOPIC}-1"
    if not (crash.directory / "data" / "default" / f"{TOPIC}-1" / LIFE_NAME).exists():
        return ""
    rows = DeltaTable(str(table)).to_pyarrow_table(columns=["offset"])
    offsets = sorted(rows.column("offset").to_pylist())
    if offsets != list(range(len(offsets))) or len(offsets) < hot_first:
        return f"{crash}: the table has {len(offsets)} rows, the log begins at {hot_first}"
    return ""


def test_the_secret_is_in_no_record_that_stays() -> None:
    """Else its bytes would be found although everything was erased."""
    last = tiering_child.ERASED_END + tiering_child.ROUND_RECORDS
    assert [at for at in range(last) if (SECRET in payload(at)) != is_erased(at)] == []


def erasing_points(trace: Trace) -> list[int]:
    """From the order until two syncs after it was acknowledged: what each of them leaves."""
    worst = trace.worst_points()
    before, told = [trace.acked_lines(at) for at in worst], ['["erasing"]', '["erased"]']
    first, last = [next(n for n, lines in enumerate(before) if one in lines) for one in told]
    return worst[first : last + 2]


@pytest.mark.usefixtures("writes_here")
async def test_wherever_the_power_fails_each_record_is_in_log_or_history_once(
    trace: Trace, workdir: Path
) -> None:
    print(f"PENSTOCK_SEED={SEED}")
    worst = trace.worst_points()
    points = {*sampled_points(trace, POINTS, SEED), *worst[:: max(1, len(worst) // POINTS)]}
    points.update(erasing_points(trace))
    checked = 0
    for crash in crashes(trace, points, [DROP_ALL, KEEP_ALL, RandomLoss(SEED)], workdir):
        assert await problems_of(crash) == ""
        checked += 1
    assert checked > POINTS
