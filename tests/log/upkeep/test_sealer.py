"""Is sealing in another process the same as sealing here, and does nothing stay behind?"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.log.files.segment import Segment
from penstock.log.files.upkeep.sealer import SealerChild
from penstock.model.errors import CorruptError
from tests.log.files.segments import all_batches, plain_run, write_model
from tests.log.format.batch_model import TOPIC, ModelLog


@pytest.fixture
def sealer() -> Iterator[SealerChild]:
    child = SealerChild()
    yield child
    child.close()


def closed_segment(tmp_path: Path, model: ModelLog) -> Segment:
    runs = [[plain_run(f"n/{i % 3}", [b"%d" % i, b"x" * i])] for i in range(100)]
    return write_model(tmp_path, model, runs)


def test_a_child_seals_what_is_closed(tmp_path: Path, sealer: SealerChild) -> None:
    model = ModelLog()
    segment = closed_segment(tmp_path, model)
    sealed = sealer.seal(segment)
    assert sealed.body.header.is_sealed
    found = [record for batch in all_batches(sealed) for record in batch.records(TOPIC, 0, 2**62)]
    assert found == model.records
    assert [path.name for path in tmp_path.iterdir()] == [segment.path.name]


def test_a_damaged_segment_is_refused_and_left_as_it_is(
    tmp_path: Path, sealer: SealerChild
) -> None:
    segment = closed_segment(tmp_path, ModelLog())
    data = bytearray(segment.path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.path.write_bytes(data)
    with pytest.raises(CorruptError):
        sealer.seal(segment)
    assert segment.path.read_bytes() == data
    assert [path.name for path in tmp_path.iterdir()] == [segment.path.name]


def test_a_child_that_was_killed_is_replaced(tmp_path: Path, sealer: SealerChild) -> None:
    first = closed_segment(tmp_path, ModelLog())
    sealer.seal(first)
    child = sealer._child.process
    assert child is not None
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    again = tmp_path / "again"
    again.mkdir()
    assert sealer.seal(closed_segment(again, ModelLog())).body.header.is_sealed


def test_a_child_ends_when_its_broker_is_gone(tmp_path: Path, sealer: SealerChild) -> None:
    sealer.seal(closed_segment(tmp_path, ModelLog()))
    child = sealer._child.process
    assert child is not None and child.stdin is not None
    child.stdin.close()  # what the end of the broker's process does
    assert child.wait(30) == 0
