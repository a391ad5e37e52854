"""Kill -9 while dead letters are redriven: does each come back exactly once?"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import Broker
from tests.broker.queue.test_redrives import let_die

CHILD = Path(__file__).with_name("redriving_child.py")
LETTERS = 2_500  # three batches


@pytest.fixture(scope="module")
def dead(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with dead letters."""
    directory = tmp_path_factory.mktemp("dead")
    with Broker(directory) as broker:
        broker.create_topic("jobs")
        broker.create_group("workers", "jobs", deliveries_max=1)
        broker.publish_many(range(LETTERS), "jobs")
        broker._call(let_die(broker._broker))
    return directory


def redrive_and_die(directory: Path, moment: int) -> int:
    child = [sys.executable, str(CHILD), str(directory), str(moment)]
    return subprocess.run(child, check=False).returncode


@pytest.mark.slow
@pytest.mark.parametrize("moment", range(12))
def test_killed_at_any_moment_each_dead_letter_comes_back_once(
    dead: Path, tmp_path: Path, moment: int
) -> None:
    directory = tmp_path / "data"
    shutil.copytree(dead, directory)
    assert redrive_and_die(directory, moment) == -signal.SIGKILL
    redrive_and_die(directory, 3)  # and once more, soon after the start
    with Broker(directory) as broker:
        broker.redrive("workers", "jobs")
        assert [one.value for one in broker.read("jobs", start=LETTERS)] == list(range(LETTERS))
        assert broker.redrive("workers", "jobs", dry_run=True) == 0
