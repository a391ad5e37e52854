"""Is whatever is wrong told with the right status, the value, the rule and the way out?

And nothing is stored or moved by it: the topic is the same afterwards.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.http.asking import Asking

T = "/v1/topics/there"
RECORDS, ME, GROUP = f"{T}/records", f"{T}/consumers/me", f"{T}/groups/packers"

# method, path, body, status, words that the answer must hold
CASES: list[tuple[str, str, Any, int, tuple[str, ...]]] = [
    # wrong types
    ("PATCH", T, {"durability": 5}, 400, ("durability", "'fsync'", "'os'")),
    ("PATCH", T, {"durability": "none"}, 400, ("'none'", "'fsync'", "'os'")),
    ("PATCH", T, {"retention_age": []}, 400, ("retention_age", "above 0")),
    ("PATCH", T, {"retention_age": -1}, 400, ("-1", "above 0", "'7d'")),
    ("PATCH", T, {"colour": "red"}, 400, ("colour", "retention_bytes")),
    ("PATCH", T, [], 400, ("array", "'retention_age'")),
    ("PUT", "/v1/topics/a+b", b"", 400, ("'a+b'", "wildcards")),
    ("PUT", "/v1/topics/" + "x" * 256, b"", 400, ("256 characters", "at most 255")),
    ("POST", RECORDS, {}, 400, ("message 0", "payload_base64")),
    ("POST", RECORDS, [], 400, ("no message",)),
    ("POST", RECORDS, {"payload_base64": "!!"}, 400, ("message 0", "'!!'", "A-Z")),
    ("POST", RECORDS, [{"payload": 1}, {"payload": 2, "name": "#"}], 400, ("message 1", "'#'")),
    ("POST", RECORDS, {"payload": 1, "headers": {"a": 5}}, 400, ("str", "int", "headers")),
    ("POST", RECORDS, {"payload": 1, "colour": "red"}, 400, ("colour",)),
    ("POST", RECORDS + "?colour=red", {"payload": 1}, 400, ("'colour'", "there are name")),
    ("POST", ME + "/fetch", {"limit": "2"}, 400, ("limit", "int")),
    ("POST", ME + "/fetch", {"limit": 10_001}, 400, ("limit", "10000")),
    ("POST", ME + "/fetch", {"on_gap": "maybe"}, 400, ("'maybe'", "'error' or 'skip'")),
    ("POST", ME + "/seek", {"from": 1.5}, 400, ("float", "from")),
    ("POST", ME + "/seek", {}, 400, ("from",)),
    ("GET", RECORDS + "?limit=many", b"", 400, ("'many'", "from 1 to 10000")),
    ("GET", RECORDS + "?wait=-1", b"", 400, ("'-1'", "'30s'")),
    ("GET", RECORDS + "?wait=61", b"", 400, ("'61'", "60 s")),
    ("GET", RECORDS + "?wait=%C2%B2", b"", 400, ("'²'", "'30s'")),
    ("GET", RECORDS + "?limit=000000001999999", b"", 400, ("1999999", "from 1 to 10000")),
    ("GET", RECORDS + "?limit=%C2%B2", b"", 400, ("'²'", "from 1 to 10000")),
    ("GET", RECORDS + "?until=" + "1" * 5_000, b"", 400, ("until", "whole number from 0")),
    ("GET", f"{T}/position?epoch=0&offset={1 << 63}", b"", 400, ("offset", "9223372036854775807")),
    ("PATCH", T, {"retention_age": "1" * 5_000}, 400, ("5,000 characters", "'7d'")),
    ("PATCH", T, {"retention_bytes": "1" * 5_000}, 400, ("5,000 characters", "'64 MiB'")),
    ("GET", RECORDS + "?colour=red", b"", 400, ("'colour'", "there are from")),
    ("GET", f"{T}/position?epoch=x&offset=0", b"", 400, ("'x'", "epoch")),
    ("GET", f"{T}/stream?overflow=maybe", b"", 400, ("'maybe'", "'resume'", "'close'")),
    # invalid JSON
    ("PATCH", T, b"{", 400, ("not JSON", "'durability'")),
    ("POST", RECORDS, b"{", 400, ("payload",)),
    ("POST", ME + "/fetch", b"\xff", 400, ("not JSON", "'limit'")),
    ("POST", "/topics", b"{", 400, ("not JSON",)),
    ("POST", "/topics", b"[]", 400, ("a list", "JSON object")),
    ("POST", "/topics", {"topic_name": 5}, 400, ("'topic_name'", "a number", "5", "quotes")),
    ("POST", "/topics", {"topic_name": None}, 400, ("null",)),
    ("POST", "/topics", {"topic_name": "a", "name": "b"}, 400, ("'a'", "'b'", "once")),
    ("POST", "/topics?topic_name=a", {"topic_name": "b"}, 400, ("'a'", "'b'", "once")),
    ("POST", "/topics", {}, 400, ("'topic_name'", "missing", "body")),
    # unknown names and ids
    ("GET", "/v1/topics/nosuch", b"", 404, ("'nosuch'", "create it first")),
    ("POST", "/v1/topics/nosuch/records", {"payload": 1}, 404, ("'nosuch'",)),
    ("GET", "/v1/topics/nosuch/stream", b"", 404, ("'nosuch'",)),
    ("POST", f"{T}/consumers/nobody/fetch", b"", 404, ("'nobody'", "subscribe it first")),
    ("GET", f"{T}/groups/nobody", b"", 404, ("'nobody'", "first fetch")),
    ("POST", f"{T}/groups/{'x' * 256}/fetch", {}, 400, ("group name", "at most 255")),
    ("POST", GROUP + "/ack", {"receipt": "nope"}, 409, ("'nope'", "lease", "fetch again")),
    ("POST", GROUP + "/ack", {"receipt": "nope", "offsets": []}, 400, ("[]", "omit the field")),
    ("POST", GROUP + "/ack", {"receipt": "nope", "offsets": [7]}, 409, ("'nope'", "7")),
    ("POST", GROUP + "/nack", {"receipt": "x", "delay": 1e9}, 400, ("delay", "86400")),
    ("DELETE", "/v1/bindings?filter=never", b"", 404, ("'never'", "not bound")),
    ("POST", "/v1/bindings", {"filter": "bound/#", "topic": "other"}, 409, ("'there'", "unbind")),
    ("POST", "/v1/bindings", {"filter": "a/#/b", "topic": "there"}, 400, ("'a/#/b'", "last")),
    # offsets and times
    ("GET", RECORDS + "?from=-1", b"", 400, ("'-1'", "count from 0", "-5m")),
    ("GET", RECORDS + "?from=99", b"", 409, ("99", "'there'", "to 2")),
    ("GET", f"{T}/stream?from=99", b"", 409, ("99", "to 2")),
    ("GET", RECORDS + "?from=24h", b"", 400, ("'24h'", "'-' in front")),
    ("GET", RECORDS + "?from=soon", b"", 400, ("'soon'", "earliest, latest")),
    ("POST", ME + "/commit", {"offset": -1}, 400, ("-1", "to 2")),
    ("POST", ME + "/commit", {"offset": 99}, 409, ("99", "to 2")),
    ("POST", ME + "/seek", {"from": -1}, 400, ("-1", "count from 0")),
    # filters that do not parse
    ("GET", RECORDS + "?where=((", b"", 400, ("column 3", "missing")),
    ("GET", RECORDS + "?where=payload.x%20==%201", b"", 400, ("'=='", "written =")),
    ("GET", f"{T}/stream?names=a/%23/b", b"", 400, ("'a/#/b'", "last level")),
    ("POST", ME + "/fetch", {"where": "colour = 1"}, 400, ("'colour'", "payload.colour")),
]


@pytest.fixture
def there(client: Asking) -> Asking:
    """A topic with two records, a consumer at the first, a group, and a binding."""
    for topic in ("there", "other"):
        client.ask("PUT", f"/v1/topics/{topic}")
    if client.ask("GET", T).json["end_offset"] == 0:
        client.ask("POST", RECORDS, [{"payload": "a"}, {"payload": "b"}])
        client.ask("POST", GROUP + "/fetch", {"from": "latest"})
        client.ask("POST", "/v1/bindings", {"filter": "bound/#", "topic": "there"})
        client.ask("PUT", ME)
    return client


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    CASES,
    ids=[f"{at}-{case[0]}-{case[1][:40]}" for at, case in enumerate(CASES)],
)
def test_what_is_wrong_is_told(
    there: Asking, method: str, path: str, body: Any, status: int, words: tuple[str, ...]
) -> None:
    before = there.ask("GET", T).json, there.ask("GET", ME).json
    answer = there.ask(method, path, body)
    told = answer.json.get("detail") or answer.json["message"]
    assert answer.status == status, answer
    for word in words:
        assert word in told, told
    assert (there.ask("GET", T).json, there.ask("GET", ME).json) == before


def test_a_time_in_the_future_is_the_end(there: Asking) -> None:
    answer = there.ask("GET", RECORDS + "?from=2999-01-01T00:00:00Z")
    assert (answer.status, answer.json["records"], answer.json["next_offset"]) == (200, [], 2)
    there.ask("PUT", f"{T}/consumers/future")
    sought = there.ask("POST", f"{T}/consumers/future/seek", {"from": "2999-01-01T00:00:00Z"})
    assert sought.json == {"offset": 2}


def test_zeros_in_front_of_a_number_change_nothing(there: Asking) -> None:
    zeros = "0" * 5_000
    answer = there.ask("GET", f"{RECORDS}?limit={zeros}1&from=0&until=00002&wait=00.0")
    assert (answer.status, len(answer.json["records"])) == (200, 1)
    assert there.ask("GET", f"{RECORDS}?until={zeros}").status == 200
    data = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: %s1\r\n\r\nx"
    assert there.send(data % zeros.encode()).answer().status == 200


def test_megabytes_of_digits_are_refused_as_quickly_as_few(there: Asking) -> None:
    """What costs the square of its length would not be answered before the test gives up."""
    for field in ("retention_age", "retention_bytes"):
        answer = there.ask("PATCH", T, {field: "1" * (4 << 20)})
        assert answer.status == 400 and len(answer.body) < 1_000


@pytest.mark.parametrize("path", ["/producer/produce", RECORDS])
def test_a_body_that_is_too_large_is_413(there: Asking, path: str) -> None:
    answer = there.ask("POST", path, b'"' + b"x" * (33 << 20) + b'"')
    assert answer.status == 413
    assert "33554432 bytes" in answer.json["detail"] and "body_bytes_max" in answer.json["detail"]
