"""One topic with damaged or missing files: does everything else work, and is nothing lost by it?"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from crc32c import crc32c

from penstock import AsyncBroker, Broker, TopicExists, UnavailableError
from penstock.log.files.segment import segment_path
from tests.broker.upkeep.test_upkeep import fill, segments

Harm = Callable[[Path], None]


def remove_all(directory: Path) -> None:
    shutil.rmtree(directory)


def remove_segments(directory: Path) -> None:
    for path in directory.glob("*.log"):
        path.unlink()


def make_newer(directory: Path) -> None:
    """As if a later Penstock had written it."""
    path = segment_path(directory, 0)
    data = bytearray(path.read_bytes())
    data[8] = 99
    data[60:64] = crc32c(bytes(data[:60])).to_bytes(4, "little")
    path.write_bytes(data)


def replace_by_file(directory: Path) -> None:
    shutil.rmtree(directory)
    directory.write_text("what is this?")


HARMS = pytest.mark.parametrize("harm", [remove_all, remove_segments, make_newer, replace_by_file])


def make(data: Path) -> Path:
    """Topics `bad` and `good` with a consumer each; the directory of the first."""
    with Broker(data) as broker:
        for topic in ("bad", "good"):
            broker.create_topic(topic)
            broker.subscribe("c", topic)
            broker.publish_many(["a", "b", "c"], topic)
            assert [record.value for record in broker.consume("c", topic, limit=2)] == ["a", "b"]
            broker.commit("c", topic)
    return data / "default" / "bad-1"


@HARMS
def test_the_broker_starts_and_only_that_topic_refuses(tmp_path: Path, harm: Harm) -> None:
    directory = make(tmp_path)
    harm(directory)
    with Broker(tmp_path) as broker:
        assert broker.publish("d", "good") == 3
        assert [record.value for record in broker.consume("c", "good")] == ["c", "d"]
        for refused in (
            lambda: broker.publish("d", "bad"),
            lambda: broker.publish_many(["d"], "bad"),
            lambda: broker.consume("c", "bad"),
            lambda: broker.read("bad"),
            lambda: broker.subscribe("other", "bad"),
            lambda: broker.seek("c", "bad", "earliest"),
            lambda: broker.stream("bad"),
            lambda: broker.size("bad"),
            lambda: broker.alter_topic("bad", retention_age="1h"),
        ):
            with pytest.raises(UnavailableError) as error:
                refused()
            assert "topic 'bad' is unavailable" in str(error.value)
            assert str(directory) in str(error.value)
            assert "penstock log verify" in str(error.value)
        with pytest.raises(TopicExists):
            broker.create_topic("BAD")
        infos = {info.topic: info for info in broker.topics()}
        assert not infos["bad"].is_available and str(directory) in infos["bad"].trouble
        assert infos["good"].is_available and infos["good"].trouble == ""
        assert any("topic 'bad' is unavailable" in note for note in broker.notes)


@HARMS
def test_it_can_be_deleted_and_made_anew(tmp_path: Path, harm: Harm) -> None:
    directory = make(tmp_path)
    harm(directory)
    with Broker(tmp_path) as broker:
        broker.delete_topic("bad")
        assert [info.topic for info in broker.topics()] == ["good"]
        broker.create_topic("bad")
        assert broker.publish("x", "bad") == 0
    assert not directory.is_dir()
    with Broker(tmp_path) as broker:
        assert [record.value for record in broker.read("bad")] == ["x"]
        assert broker.notes == ()


def test_when_the_files_are_back_it_goes_on_where_it_was(tmp_path: Path) -> None:
    directory = make(tmp_path)
    directory.rename(tmp_path / "elsewhere")
    for _ in range(2):
        with Broker(tmp_path) as broker:
            broker.publish("d", "good")
            broker.bind("x/#", "bad")
            broker.unbind("x/#")
    (tmp_path / "elsewhere").rename(directory)
    with Broker(tmp_path) as broker:
        assert broker.notes == ()
        assert [record.value for record in broker.consume("c", "bad")] == ["c"]
        assert broker.publish("d", "bad") == 3


async def test_a_sealed_newest_segment_without_its_footer_is_such_damage(tmp_path: Path) -> None:
    async with AsyncBroker(tmp_path) as opened:
        for topic in ("bad", "good"):
            await fill(opened, topic)
        await opened.engine.upkeep.look_after_all()
    *_, cut, newest = segments(tmp_path, "bad")
    newest.unlink()
    cut.write_bytes(cut.read_bytes()[:-10])
    with Broker(tmp_path) as broker:
        broker.publish("x", "good")
        with pytest.raises(UnavailableError, match=cut.name):
            broker.publish("x", "bad")


def test_a_damaged_topic_file_is_named_at_the_start_and_not_used(tmp_path: Path) -> None:
    make(tmp_path)
    facts = tmp_path / "default" / "good-2" / "topic.json"
    whole = facts.read_bytes()
    facts.write_bytes(whole.replace(b'"fsync"', b'"os"'))  # fine as JSON, and not what was written
    with Broker(tmp_path) as broker:
        assert any(f"{facts} is damaged" in note for note in broker.notes)
        good = next(info for info in broker.topics() if info.topic == "good")
        assert good.durability == "fsync" and good.is_available
        broker.publish("x", "good")
    (tmp_path / "catalog.db").unlink()
    with Broker(tmp_path) as broker:
        assert [info.topic for info in broker.topics()] == ["bad"]  # nothing of it is believed
        assert any(f"{facts} is damaged" in note for note in broker.notes)
    facts.write_bytes(whole)
    with Broker(tmp_path) as broker:
        assert {info.topic for info in broker.topics()} == {"bad", "good"}


def test_a_log_that_nobody_knows_and_nobody_can_read_is_left_alone(tmp_path: Path) -> None:
    make(tmp_path)
    stranger = tmp_path / "default" / "stranger-77"
    shutil.copytree(tmp_path / "default" / "good-2", stranger)
    (stranger / "topic.json").write_bytes(b"\xff")
    with Broker(tmp_path) as broker:
        assert [info.topic for info in broker.topics()] == ["bad", "good"]
        assert any("stranger-77" in note for note in broker.notes)
    assert stranger.is_dir()
