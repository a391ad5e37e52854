"""`/v1/topics/{topic}/consumers`: positions that last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.doors.hosted import Hosted
from tests.doors.served import Served
from tests.http.asking import Answer, Asking


@pytest.fixture
def topic(client: Asking, name: str) -> str:
    """The path of a topic with ten messages."""
    path = f"/v1/topics/{name}"
    client.ask("PUT", path)
    client.ask("POST", f"{path}/records", [{"payload": at} for at in range(10)])
    return path


def found(answer: Answer) -> list[Any]:
    assert answer.status == 200, answer
    return [one["payload"] for one in answer.json["records"]]


def test_a_consumer_reads_in_batches_from_where_it_was(client: Asking, topic: str) -> None:
    me = f"{topic}/consumers/me"
    answer = client.ask("PUT", me)
    assert answer.status == 201
    assert answer.json == {"consumer": "me", "next_offset": 0, "waiting": 10}
    answer = client.ask("POST", f"{me}/fetch", {"limit": 4})
    assert found(answer) == [0, 1, 2, 3]
    assert (answer.json["next_offset"], answer.json["end_offset"]) == (4, 10)
    assert found(client.ask("POST", f"{me}/fetch")) == [4, 5, 6, 7, 8, 9]
    assert found(client.ask("POST", f"{me}/fetch")) == []
    assert client.ask("GET", me).json == {"consumer": "me", "next_offset": 10, "waiting": 0}
    assert client.ask("GET", f"{topic}/consumers").json["consumers"][0]["consumer"] == "me"


def test_registering_again_keeps_the_position(client: Asking, topic: str) -> None:
    me = f"{topic}/consumers/me"
    client.ask("PUT", me, {"from": 7})
    assert client.ask("PUT", me, {"from": "earliest"}).json["next_offset"] == 7
    answer = client.ask("PUT", me, If_None_Match="*")
    assert (answer.status, answer.json["error"]) == (409, "AlreadySubscribed")


def test_commit_and_seek_move_the_position(client: Asking, topic: str) -> None:
    me = f"{topic}/consumers/me"
    client.ask("PUT", me)
    client.ask("POST", f"{me}/fetch", {"limit": 3, "commit": False})
    assert client.ask("POST", f"{me}/commit", {"offset": 2}).json == {"offset": 2}
    assert client.ask("POST", f"{me}/commit").json == {"offset": 3}
    assert client.ask("POST", f"{me}/seek", {"from": 8}).json == {"offset": 8}
    assert found(client.ask("POST", f"{me}/fetch")) == [8, 9]
    assert client.ask("POST", f"{me}/seek", {"from": "-1h"}).json == {"offset": 0}


def test_filters_and_waiting(broker: Hosted, client: Asking, topic: str) -> None:
    me = f"{topic}/consumers/me"
    client.ask("PUT", me)
    body = b'{"where": "payload[0] = 1", "wait": 30}'
    head = f"POST {me}/fetch HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    with Asking(broker.ports["http"]) as other:
        other.send(head.encode() + body)
        client.ask("POST", f"{topic}/records", [{"payload": [0]}, {"payload": [1]}])
        assert found(other.answer()) == [[1]]


def test_a_removed_consumer_is_gone(client: Asking, topic: str) -> None:
    me = f"{topic}/consumers/me"
    client.ask("PUT", me)
    assert client.ask("DELETE", me).status == 204
    for method, path in (("GET", me), ("DELETE", me), ("POST", f"{me}/fetch")):
        answer = client.ask(method, path)
        assert (answer.status, answer.json["error"]) == (404, "NotSubscribed")


@pytest.mark.parametrize(
    ("action", "body", "complaint"),
    [
        ("fetch", {"limit": 0}, "limit"),
        ("fetch", {"offset": 2**63}, "offset"),
        ("fetch", {"limit": 10_001}, "limit"),
        ("fetch", {"limit": "5"}, "limit"),
        ("fetch", {"wait": 61}, "wait"),
        ("fetch", {"where": "("}, ""),
        ("fetch", {"on_gap": "panic"}, "on_gap"),
        ("fetch", {"more": 1}, "more"),
        ("commit", {"offset": -1}, "offset"),
        ("commit", {"offset": 1.5}, "offset"),
        ("seek", {}, "from"),
        ("seek", {"from": True}, "from"),
        ("seek", {"from": "soon"}, "is not a position"),
    ],
)
def test_what_makes_no_sense_is_400(
    client: Asking, topic: str, action: str, body: Any, complaint: str
) -> None:
    client.ask("PUT", f"{topic}/consumers/me")
    answer = client.ask("POST", f"{topic}/consumers/me/{action}", body)
    assert (answer.status, complaint in answer.detail) == (400, True), answer


@pytest.mark.parametrize(("action", "body"), [("commit", {"offset": 11}), ("seek", {"from": 11})])
def test_an_offset_past_the_end_is_409_with_the_bounds(
    client: Asking, topic: str, action: str, body: Any
) -> None:
    client.ask("PUT", f"{topic}/consumers/me")
    answer = client.ask("POST", f"{topic}/consumers/me/{action}", body)
    assert (answer.status, answer.json["error"]) == (409, "OffsetBeyondEnd")
    assert "offset from 0 to 10" in answer.detail


def test_positions_survive_kill_and_a_batch_is_repeated_never_skipped(tmp_path: Path) -> None:
    broker = Served(tmp_path / "data").start()
    me = "/v1/topics/t/consumers/me"
    with Asking(broker.http_port) as client:
        client.ask("PUT", "/v1/topics/t")
        client.ask("POST", "/v1/topics/t/records", [{"payload": at} for at in range(10)])
        client.ask("PUT", me)
        assert found(client.ask("POST", f"{me}/fetch", {"limit": 3})) == [0, 1, 2]
        assert client.ask("POST", f"{me}/commit").status == 200
        assert found(client.ask("POST", f"{me}/fetch", {"limit": 3})) == [3, 4, 5]
    broker.kill()
    with broker, Asking(broker.http_port) as client:
        assert found(client.ask("POST", f"{me}/fetch")) == [3, 4, 5, 6, 7, 8, 9]
