"""Idempotency-Part: one message of a request whose sender does not know its outcome."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.doors.served import Served
from tests.http.asking import Answer, Asking

BODY = [{"payload": n} for n in range(3)]


@pytest.fixture
def records(client: Asking, name: str) -> str:
    assert client.ask("PUT", f"/v1/topics/{name}").status == 201
    return f"/v1/topics/{name}/records"


def part(client: Asking, path: str, number: Any, body: Any = None, key: str = "k") -> Answer:
    body = {"payload": number} if body is None else body
    headers = {"Idempotency_Key": key, "Idempotency_Part": str(number)}
    return client.ask("POST", path, body, **headers)


def payloads(client: Asking, path: str) -> list[Any]:
    return [one["payload"] for one in client.ask("GET", path).json["records"]]


def test_a_message_of_a_request_that_was_stored_is_found_there(
    client: Asking, records: str
) -> None:
    client.ask("POST", records, {"payload": "before"})
    client.ask("POST", records, BODY, Idempotency_Key="k")
    for number in (2, 0, 2):
        answer = part(client, records, number)
        assert answer.json["results"] == [{"offset": 1 + number}]
        assert answer.headers["idempotency-replayed"] == "true"
    assert payloads(client, records) == ["before", 0, 1, 2]
    assert part(client, records, 3).status == 422


def test_messages_of_a_request_that_was_not_stored_are_stored_once_each(
    client: Asking, records: str
) -> None:
    offsets = [part(client, records, number).json["first_offset"] for number in (2, 0, 2, 0)]
    assert offsets == [0, 1, 0, 1]
    assert payloads(client, records) == [2, 0]
    assert part(client, records, 0, {"payload": "another"}).status == 422
    late = client.ask("POST", records, BODY, Idempotency_Key="k")
    assert late.status == 422, "the request came after its messages, and would store them again"


def test_parts_are_stored_once_across_kills(tmp_path: Path) -> None:
    path = "/v1/topics/t/records"
    broker = Served(tmp_path / "data").start()
    with Asking(broker.http_port) as client:
        assert client.ask("PUT", "/v1/topics/t").status == 201
        assert client.ask("POST", path, BODY, Idempotency_Key="whole").status == 200
        assert part(client, path, 1, key="parts").json["first_offset"] == 3
    broker.kill()
    with broker, Asking(broker.http_port) as client:
        assert part(client, path, 2, key="whole").json["first_offset"] == 2
        assert part(client, path, 1, key="parts").json["first_offset"] == 3
        assert client.ask("POST", path, BODY, Idempotency_Key="parts").status == 422
        assert part(client, path, 0, key="parts").json["first_offset"] == 4
        assert payloads(client, path) == [0, 1, 2, 1, 0]


@pytest.mark.parametrize("number", ["-1", "x", "50000", "²", ""])
def test_a_part_that_is_no_number_is_400(client: Asking, records: str, number: str) -> None:
    assert part(client, records, number, {"payload": 1}).status == 400


def test_a_part_needs_a_key_and_is_one_message(client: Asking, records: str) -> None:
    assert client.ask("POST", records, {"payload": 1}, Idempotency_Part="0").status == 400
    assert part(client, records, 0, BODY).status == 400
    assert payloads(client, records) == []


# The same for what a consumer fetches


def test_a_fetch_with_the_key_of_the_last_one_gives_the_same_records_again(
    client: Asking, records: str
) -> None:
    path = records.replace("/records", "/consumers/c")
    client.ask("POST", records, [{"payload": n} for n in range(10)])
    client.ask("PUT", path)

    def fetch(limit: int, **more: Any) -> list[int]:
        answer = client.ask("POST", f"{path}/fetch", {"limit": limit, **more})
        assert answer.status == 200, answer
        found = [one["payload"] for one in answer.json["records"]]
        assert answer.json["first_offset"] == (found or [answer.json["next_offset"]])[0]
        return found

    assert fetch(3, key="a") == [0, 1, 2]
    assert fetch(3, key="a") == [0, 1, 2]
    assert fetch(2, key="a", offset=3) == [3, 4]
    assert fetch(2, key="a", offset=3) == [3, 4]
    assert fetch(9, key="a", offset=99) == [5, 6, 7, 8, 9]
    assert fetch(2, key="a") == [0, 1]
    assert fetch(2, key="b") == [2, 3]
    assert fetch(2) == [4, 5]
    assert fetch(2, key="b") == [6, 7], "a key counts for the newest batch only"
    client.ask("POST", f"{path}/commit")
    assert fetch(2, key="b") == [8, 9], "what was committed does not come again"
