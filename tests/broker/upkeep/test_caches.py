"""Do caches count what they hold, and go when nobody uses them?"""

from __future__ import annotations

import tracemalloc

import pytest

from penstock.broker.deliver import decoded
from penstock.broker.deliver.decoded import Decoded
from penstock.broker.figures.caches import IDLE_S, Caches
from penstock.doors.http.lines import LINES_BYTES_MAX, Lines
from penstock.model.clock import ManualClock
from tests.broker.exchange_world import ExchangeWorld
from tests.log.files.segments import plain_run
from tests.log.format.batch_model import ModelLog

SMALL_RECORDS = 2_000  # of a batch


@pytest.mark.slow
async def test_records_that_are_decoded_for_many_readers_take_bounded_memory(
    world: ExchangeWorld,
) -> None:
    (topic,) = world.engine.topics.all()
    model = ModelLog()
    kept = Decoded()
    tracemalloc.start()
    try:
        for _ in range(100):
            batch = model.batch([plain_run("n", [b"x"] * SMALL_RECORDS)])
            assert len(kept.records(topic, batch, 0, 1 << 60)) == SMALL_RECORDS
            assert kept.bytes <= decoded.BYTES_MAX
        del model, batch
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.5 * kept.bytes < held < 1.2 * decoded.BYTES_MAX


@pytest.mark.over_a_second
def test_lines_of_streams_take_bounded_memory() -> None:
    lines = Lines()
    model = ModelLog()
    batch = model.batch([plain_run("n", [b"x"] * 60_000)])
    records = batch.records("t", 0, 1 << 60)
    tracemalloc.start()
    try:
        for record in records:
            lines.get(1, record)
            assert lines.bytes <= LINES_BYTES_MAX
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held <= peak < 1.2 * LINES_BYTES_MAX


async def test_caches_are_emptied_when_nobody_used_them_for_a_while() -> None:
    clock = ManualClock()
    caches = Caches(clock)
    lines = Lines()
    caches.by_name["lines"] = lines
    (record,) = ModelLog().batch([plain_run("n", [b"x"])]).records("t", 0, 1)
    lines.get(1, record)
    clock.advance(IDLE_S)
    await caches.look()
    assert lines.bytes > 0, "it was used since the broker began"
    clock.advance(IDLE_S / 2)
    await caches.look()
    assert lines.bytes > 0, "that is too soon"
    clock.advance(IDLE_S / 2)
    await caches.look()
    assert caches.export() == {'penstock_cache_bytes{cache="lines"}': 0}
