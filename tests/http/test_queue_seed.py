"""Seed 001, in its order: does the HTTP queue do what the seed says, and answer as it says?"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.doors.hosted import Hosted
from tests.doors.served import Served
from tests.http.asking import Answer, Asking


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Asking]:
    """A broker that has nothing in it."""
    with Hosted(tmp_path / "data") as hosted, Asking(hosted.ports["http"]) as asking:
        yield asking


def succeeds(answer: Answer) -> Any:
    assert answer.headers["content-type"] == "application/json"
    assert (answer.status, answer.json["status"]) == (200, "success"), answer
    return {key: value for key, value in answer.json.items() if key != "status"}


def fails(answer: Answer, status: int) -> str:
    assert answer.headers["content-type"] == "application/json"
    assert answer.json.keys() == {"status", "message"}, answer
    assert (answer.status, answer.json["status"]) == (status, "failure"), answer
    return str(answer.json["message"])


def create(client: Asking, topic: str) -> None:
    assert succeeds(client.ask("POST", "/topics", {"topic_name": topic})) == {}


def register_consumer(client: Asking, topic: str) -> str:
    answer = succeeds(client.ask("POST", "/consumer/register", {"topic": topic}))
    (consumer_id,) = answer.values()
    return str(consumer_id)


def register_producer(client: Asking, topic: str) -> str:
    answer = succeeds(client.ask("POST", "/producer/register", {"topic": topic}))
    (producer_id,) = answer.values()
    return str(producer_id)


def produce(client: Asking, topic: str, producer_id: str, message: str) -> None:
    body = {"topic": topic, "producer_id": producer_id, "message": message}
    assert succeeds(client.ask("POST", "/producer/produce", body)) == {}


def ask_consume(client: Asking, topic: str, consumer_id: str) -> Answer:
    return client.ask("GET", "/consumer/consume", {"topic": topic, "consumer_id": consumer_id})


def consume(client: Asking, topic: str, consumer_id: str) -> Any:
    return succeeds(ask_consume(client, topic, consumer_id))["message"]


def size(client: Asking, topic: str, consumer_id: str) -> Any:
    answer = client.ask("GET", "/size", {"topic": topic, "consumer_id": consumer_id})
    return succeeds(answer)["size"]


# Topic names


def test_topic_names_have_up_to_255_characters(client: Asking, name: str) -> None:
    longest = (name + "x" * 255)[:255]
    create(client, longest)
    assert longest in succeeds(client.ask("GET", "/topics"))["topics"]
    assert "at most 255" in fails(client.ask("POST", "/topics", {"topic_name": "y" * 256}), 400)


def test_topic_names_are_not_case_sensitive(client: Asking) -> None:
    create(client, "hello_world")
    assert "hello_world" in fails(client.ask("POST", "/topics", {"topic_name": "HELLO_WORLD"}), 500)
    producer, consumer = (
        register_producer(client, "Hello_World"),
        register_consumer(client, "hELLO_wORLD"),
    )
    produce(client, "HELLO_WORLD", producer, "same thing")
    assert consume(client, "hello_world", consumer) == "same thing"
    assert "HELLO_WORLD" not in succeeds(client.ask("GET", "/topics"))["topics"]


# Consumer and producer ids


def test_ids_are_the_number_of_those_before_the_topic_id_and_a_flag(fresh: Asking) -> None:
    create(fresh, "first")
    create(fresh, "second")
    assert register_consumer(fresh, "first") == "0000000010"
    assert register_consumer(fresh, "first") == "10000000010"
    assert register_consumer(fresh, "first") == "20000000010"
    assert register_producer(fresh, "first") == "0000000011"
    assert register_producer(fresh, "first") == "10000000011"
    assert register_consumer(fresh, "second") == "0000000020"
    assert register_producer(fresh, "second") == "0000000021"


def test_numbers_never_fall_also_after_a_crash(tmp_path: Path) -> None:
    broker = Served(tmp_path / "data").start()
    with Asking(broker.http_port) as client:
        create(client, "t")
        consumers = [register_consumer(client, "t") for _ in range(12)]
        producers = [register_producer(client, "t") for _ in range(3)]
    broker.kill()
    with broker, Asking(broker.http_port) as client:
        assert register_consumer(client, "t") == "120000000010"
        assert register_producer(client, "t") == "30000000011"
        produce(client, "t", producers[2], "still known")
        assert consume(client, "t", consumers[11]) == "still known"


def test_ids_of_a_deleted_topic_stay_invalid_when_its_name_comes_back(tmp_path: Path) -> None:
    with Hosted(tmp_path) as broker, Asking(broker.ports["http"]) as client:
        create(client, "t")
        old = register_consumer(client, "t"), register_producer(client, "t")
        broker.run(lambda server: server.broker.delete_topic("t"))
        create(client, "t")
        assert register_consumer(client, "t") == "0000000020" != old[0]
        assert "another topic" in fails(ask_consume(client, "t", old[0]), 500)
        body = {"topic": "t", "producer_id": old[1], "message": "m"}
        assert "another topic" in fails(client.ask("POST", "/producer/produce", body), 500)


def test_a_number_is_taken_as_an_id_that_lost_its_zeros(fresh: Asking) -> None:
    register_producer(fresh, "t")
    register_consumer(fresh, "t")
    body = {"topic": "t", "producer_id": 11, "message": "m"}
    succeeds(fresh.ask("POST", "/producer/produce", body))
    assert succeeds(fresh.ask("GET", "/size", {"topic": "t", "consumer_id": 10})) == {"size": 1}
    answer = fresh.ask("GET", "/consumer/consume?topic=t&consumer_id=10")
    assert succeeds(answer) == {"message": "m"}


def test_a_consumer_somebody_named_like_an_id_is_passed_over(tmp_path: Path) -> None:
    with Hosted(tmp_path) as broker, Asking(broker.ports["http"]) as client:
        create(client, "t")
        broker.run(lambda server: server.broker.subscribe("0000000010", "t"))
        assert "register first" in fails(ask_consume(client, "t", "0000000010"), 500)
        assert register_consumer(client, "t") == "10000000010"


# The queue


def test_a_new_consumer_sees_all_messages_and_each_its_own_position(
    client: Asking, name: str
) -> None:
    producer = register_producer(client, name)
    for text in ("one", "two"):
        produce(client, name, producer, text)
    early = register_consumer(client, name)
    assert [consume(client, name, early) for _ in range(2)] == ["one", "two"]
    produce(client, name, producer, "three")
    late = register_consumer(client, name)
    assert [consume(client, name, late) for _ in range(3)] == ["one", "two", "three"]
    assert consume(client, name, early) == "three"


def test_messages_of_several_producers_are_one_queue(client: Asking, name: str) -> None:
    producers = [register_producer(client, name) for _ in range(3)]
    consumer = register_consumer(client, name)
    for at in range(9):
        produce(client, name, producers[at % 3], str(at))
    assert [consume(client, name, consumer) for _ in range(9)] == [str(at) for at in range(9)]


@pytest.mark.parametrize("text", ["", " ", 'ü🚰\n\t"\\/', "{}", "0", "null", "x" * 100_000])
def test_a_message_comes_back_as_it_was_produced(client: Asking, name: str, text: str) -> None:
    producer, consumer = register_producer(client, name), register_consumer(client, name)
    produce(client, name, producer, text)
    assert consume(client, name, consumer) == text


# The tables


def test_the_tables_of_the_seed_are_views_of_the_catalog(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Hosted(data) as broker, Asking(broker.ports["http"]) as client:
        producer = register_producer(client, "Orders")
        consumer = register_consumer(client, "Orders")
        register_consumer(client, "Orders")
        for _ in range(3):
            produce(client, "Orders", producer, "m")
        consume(client, "Orders", consumer)
    with sqlite3.connect(f"file:{data}/catalog.db?mode=ro", uri=True) as catalog:
        columns = "topicname, topicid, consumers, producers, tailid"
        topics = catalog.execute(f"select {columns} from all_topics").fetchall()
        assert topics == [("Orders", 1, 2, 1, 3)]
        rows = catalog.execute("select consumerid, queueoffset from all_consumers").fetchall()
        assert sorted(rows) == [("0000000010", 1), ("10000000010", 0)]


# CreateTopic: /topics POST


@pytest.mark.parametrize("key", ["topic_name", "name", "topic"])
def test_create_topic_not_present_is_200_present_is_500(
    client: Asking, name: str, key: str
) -> None:
    assert succeeds(client.ask("POST", "/topics", {key: name})) == {}
    assert "exists" in fails(client.ask("POST", "/topics", {key: name}), 500)


# ListTopics: /topics GET


def test_list_topics_gives_all_names_as_they_were_declared(fresh: Asking) -> None:
    assert succeeds(fresh.ask("GET", "/topics")) == {"topics": []}
    for topic in ("Beta", "alpha"):
        create(fresh, topic)
    assert succeeds(fresh.ask("GET", "/topics")) == {"topics": ["Beta", "alpha"]}


# RegisterConsumer: /consumer/register POST


def test_register_consumer_of_a_topic_that_is_not_present_is_500(client: Asking, name: str) -> None:
    assert "not declared" in fails(client.ask("POST", "/consumer/register", {"topic": name}), 500)
    assert name not in succeeds(client.ask("GET", "/topics"))["topics"]


# RegisterProducer: /producer/register POST


def test_register_producer_creates_a_topic_that_is_not_present(client: Asking, name: str) -> None:
    register_producer(client, name)
    assert name in succeeds(client.ask("GET", "/topics"))["topics"]


# EnqueueMessage: /producer/produce POST


def test_produce_checks_topic_and_id(client: Asking, name: str) -> None:
    producer = register_producer(client, name)
    other = register_producer(client, f"{name}-other")
    consumer = register_consumer(client, name)

    def refused(topic: str, producer_id: str) -> str:
        body = {"topic": topic, "producer_id": producer_id, "message": "m"}
        return fails(client.ask("POST", "/producer/produce", body), 500)

    assert "not declared" in refused(f"{name}-missing", producer)
    assert "another topic" in refused(name, other)
    assert "ids end in 1" in refused(name, consumer)
    assert "register first" in refused(name, "7" + producer)
    assert "register first" in refused(name, "0" + producer)
    for nonsense in ("", "x", "-1", "1" * 29, "٣" * 10, producer[:-1] + "2"):
        assert refused(name, nonsense)
    assert size(client, name, consumer) == 0


# DequeueMessage: /consumer/consume GET


def test_consume_checks_topic_and_id(client: Asking, name: str) -> None:
    consumer, producer = None, register_producer(client, name)
    consumer = register_consumer(client, name)
    other = register_consumer(client, register_topic(client, f"{name}-other"))
    produce(client, name, producer, "m")
    assert "not declared" in fails(ask_consume(client, f"{name}-missing", consumer), 500)
    assert "another topic" in fails(ask_consume(client, name, other), 500)
    assert "ids end in 0" in fails(ask_consume(client, name, producer), 500)
    assert "register first" in fails(ask_consume(client, name, "1" + consumer), 500)
    assert consume(client, name, consumer) == "m"


def register_topic(client: Asking, topic: str) -> str:
    create(client, topic)
    return topic


def test_consume_of_an_empty_queue_is_500_until_something_comes(client: Asking, name: str) -> None:
    producer, consumer = register_producer(client, name), register_consumer(client, name)
    assert "has read all" in fails(ask_consume(client, name, consumer), 500)
    produce(client, name, producer, "m")
    assert consume(client, name, consumer) == "m"
    assert "has read all" in fails(ask_consume(client, name, consumer), 500)


# Size: /size GET


def test_size_is_what_the_consumer_has_not_read(client: Asking, name: str) -> None:
    producer, consumer = register_producer(client, name), register_consumer(client, name)
    assert size(client, name, consumer) == 0
    for at in range(3):
        produce(client, name, producer, str(at))
    assert size(client, name, consumer) == 3
    consume(client, name, consumer)
    assert size(client, name, consumer) == 2
    late = register_consumer(client, name)
    assert size(client, name, late) == 3
    body = {"topic": name, "consumer_id": producer}
    assert "ids end in 0" in fails(client.ask("GET", "/size", body), 500)


# BAD REQUEST (400)

ENDPOINTS = [
    ("POST", "/topics", ("topic_name",)),
    ("POST", "/consumer/register", ("topic",)),
    ("POST", "/producer/register", ("topic",)),
    ("POST", "/producer/produce", ("topic", "producer_id", "message")),
    ("GET", "/consumer/consume", ("topic", "consumer_id")),
    ("GET", "/size", ("topic", "consumer_id")),
]


@pytest.mark.parametrize(("method", "path", "fields"), ENDPOINTS)
def test_a_request_that_is_not_as_it_should_be_is_400(
    client: Asking, method: str, path: str, fields: tuple[str, ...]
) -> None:
    whole = dict.fromkeys(fields, "1")
    for field in fields:
        rest = {key: value for key, value in whole.items() if key != field}
        assert f"{field!r} is missing" in fails(client.ask(method, path, rest), 400)
        for wrong in (None, True, 1.5, [], {}, {"a": 1}):
            answer = client.ask(method, path, whole | {field: wrong})
            assert f"{field!r}" in fails(answer, 400)
    assert fails(client.ask(method, path, b""), 400)
    for body in (b"{", b"[]", b'"x"', b"1", b"null", b"\xff", b'{"topic": "\\ud800"}', b"{}x"):
        assert fails(client.ask(method, path, body), 400)
    for name in ("", "a/b", "a+", "#", "$x", "..", "a\nb", "x" * 256):
        assert fails(client.ask(method, path, whole | {fields[0]: name}), 400)


def test_a_message_is_a_text(client: Asking, name: str) -> None:
    body = {"topic": name, "producer_id": register_producer(client, name), "message": 5}
    assert "'message' is a number, 5" in fails(client.ask("POST", "/producer/produce", body), 400)


# Body or query string


def test_fields_may_come_in_the_query_string(client: Asking, name: str) -> None:
    succeeds(client.ask("POST", f"/topics?topic_name={name}"))
    producer = succeeds(client.ask("POST", f"/producer/register?topic={name}"))["producer_id"]
    consumer = succeeds(client.ask("POST", f"/consumer/register?topic={name}"))["consumer_id"]
    path = f"/producer/produce?topic={name}&producer_id={producer}&message=a%20b%2Bc"
    succeeds(client.ask("POST", path))
    mixed = client.ask("GET", f"/size?topic={name}", {"consumer_id": consumer})
    assert succeeds(mixed) == {"size": 1}
    answer = client.ask("GET", f"/consumer/consume?topic={name}&consumer_id={consumer}")
    assert succeeds(answer) == {"message": "a b+c"}


def test_body_and_query_string_that_disagree_are_400(client: Asking, name: str) -> None:
    create(client, name)
    answer = client.ask("POST", f"/consumer/register?topic={name}", {"topic": "another"})
    told = fails(answer, 400)
    assert "'topic'" in told and "'another'" in told and name in told
    succeeds(client.ask("POST", f"/consumer/register?topic={name}", {"topic": name}))
    assert "names different topics" in fails(
        client.ask("POST", "/topics", {"name": "a", "topic": "b"}), 400
    )


@pytest.mark.parametrize("query", ["topic=a&topic=b", "topic=%ff", "&".join(["b"] * 70)])
def test_a_query_string_that_cannot_be_read_is_400(client: Asking, query: str) -> None:
    assert "query string" in fails(client.ask("POST", f"/consumer/register?{query}"), 400)


# Other doors


def test_what_other_doors_stored_is_consumed_too(broker: Hosted, client: Asking, name: str) -> None:
    create(client, name)
    consumer = register_consumer(client, name)
    for message in ({"a": [1]}, "text", b"bytes", b"\xff\x00"):
        broker.run(lambda server, m=message: server.broker.publish(m, name))  # type: ignore[misc]
    assert [consume(client, name, consumer) for _ in range(3)] == [{"a": [1]}, "text", "bytes"]
    answer = succeeds(ask_consume(client, name, consumer))
    assert answer == {"message": "\ufffd\x00", "message_base64": "/wA="}


def test_a_consumer_overtaken_by_retention_goes_on_at_the_first_message(tmp_path: Path) -> None:
    small = {"log__segment_bytes": "64 KiB", "topics__defaults__retention_bytes": "64 KiB"}
    noise = random.Random(1)  # text that no compression makes smaller than its bytes
    with Hosted(tmp_path, **small) as broker, Asking(broker.ports["http"]) as client:
        producer, consumer = register_producer(client, "t"), register_consumer(client, "t")
        texts = [noise.randbytes(30_000).hex() for _ in range(8)]
        for text in texts:
            produce(client, "t", producer, text)
        broker.run(lambda server: server.broker.engine.upkeep.look_after_all())
        kept = size(client, "t", consumer)
        assert 0 < kept < 8
        assert [consume(client, "t", consumer) for _ in range(kept)] == texts[-kept:]
