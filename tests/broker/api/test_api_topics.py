"""Topics and bindings as a program sees them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock import (
    Broker,
    InvalidFilter,
    InvalidTopic,
    RefusedError,
    TopicExists,
    TopicInfo,
    TopicNotFound,
)
from tests.each import each


def names(broker: Broker) -> list[str]:
    return [one.topic for one in broker.topics()]


def test_a_new_topic_is_listed_empty_with_the_defaults(broker: Broker) -> None:
    assert broker.topics() == []
    broker.create_topic("Orders")
    (found,) = broker.topics()
    assert isinstance(found, TopicInfo)
    assert (found.topic, found.first_offset, found.end_offset) == ("Orders", 0, 0)
    assert (found.durability, found.retention_age, found.retention_bytes) == (
        "fsync",
        7 * 86_400,
        None,
    )


def test_topics_take_settings_and_keep_the_rest(broker: Broker) -> None:
    broker.create_topic("t", retention_age="12h", retention_bytes="1 GiB", durability="os")
    (found,) = broker.topics()
    assert (found.retention_age, found.retention_bytes, found.durability) == (
        43_200,
        1 << 30,
        "os",
    )
    broker.alter_topic("T", retention_age=None)
    (found,) = broker.topics()
    assert (found.retention_age, found.retention_bytes, found.durability) == (None, 1 << 30, "os")


def test_a_topic_exists_once_whatever_the_letter_case(broker: Broker) -> None:
    broker.create_topic("Straße")
    for same in ("Straße", "STRASSE", "strasse", "straSSe"):
        with pytest.raises(TopicExists, match="'Straße' already exists"):
            broker.create_topic(same)
    broker.publish("x", "STRASSE")
    (record,) = broker.read("strasse")
    assert record.topic == "Straße" and record.name == "Straße"


def test_exist_ok_leaves_an_existing_topic_as_it_is(broker: Broker) -> None:
    broker.create_topic("t", durability="os")
    broker.create_topic("T", durability="fsync", exist_ok=True)
    (found,) = broker.topics()
    assert (found.topic, found.durability) == ("t", "os")


@each(
    "bad",
    ["", "a/b", "a+", "#", "$sys", ".", "..", "a\nb", "x" * 256, "\ud800", None, 7],
    ids=repr,
)
def test_a_text_that_cannot_name_a_topic_is_refused(broker: Broker, bad: str) -> None:
    with pytest.raises(InvalidTopic):
        broker.create_topic(bad)
    with pytest.raises(InvalidTopic):
        broker.publish("m", bad)


def test_topic_names_of_1_and_255_characters_work_to_the_disk_and_back(tmp_path: Path) -> None:
    odd = ["x", "ü" * 255, "a b", "a.b", "-", "A:B\\c", "топик", ".hidden"]
    with Broker(tmp_path / "data") as broker:
        for name in odd:
            broker.create_topic(name)
            broker.publish(name, name)
    with Broker(tmp_path / "data") as broker:
        assert names(broker) == odd
        assert [broker.read(name)[0].value for name in odd] == odd


def test_a_deleted_topic_is_gone_and_its_id_is_never_used_again(broker: Broker) -> None:
    broker.create_topic("t")
    first_id = broker.topics()[0].id
    broker.publish("old", "t")
    broker.subscribe("c", "t")
    broker.delete_topic("T")
    assert broker.topics() == []
    with pytest.raises(TopicNotFound):
        broker.publish("x", "t")
    broker.create_topic("t")
    assert broker.topics()[0].id > first_id
    assert broker.read("t") == [] and broker.consumers("t") == []


def test_a_deleted_topic_leaves_no_files(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        broker.create_topic("t")
        broker.publish("x", "t")
        broker.delete_topic("t")
        assert list((tmp_path / "default").iterdir()) == []


@pytest.mark.parametrize("call", ["delete_topic", "size", "read", "consumers", "alter_topic"])
def test_an_unknown_topic_is_refused_everywhere(broker: Broker, call: str) -> None:
    with pytest.raises(TopicNotFound, match="'nosuch' is not declared"):
        getattr(broker, call)("nosuch")


def test_a_topic_with_bindings_is_deleted_only_after_they_are_taken_back(broker: Broker) -> None:
    broker.create_topic("t")
    broker.bind("a/#", "t")
    with pytest.raises(RefusedError, match="'a/#'.*unbind"):
        broker.delete_topic("t")
    assert names(broker) == ["t"]
    broker.publish("still here", "t")
    broker.unbind("a/#")
    broker.delete_topic("t")


def test_a_binding_needs_a_topic_and_a_filter_that_is_one(broker: Broker) -> None:
    with pytest.raises(TopicNotFound):
        broker.bind("a/#", "t")
    broker.create_topic("t")
    broker.create_topic("u")
    with pytest.raises(InvalidFilter):
        broker.bind("a/#/b", "t")
    broker.bind("a/#", "t")
    broker.bind("a/#", "T")  # the same binding again changes nothing
    with pytest.raises(RefusedError, match="is bound to topic 't'"):
        broker.bind("a/#", "u")
    with pytest.raises(RefusedError, match="is not bound"):
        broker.unbind("b")


def test_bindings_outlive_the_process_in_their_order(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        for topic in ("one", "two"):
            broker.create_topic(topic)
        broker.bind("a/+", "two")
        broker.bind("a/#", "one")
    with Broker(tmp_path) as broker:
        with pytest.raises(RefusedError, match="is bound to topic 'two'"):
            broker.bind("a/+", "one")
        broker.unbind("a/#")
        broker.unbind("a/+")


def test_naming_the_topic_stores_there_whatever_bindings_say(broker: Broker) -> None:
    broker.create_topic("here")
    broker.create_topic("there")
    broker.bind("a/#", "there")
    broker.publish("m", "here", name="a/b")
    assert [r.name for r in broker.read("here")] == ["a/b"]
    assert broker.size("there") == 0


def test_topics_and_settings_outlive_the_process(tmp_path: Path) -> None:
    with Broker(tmp_path, retention_age="1h") as broker:
        broker.create_topic("t", durability="os")
        broker.alter_topic("t", retention_bytes="5 MiB")
    with Broker(tmp_path) as broker:
        (found,) = broker.topics()
    assert (found.retention_age, found.retention_bytes, found.durability) == (
        3_600,
        5 << 20,
        "os",
    )


# What a crash between files and catalog leaves behind


def test_files_of_an_id_the_catalog_gave_out_are_removed(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        broker.create_topic("kept")
        broker.create_topic("gone")
        broker.publish("x", "gone")
    saved = tmp_path / "saved"
    (tmp_path / "default" / "gone-2").rename(saved)
    (tmp_path / "default" / "gone-2").mkdir()  # so that the topic can be deleted
    for path in saved.iterdir():
        (tmp_path / "default" / "gone-2" / path.name).write_bytes(path.read_bytes())
    with Broker(tmp_path) as broker:
        broker.delete_topic("gone")
    saved.rename(tmp_path / "default" / "gone-2")
    with Broker(tmp_path) as broker:
        assert names(broker) == ["kept"]
    assert [path.name for path in (tmp_path / "default").iterdir()] == ["kept-1"]


def test_files_of_an_id_the_catalog_never_gave_out_are_taken_in(tmp_path: Path) -> None:
    with Broker(tmp_path / "a") as broker:
        for topic in ("one", "two", "Three"):
            broker.create_topic(topic, durability="os")
        broker.publish("hello", "Three")
    with Broker(tmp_path / "b") as broker:
        broker.create_topic("other")
    (tmp_path / "a" / "default" / "three-3").rename(tmp_path / "b" / "default" / "three-3")
    with Broker(tmp_path / "b") as broker:
        assert names(broker) == ["other", "Three"]
        assert [r.value for r in broker.read("three")] == ["hello"]
        assert broker.topics()[1].durability == "os"
        broker.create_topic("next")
        assert broker.topics()[2].id == 4


def test_a_lost_catalog_is_made_anew_from_the_files(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        broker.create_topic("A", retention_age="1h")
        broker.create_topic("b")
        broker.publish("x", "A")
    for path in tmp_path.glob("catalog.db*"):
        path.unlink()
    with Broker(tmp_path) as broker:
        assert names(broker) == ["A", "b"]
        assert [r.value for r in broker.read("a")] == ["x"]
        assert broker.topics()[0].retention_age == 3_600


def test_files_that_are_not_ours_are_left_alone(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        broker.create_topic("t")
    strangers = [
        tmp_path / "notes.txt",
        tmp_path / "default" / "readme",
        tmp_path / "default" / "backup-2" / "copy",
        tmp_path / "default" / "t-1" / "notes",
    ]
    for path in strangers:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    with Broker(tmp_path) as broker:
        assert names(broker) == ["t"]
        broker.publish("x", "t")
    assert [path.read_text() for path in strangers] == ["mine"] * 4


def test_the_declared_spelling_stands_beside_the_records(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        broker.create_topic("Sensors in Köln")
    (facts,) = tmp_path.glob("default/*/topic.json")
    assert json.loads(facts.read_text())["topic"] == "Sensors in Köln"
    assert facts.parent.name == "sensors-in-koln-1"
