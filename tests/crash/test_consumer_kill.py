"""Kill -9 while consuming: a batch may come again, but is one ever skipped?"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import Broker

CHILD = Path(__file__).with_name("consuming_child.py")
SEED = int(os.environ.get("PENSTOCK_SEED", random.SystemRandom().randrange(1 << 32)))
RECORDS = 2_000
HOLD_ONE_BATCH = """
import sys
from penstock import Broker
broker = Broker(sys.argv[1])
first = broker.consume("worker", "orders", limit=5)
broker.commit("worker", "orders")
second = broker.consume("worker", "orders", limit=5)
print([r.offset for r in first], [r.offset for r in second], flush=True)
sys.stdin.read()
"""


def fill(directory: Path) -> None:
    with Broker(directory) as broker:
        broker.create_topic("orders")
        broker.publish_many(list(range(RECORDS)), "orders")
        broker.subscribe("worker", "orders")


def run_and_kill(directory: Path, batch: int, kill_after: int) -> tuple[list[int], bool]:
    """What the child said it handled, and whether it came to the end."""
    child = subprocess.Popen(
        [sys.executable, str(CHILD), str(directory), str(batch)], stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    lines = [child.stdout.readline() for _ in range(kill_after)]
    child.send_signal(signal.SIGKILL)
    lines += child.stdout.read().splitlines(keepends=True)
    child.wait()
    offsets = [int(line) for line in lines if line.endswith(b"\n") and line != b"done\n"]
    return offsets, b"done\n" in lines


@pytest.mark.slow
def test_killed_again_and_again_a_consumer_skips_nothing(tmp_path: Path) -> None:
    print(f"PENSTOCK_SEED={SEED}")
    chance = random.Random(SEED)
    fill(tmp_path)
    reached = 0  # everything below was handled
    for _ in range(100):
        batch = chance.choice([1, 7, 50])
        offsets, is_done = run_and_kill(tmp_path, batch, chance.randint(1, 400))
        if offsets:
            assert offsets[0] <= reached, f"skipped from {reached} to {offsets[0]}"
            assert offsets == list(range(offsets[0], offsets[-1] + 1))
            reached = max(reached, offsets[-1] + 1)
        if is_done:
            break
    assert is_done and reached == RECORDS


def test_killed_with_a_batch_in_hand_exactly_that_batch_comes_again(tmp_path: Path) -> None:
    fill(tmp_path)
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD_ONE_BATCH, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"[0, 1, 2, 3, 4] [5, 6, 7, 8, 9]\n"
    child.kill()
    child.communicate()
    with Broker(tmp_path) as broker:
        again = broker.consume("worker", "orders", limit=5)
        assert [record.offset for record in again] == [5, 6, 7, 8, 9]
