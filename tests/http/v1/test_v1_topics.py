"""`/v1/topics`: declare, look at, alter, delete."""

from __future__ import annotations

from urllib.parse import quote, urlencode

import pytest

from tests.doors.hosted import Hosted
from tests.doors.wire import Wire
from tests.http.asking import Asking


def test_a_topic_is_declared_once_and_declaring_it_again_changes_nothing(
    client: Asking, name: str
) -> None:
    path = f"/v1/topics/{name}"
    answer = client.ask("PUT", path, {"retention_age": "2h", "durability": "os"})
    assert answer.status == 201 and answer.headers["location"] == path
    assert answer.json["topic"] == name and answer.json["end_offset"] == 0
    assert (answer.json["retention_age"], answer.json["durability"]) == (7200, "os")
    assert client.ask("PUT", path).status == 200
    assert client.ask("PUT", path.upper().replace("/V1/TOPICS", "/v1/topics")).status == 200
    assert client.ask("PUT", path, {"retention_age": 7200}).status == 200
    other = client.ask("PUT", path, {"retention_age": "3h"})
    assert (other.status, other.json["error"]) == (409, "TopicExists")
    assert "PATCH" in other.detail
    only = client.ask("PUT", path, If_None_Match="*")
    assert (only.status, only.json["error"]) == (409, "TopicExists")
    assert client.ask("GET", path).json == answer.json


def test_settings_are_altered_one_by_one(client: Asking, name: str) -> None:
    path = f"/v1/topics/{name}"
    client.ask("PUT", path)
    answer = client.ask("PATCH", path, {"retention_age": None, "retention_bytes": "1 MiB"})
    assert (answer.json["retention_age"], answer.json["retention_bytes"]) == (None, 1 << 20)
    assert answer.json["durability"] == "fsync"
    answer = client.ask("PATCH", path, {"retention_bytes": None})
    assert (answer.json["retention_age"], answer.json["retention_bytes"]) == (None, None)


def test_topics_are_listed(client: Asking, name: str) -> None:
    client.ask("PUT", f"/v1/topics/{name}")
    listed = client.ask("GET", "/v1/topics").json["topics"]
    assert name in [one["topic"] for one in listed]


@pytest.mark.parametrize("topic", ["ü", "a b", "100%", "a?b", "a&b=c", "日本", "x" * 255])
def test_names_may_hold_any_letter(client: Asking, topic: str) -> None:
    path = f"/v1/topics/{quote(topic, safe='')}"
    assert client.ask("PUT", path).json["topic"] == topic
    assert client.ask("GET", path).json["topic"] == topic
    assert client.ask("DELETE", path).status == 204


def test_a_deleted_topic_is_gone(client: Asking, name: str) -> None:
    path = f"/v1/topics/{name}"
    client.ask("PUT", path)
    assert client.ask("DELETE", path).status == 204
    for method in ("GET", "DELETE", "PATCH"):
        answer = client.ask(method, path)
        assert (answer.status, answer.json["error"]) == (404, "TopicNotFound")


@pytest.mark.parametrize(
    ("path", "body", "status", "complaint"),
    [
        ("a%2Fb", {}, 400, "'a/b'"),
        ("x" * 256, {}, 400, "256"),
        ("%ff", {}, 400, "not UTF-8"),
        ("%24x", {}, 400, "$"),
        ("ok", {"retention_age": "soon"}, 400, "'soon' is not a duration"),
        ("ok", {"retention_age": -1}, 400, "not a duration"),
        ("ok", {"retention_bytes": 0}, 400, "not a size"),
        ("ok", {"durability": "paper"}, 400, "paper"),
        ("ok", {"unknown": 1}, 400, "unknown"),
        ("ok", [], 400, "object"),
        ("ok", b"{", 400, "truncated"),
    ],
)
def test_what_cannot_be_declared_says_why(
    client: Asking, path: str, body: object, status: int, complaint: str
) -> None:
    answer = client.ask("PUT", f"/v1/topics/{path}", body)
    assert (answer.status, complaint in answer.detail) == (status, True), answer


def test_names_are_bound_to_topics_and_unbound(broker: Hosted, client: Asking, name: str) -> None:
    client.ask("PUT", f"/v1/topics/STORE-{name}")
    body = {"filter": f"{name}/+/x", "topic": f"store-{name}"}
    for _ in range(2):
        assert client.ask("POST", "/v1/bindings", body).json == body
    bound = {"filter": f"{name}/+/x", "topic": f"STORE-{name}"}
    assert bound in client.ask("GET", "/v1/bindings").json["bindings"]
    with Wire(broker.port, name) as wire:
        wire.connect()
        wire.publish(f"{name}/1/x", b"in it", 1)
        path = f"/v1/bindings?{urlencode({'filter': body['filter']})}"
        assert client.ask("DELETE", path).status == 204
        wire.publish(f"{name}/1/x", b"elsewhere", 1)
    found = client.ask("GET", f"/v1/topics/store-{name}/records").json["records"]
    assert [one["payload"] for one in found] == ["in it"]
    assert client.ask("DELETE", path).status == 404
    assert client.ask("DELETE", "/v1/bindings").status == 400
    assert client.ask("POST", "/v1/bindings", body | {"topic": "missing"}).status == 404
    assert client.ask("POST", "/v1/bindings", body | {"filter": "a/#/b"}).status == 400


def test_the_topic_of_mqtt_names_stays_while_clients_may_come(
    broker: Hosted, client: Asking
) -> None:
    with Wire(broker.port, "first") as wire:
        wire.connect()
        wire.publish("nowhere/else", b"x", 1)
    answer = client.ask("DELETE", "/v1/topics/default")
    assert answer.status == 409 and "cannot be deleted" in answer.detail
    with Wire(broker.port, "second") as wire:
        wire.connect()
        wire.publish("nowhere/else", b"x", 1)
