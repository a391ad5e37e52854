"""Kill -9 while publishing: is every acknowledged message there afterwards, in order, once?"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import Broker
from penstock.log.files.disk import RealDisk
from penstock.log.files.upkeep.verify import verify_log
from tests.crash.publishing_child import message

CHILD = Path(__file__).with_name("publishing_child.py")
SEED = int(os.environ.get("PENSTOCK_SEED", random.SystemRandom().randrange(1 << 32)))

Ack = tuple[int, int, int]  # publisher, sequence, offset


def run_and_kill(
    directory: Path, start: int, kill_after_acks: int, *flags: str, publishers: int = 4
) -> list[Ack]:
    """Start the child, kill it as soon as that many acks were seen; every ack it managed to say."""
    child = subprocess.Popen(
        [sys.executable, str(CHILD), str(directory), str(publishers), *flags],
        stdout=subprocess.PIPE,
        env={**os.environ, "START": str(start)},
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    lines = []
    while len(lines) < kill_after_acks:
        lines.append(child.stdout.readline())
    child.send_signal(signal.SIGKILL)
    lines += child.stdout.read().splitlines(keepends=True)
    assert child.wait() == -signal.SIGKILL
    whole = [line for line in lines if line.endswith(b"\n")]
    return [(int(a), int(b), int(c)) for a, b, c in (line.split() for line in whole)]


def stored(directory: Path) -> list[bytes]:
    with Broker(directory) as broker:
        name = "reader"
        broker.subscribe(name, "orders")
        payloads = [record.payload for record in broker.consume(name, "orders")]
        broker.unsubscribe(name, "orders")
        return payloads


def missing_or_wrong(acks: list[Ack], payloads: list[bytes]) -> list[str]:
    """Everything that contradicts the acks: lost, at another offset, twice, out of order."""
    problems = []
    where: dict[bytes, int] = {}
    for offset, payload in enumerate(payloads):
        if payload in where:
            problems.append(f"stored twice: {payload[:20]!r} at {where[payload]} and {offset}")
        where[payload] = offset
    for publisher, sequence, offset in acks:
        found = where.get(message(publisher, sequence))
        if found is None:
            problems.append(f"lost: publisher {publisher} sequence {sequence}")
        elif offset not in (-1, found):
            problems.append(f"acknowledged at {offset}, stored at {found}")
    newest: dict[int, int] = {}
    for payload in payloads:
        publisher, sequence = map(int, payload.split(b" ")[:2])
        if sequence <= newest.get(publisher, -1):
            problems.append(f"publisher {publisher}: {sequence} follows {newest[publisher]}")
        newest[publisher] = sequence
    return problems


def check_directory(directory: Path) -> None:
    report = verify_log(RealDisk(), directory / "default" / "orders-1")
    assert report.problems == []


@pytest.mark.slow
def test_killed_again_and_again_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    print(f"PENSTOCK_SEED={SEED}")
    chance = random.Random(SEED)
    directory = tmp_path / "data"
    acks: list[Ack] = []
    for round_number in range(15):
        # Killing right at an ack is the hardest moment: round after round stops at another one.
        acks += run_and_kill(directory, round_number * 1_000_000, chance.randint(1, 400))
        check_directory(directory)
        assert missing_or_wrong(acks, stored(directory)) == []
    assert len(acks) > 300


@pytest.mark.slow
def test_the_test_notices_an_ack_that_comes_before_the_write(tmp_path: Path) -> None:
    lost: list[str] = []
    for round_number in range(20):
        directory = tmp_path / f"data-{round_number}"
        acks = run_and_kill(directory, 0, 3 + round_number, "--ack-first", publishers=1)
        lost += [p for p in missing_or_wrong(acks, stored(directory)) if p.startswith("lost")]
        if lost:
            break
    assert lost
