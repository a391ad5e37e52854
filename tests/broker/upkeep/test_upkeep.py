"""Does one damaged file stop the upkeep of anything else, and is it reported?"""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import AsyncBroker
from penstock.log.files.segment import HEADER_BYTES, unpack_segment_header
from penstock.model.errors import CorruptError
from penstock.model.limits import KIB


def segments(data: Path, topic: str) -> list[Path]:
    (directory,) = (data / "default").glob(f"{topic}-*")
    return sorted(directory.glob("*.log"))


async def fill(broker: AsyncBroker, topic: str) -> None:
    await broker.create_topic(topic, segment_bytes=64 * KIB, exist_ok=True)
    for _ in range(20):
        await broker.publish(b"x" * 20 * KIB, topic)


def is_sealed(path: Path) -> bool:
    header = unpack_segment_header(path.read_bytes()[:HEADER_BYTES])
    return header is not None and header.is_sealed


async def test_a_damaged_segment_is_reported_and_everything_else_is_looked_after(
    tmp_path: Path,
) -> None:
    async with AsyncBroker(tmp_path, upkeep_s=3600) as broker:
        for topic in ("a", "b"):
            await fill(broker, topic)
    damaged = segments(tmp_path, "a")[1]
    damaged.write_bytes(damaged.read_bytes()[:100])
    async with AsyncBroker(tmp_path, upkeep_s=3600) as broker:
        upkeep = broker.engine.upkeep
        await upkeep.look_after_all()
        for path in (*segments(tmp_path, "a")[:-1], *segments(tmp_path, "b")[:-1]):
            assert is_sealed(path) == (path != damaged)
        (text,) = upkeep.troubles.values()
        assert str(damaged) in text and "penstock log verify" in text
        sizes = {info.topic: info.bytes for info in await broker.topics()}
        assert sizes["a"] > 0 and sizes["b"] > 0
        with pytest.raises(CorruptError, match=damaged.name):
            await broker.read("a")
        end = (await broker.topics())[0].end_offset
        assert await broker.publish(b"on", "a") == end
        await broker.alter_topic("a", retention_bytes=1)
        await upkeep.look_after_all()
        assert not damaged.exists()
        assert upkeep.troubles == {}
        assert (await broker.read("a"))[-1].payload == b"on"
