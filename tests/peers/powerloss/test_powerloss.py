"""Does a power loss at any moment leave everything that Penstock acknowledged?

And is every sync it makes needed: is something lost when any one of them is taken out?

PENSTOCK_POWERLOSS_POINTS sets how many crash points are tried, PENSTOCK_SEED which ones.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.powerloss import (
    DROP_ALL,
    KEEP_ALL,
    Crash,
    Policy,
    RandomLoss,
    Recording,
    Trace,
    all_policies,
    crashes,
    sampled_points,
)
from tests.powerloss import publisher as publisher_module
from tests.powerloss.promises import Promises, broken_promises
from tests.powerloss.trace import Ack, SyncBegin, SyncEnd, SyncFilter, pattern_of
from tools.interpreted import interpreted_sources

POINTS_DEFAULT = 150
POINTS = int(os.environ.get("PENSTOCK_POWERLOSS_POINTS", str(POINTS_DEFAULT)))
IS_LONG = POINTS > POINTS_DEFAULT
SEED = int(os.environ.get("PENSTOCK_SEED", "1"))

STRICT_LIVES = ("all_steps", "go_on", "die_rolling", "die_deleting", "recover")
LOOSE_LIVES = ("loose_steps", "loose_go_on", "loose_recover", "open_close")


def record(root: Path, lives: Sequence[str], trace_file: Path) -> Trace:
    """Let the publisher live in `root`/data, once for each name, all in one trace."""
    recording = Recording(root, trace_file)
    with interpreted_sources() as copy:  # a place where a life ends is known by its Python frames
        env = recording.env({**os.environ, "PYTHONPATH": str(copy)})
        for life in lives:
            argv = [sys.executable, str(publisher_module.__file__), str(root / "data"), life]
            ended = subprocess.run(
                argv, env=env, capture_output=True, text=True, timeout=120, check=False
            )
            assert ended.returncode == 0, ended.stderr
    return recording.trace()


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """Everything, at level fsync, with a clean close and a sudden end in between."""
    folder = tmp_path_factory.mktemp("strict")
    return record(folder / "root", STRICT_LIVES, folder / "trace")


@pytest.fixture(scope="module")
def loose(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """Level os, changes of level, sudden ends."""
    folder = tmp_path_factory.mktemp("loose")
    return record(folder / "root", LOOSE_LIVES, folder / "trace")


@pytest.fixture(scope="module")
def workdir() -> Iterator[Path]:
    """Where crashed directories are built: thousands of them, none of which needs a disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


def problems_of(crash: Crash, told_before: Sequence[str] = (), *, opens_again: bool = True) -> str:
    """What a broker finds broken in this directory; empty when all promises hold."""
    promises = Promises([*told_before, *crash.acked_lines()])
    problems = broken_promises(
        crash.directory / "data",
        promises,
        keeps_unsynced=crash.policy is KEEP_ALL,
        opens_again=opens_again,
    )
    return f"{crash}: {'; '.join(problems[:5])}" if problems else ""


def crash_points(trace: Trace) -> set[int]:
    """A sample, clean closes, and the points just before a sync, when the most has been told."""
    worst = trace.worst_points()[:: 1 if IS_LONG else 4]
    return {*sampled_points(trace, POINTS, SEED), *closes(trace), *worst}


def closes(trace: Trace) -> list[int]:
    """Crash points right after a clean close."""
    told = b'["done", "close"]\n'
    return [n for n, e in enumerate(trace.events, 1) if isinstance(e, Ack) and e.data == told]


def test_nothing_acknowledged_is_lost_wherever_the_power_fails(
    strict: Trace, workdir: Path
) -> None:
    print(f"PENSTOCK_SEED={SEED}")
    points = crash_points(strict)
    seeds = range(SEED, SEED + (5 if IS_LONG else 2))
    checked = 0
    for crash in crashes(strict, points, all_policies(seeds), workdir):
        assert problems_of(crash) == ""
        checked += 1
    assert checked > POINTS


def test_level_os_may_lose_records_but_says_so_with_a_new_epoch_and_moves_positions_back(
    loose: Trace, workdir: Path
) -> None:
    print(f"PENSTOCK_SEED={SEED}")
    points = crash_points(loose)
    seeds = range(SEED, SEED + (5 if IS_LONG else 2))
    lost = 0
    for crash in crashes(loose, points, all_policies(seeds), workdir):
        assert problems_of(crash) == ""
        lost += crash.policy is DROP_ALL
    assert lost > 20


@pytest.mark.parametrize("kind", ["strict", "loose"])
def test_power_may_fail_again_while_the_broker_recovers(
    kind: str, workdir: Path, request: pytest.FixtureRequest
) -> None:
    print(f"PENSTOCK_SEED={SEED}")
    trace: Trace = request.getfixturevalue(kind)
    count = 40 if IS_LONG else 6
    checked = 0
    for first in crashes(trace, sampled_points(trace, count, SEED), [RandomLoss(SEED)], workdir):
        told = first.acked_lines()
        with tempfile.TemporaryDirectory(dir=workdir) as folder:
            life = ("open_die", "open_close")[checked % 2]
            second = record(first.directory, [life], Path(folder, "trace"))
            points = {*sampled_points(second, 12, SEED), *second.worst_points()[::4]}
            for crash in crashes(second, points, [DROP_ALL, RandomLoss(SEED)], Path(folder)):
                problem = problems_of(crash, told, opens_again=False)
                assert problem == "", f"{first}, then {problem}"
                checked += 1
    assert checked > 50


NEW_SEGMENT = "active.create_segment < store._create_files"
NEW_FACTS = "disk.write_file < store._write_facts < store._create_files"
NEW_END = "endfile.open_end < store._open_files < store._create_files"
OPENED = "recovery.recover < store._open_files < store._create_files"
SETTLED = "recovery._settle < recovery.recover < store._open_files < store._create_files"
PREPARED = "sqlite._sync < sqlite._prepare < sqlite.__init__ < storage.<lambda>"

# Some syncs have another one standing in for them: alone they are not missed, together something is
# lost. Creating a topic goes through functions that have to be durable by themselves elsewhere (a
# new segment, a new topic.json, opening), so its directory is synced four times and its segment
# twice before anybody hears of it. SQLite syncs the directory with the first sync of a new WAL, and
# says so nowhere: the catalog does it itself, too.
STANDS_IN: dict[str, tuple[str, ...]] = {
    f"{NEW_SEGMENT} (dir)": (f"{NEW_FACTS} (dir)", f"{OPENED} (dir)", f"{NEW_END} (dir)"),
    f"{NEW_FACTS} (dir)": (f"{OPENED} (dir)", f"{NEW_END} (dir)"),
    f"{OPENED} (dir)": (f"{NEW_SEGMENT} (dir)", f"{NEW_FACTS} (dir)", f"{NEW_END} (dir)"),
    f"{NEW_SEGMENT} (file)": (f"{SETTLED} (file)",),
    f"{SETTLED} (file)": (f"{NEW_SEGMENT} (file)",),
    f"{PREPARED} (dir)": ("SQLite (dir)",),
    "SQLite (dir)": (f"{PREPARED} (dir)",),
}


def places_of(trace: Trace) -> dict[int, str]:
    """For each sync, by its index: the lines of code it comes from, as the publisher told."""
    told: dict[int, str] = {}
    places: dict[int, str] = {}
    for event in trace.events:
        if isinstance(event, Ack):
            for line in event.data.splitlines():
                when, *rest = json.loads(line)
                if when == "sync":
                    told[rest[0]] = rest[1]
        elif isinstance(event, SyncBegin):
            kind = "dir" if event.is_dir else "file"
            place = told.pop(event.inode, None)
            if place is None:
                name = kind if event.is_dir else Path(pattern_of(event.path)).name
                places[event.index] = f"SQLite ({name})"
            else:
                places[event.index] = f"{place} ({kind})"
    return places


def missing_points(trace: Trace, places: dict[int, str], taken: set[str]) -> set[int]:
    """Crash points where syncs of these places are missed if ever: soon after, and later ones."""
    missed = [
        n
        for n, event in enumerate(trace.events)
        if isinstance(event, SyncEnd) and event.error == 0 and places[event.begin] in taken
    ]
    worst = trace.worst_points()
    points = {len(trace), *closes(trace)} if missed else set()
    for n in missed[:: 1 if IS_LONG else max(1, len(missed) // 12)]:
        later = worst[bisect_right(worst, n) :]
        points.update(later[:8])
        points.update(later[:: max(1, len(later) // 8)])
    return points


def ignoring_places(places: dict[int, str], taken: set[str]) -> SyncFilter:
    return lambda sync: places[sync.index] in taken


def lost_without(traces: Sequence[Trace], taken: set[str], workdir: Path) -> str:
    """What is lost when all syncs of these places are taken out; empty when nothing is."""
    strictest: Sequence[Policy] = [DROP_ALL]
    any_disk: Sequence[Policy] = [RandomLoss(seed) for seed in range(20)]
    for policies in (strictest, any_disk):
        for trace in traces:
            places = places_of(trace)
            points = missing_points(trace, places, taken)
            for crash in crashes(trace, points, policies, workdir, ignoring_places(places, taken)):
                problem = problems_of(crash, opens_again=False)
                if problem:
                    return problem
    return ""


def test_every_single_sync_is_needed(strict: Trace, loose: Trace, workdir: Path) -> None:
    traces = (strict, loose)
    counts: Counter[str] = Counter()
    for trace in traces:
        places = places_of(trace)
        counts.update(places[sync.index] for sync in trace.syncs())
    needless = []
    for place in sorted(counts):
        others = STANDS_IN.get(place, ())
        lost = lost_without(traces, {place, *others}, workdir)
        together = f", together with {', '.join(others)}" if others else ""
        print(f"{counts[place]:4} × {place}{together}\n       {lost or 'NOTHING LOST'}")
        if not lost:
            needless.append(place)
    assert needless == []
