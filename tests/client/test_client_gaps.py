"""Streams of a client that retention overtakes: do they go on, or say so where that was asked?"""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from penstock import Gap
from penstock.app.server import Server
from tests.doors.hosted import Hosted


async def drop_all(server: Server) -> None:
    """As retention does, all records of topic `t` up to now."""
    engine = server.broker.engine
    await engine.topics.get("t").log.trim(engine.clock.now_us() + 1, None)


def test_a_stream_that_begins_at_an_offset_that_is_gone_goes_on_or_raises(tmp_path: Path) -> None:
    with Hosted(tmp_path) as broker, penstock.connect(address(broker)) as client:
        client.create_topic("t")
        client.publish_many([b"old"] * 10, "t")
        broker.run(drop_all)
        client.publish("new", "t")
        assert next(client.stream("t", start=0)).offset == 10
        with pytest.raises(Gap, match="is at offset 0, but the first stored record is 10"):
            client.stream("t", start=0, on_gap="error")
        assert next(client.stream("t", start=10, on_gap="error")).value == "new"
        assert next(client.stream("t", start="earliest", on_gap="error")).value == "new"


def test_a_stream_that_is_overtaken_on_its_way_goes_on_or_raises(tmp_path: Path) -> None:
    with Hosted(tmp_path) as broker, penstock.connect(address(broker)) as client:
        client.create_topic("t")
        client.publish_many(["a", "b"], "t")
        patient = client.stream("t", start=0)
        strict = client.stream("t", start=0, on_gap="error")
        for stream in (patient, strict):
            assert [next(stream).value, next(stream).value] == ["a", "b"]
        client.publish("missed", "t")
        broker.run(drop_all)
        client.publish("new", "t")
        assert next(patient).value == "new"
        with pytest.raises(Gap, match="is at offset 2, but the first stored record is 3"):
            next(strict)


def address(broker: Hosted) -> str:
    return f"http://127.0.0.1:{broker.ports['http']}"
