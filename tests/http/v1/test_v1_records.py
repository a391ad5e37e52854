"""`/v1/topics/{topic}/records`: what is stored, what is read, and what is refused."""

from __future__ import annotations

import base64
import threading
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote, urlencode

import pyarrow as pa
import pytest

from penstock.log.files.segment import decode_batches
from penstock.mqtt.kinds import MQTT_5
from tests.doors.hosted import Hosted
from tests.doors.wire import Wire
from tests.http.asking import Answer, Asking

ARROW = "application/vnd.apache.arrow.stream"
BATCHES = "application/vnd.penstock.batches"


@pytest.fixture
def records(client: Asking, name: str) -> str:
    """The path of a new topic's records."""
    assert client.ask("PUT", f"/v1/topics/{name}").status == 201
    return f"/v1/topics/{name}/records"


def read(client: Asking, path: str, **query: Any) -> Answer:
    query = {key.rstrip("_"): value for key, value in query.items()}
    return client.ask("GET", f"{path}?{urlencode(query)}" if query else path)


def payloads(answer: Answer) -> list[Any]:
    assert answer.status == 200, answer
    return [one.get("payload", one.get("payload_base64")) for one in answer.json["records"]]


# Storing


def test_one_message_many_and_lines_are_stored_in_order(
    client: Asking, records: str, name: str
) -> None:
    answer = client.ask("POST", records, {"payload": "one"})
    assert answer.status == 200 and answer.json == {
        "topic": name,
        "first_offset": 0,
        "end_offset": 1,
        "results": [{"offset": 0}],
    }
    answer = client.ask("POST", records, [{"payload": text} for text in ("two", "three")])
    assert answer.json["results"] == [{"offset": 1}, {"offset": 2}]
    lines = b'{"payload": "four"}\n{"payload": "five"}\n'
    answer = client.ask("POST", records, lines, Content_Type="application/x-ndjson")
    assert answer.json["results"] == [{"offset": 3}, {"offset": 4}]
    assert payloads(read(client, records)) == ["one", "two", "three", "four", "five"]


@pytest.mark.parametrize(
    "payload", ["", "ü", {"a": [1, 2.5, None]}, [], 5, True, None, "x" * 70_000]
)
def test_a_payload_comes_back_as_the_value_it_was(
    client: Asking, records: str, payload: Any
) -> None:
    assert client.ask("POST", records, {"payload": payload}).status == 200
    (record,) = read(client, records).json["records"]
    assert record["payload"] == payload
    assert record.get("kind", "text") == ("text" if isinstance(payload, str) else "json")


def test_bytes_go_in_and_out_as_base64(client: Asking, records: str) -> None:
    for data in (b"\xff\x00", b"plain"):
        coded = base64.b64encode(data).decode()
        assert client.ask("POST", records, {"payload_base64": coded}).status == 200
    first, second = read(client, records).json["records"]
    assert (first["payload_base64"], first["kind"]) == ("/wA=", "bytes")
    assert (second["payload"], second["kind"]) == ("plain", "bytes")


def test_text_and_bytes_can_be_sent_as_they_are(client: Asking, records: str, name: str) -> None:
    client.ask(
        "POST", f"{records}?name={name}/a", b"hello", Content_Type="text/plain; charset=utf-8"
    )
    client.ask("POST", records, b"\xff", Content_Type="application/octet-stream")
    first, second = read(client, records).json["records"]
    assert (first["name"], first["payload"]) == (f"{name}/a", "hello")
    assert (second["name"], second["payload_base64"]) == (name, "/w==")


def test_names_headers_and_retain_are_kept(client: Asking, records: str, name: str) -> None:
    client.ask(
        "POST",
        records,
        [
            {"payload": "1", "name": f"{name}/a", "headers": [["k", "1"], ["k", "2"]]},
            {"payload": "2", "name": f"{name}/a", "headers": {"unit": "C"}, "retain": True},
            {"payload": "3"},
        ],
    )
    first, second, third = read(client, records).json["records"]
    assert (first["name"], first["headers"]) == (f"{name}/a", [["k", "1"], ["k", "2"]])
    assert (second["headers"], second["retain"]) == ([["unit", "C"]], True)
    assert third.keys() == {"offset", "timestamp", "name", "payload"} and third["name"] == name


def test_mqtt_subscribers_receive_what_is_stored(
    broker: Hosted, client: Asking, records: str, name: str
) -> None:
    with Wire(broker.port, name) as wire:
        wire.connect()
        wire.subscribe(f"{name}/#", qos=1)
        client.ask(
            "POST", records, [{"payload": str(at), "name": f"{name}/{at}"} for at in range(3)]
        )
        got = [wire.receive() for _ in range(3)]
        assert [(one.name, one.payload, one.qos) for one in got] == [
            (f"{name}/{at}", b"%d" % at, 1) for at in range(3)
        ]


def test_many_different_names_in_one_request_keep_their_order(client: Asking, records: str) -> None:
    messages = [{"payload": str(at), "name": f"n/{at % 7}"} for at in range(1_000)]
    assert len(client.ask("POST", records, messages).json["results"]) == 1_000
    found = read(client, records).json["records"]
    assert [(one["payload"], one["name"]) for one in found] == [
        (one["payload"], one["name"]) for one in messages
    ]


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"", "the request body is invalid"),
        (b"{", "the request body is invalid"),
        (b"[]", "contains no message"),
        (b'"text"', "the request body is invalid"),
        ({}, "message 0 has neither 'payload' nor 'payload_base64'"),
        ({"payload": 1, "payload_base64": "AA=="}, "message 0 has both"),
        ({"payload": "x", "payload_base64": "AA=="}, "message 0 has both"),
        ([{"payload": "a"}, {"payload": "b", "payload_base64": "AA=="}], "message 1 has both"),
        ([{"payload": "a"}, {}], "message 1 has neither"),
        ({"payload_base64": "!"}, "payload_base64 '!' is not base64"),
        ({"payload_base64": 1}, "payload_base64"),
        ({"payload": "x", "typo": 1}, "typo"),
        ({"payload": "x", "name": "a/+"}, "message 0: name 'a/+'"),
        ([{"payload": "x"}, {"payload": "x", "name": ""}], "message 1: "),
        ({"payload": "x", "headers": {"k": 1}}, "headers"),
        ({"payload": "x", "headers": [["k"]]}, "headers"),
        ({"payload": "x", "headers": {"": "v"}}, "message 0: header ''"),
        ({"payload": "x", "retain": 1}, "retain"),
        (b'{"payload": "\xff"}', "the request body is invalid"),
    ],
)
def test_what_cannot_be_stored_is_400_and_stores_nothing_of_it(
    client: Asking, records: str, body: Any, complaint: str
) -> None:
    answer = client.ask("POST", records, body)
    assert (answer.status, complaint in answer.detail) == (400, True), answer
    assert read(client, records).json["records"] == []


def test_too_much_at_once_is_413(client: Asking, records: str) -> None:
    answer = client.ask("POST", records, b"[" + b'{"payload":1},' * 50_000 + b'{"payload":1}]')
    assert answer.status == 413 and "50001 messages" in answer.detail
    large = b"x" * ((16 << 20) + 1)
    answer = client.ask("POST", records, large, Content_Type="application/octet-stream")
    assert (answer.status, answer.json["error"]) == (413, "TooLarge")
    assert read(client, records).json["end_offset"] == 0


def test_a_message_of_the_largest_size_goes_through_whole(client: Asking, records: str) -> None:
    large = b"x" * (16 << 20)
    assert client.ask("POST", records, large, Content_Type="text/plain").status == 200
    client.ask("POST", records, {"payload": "small"})
    answer = read(client, records)
    assert len(answer.json["records"][0]["payload"]) == 16 << 20
    assert answer.json["next_offset"] == 1  # more than one answer should hold: one at a time
    assert payloads(read(client, records, from_=1)) == ["small"]


def test_an_unknown_topic_is_404_and_nothing_creates_it(client: Asking, name: str) -> None:
    path = f"/v1/topics/{name}/records"
    assert client.ask("POST", path, {"payload": 1}).json["error"] == "TopicNotFound"
    assert read(client, path).status == 404


def test_the_brokers_own_names_are_not_for_clients(client: Asking, records: str) -> None:
    answer = client.ask("POST", records, {"payload": "x", "name": "$SYS/x"})
    assert (answer.status, answer.json["error"]) == (403, "NotAuthorized")


# Idempotency


def test_a_request_with_a_key_is_stored_once_and_answered_alike(
    client: Asking, records: str
) -> None:
    body = [{"payload": "a"}, {"payload": "b"}]
    first = client.ask("POST", records, body, Idempotency_Key="k1")
    again = client.ask("POST", records, body, Idempotency_Key="k1")
    assert first.json == again.json and first.status == again.status == 200
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    other = client.ask("POST", records, {"payload": "c"}, Idempotency_Key="k2")
    assert other.json["first_offset"] == 2
    assert payloads(read(client, records)) == ["a", "b", "c"]


def test_a_key_with_another_body_is_422(client: Asking, records: str) -> None:
    client.ask("POST", records, {"payload": "a"}, Idempotency_Key="k")
    answer = client.ask("POST", records, {"payload": "b"}, Idempotency_Key="k")
    assert answer.status == 422 and "another body" in answer.detail


def test_a_request_that_was_refused_may_come_again_with_its_key(
    client: Asking, records: str
) -> None:
    assert (
        client.ask("POST", records, {"payload": "x", "name": "#"}, Idempotency_Key="k").status
        == 400
    )
    assert client.ask("POST", records, {"payload": "x"}, Idempotency_Key="k").status == 200


@pytest.mark.parametrize("key", ["x" * 256, "ü"])
def test_what_is_no_key_is_400(client: Asking, records: str, key: str) -> None:
    assert client.ask("POST", records, {"payload": 1}, Idempotency_Key=key).status == 400


def test_keys_are_of_their_topic(client: Asking, name: str) -> None:
    for topic in (f"{name}-1", f"{name}-2"):
        client.ask("PUT", f"/v1/topics/{topic}")
        path = f"/v1/topics/{topic}/records"
        answer = client.ask("POST", path, {"payload": 1}, Idempotency_Key="k")
        assert "idempotency-replayed" not in answer.headers


def test_the_same_key_from_many_at_once_is_stored_once(broker: Hosted, records: str) -> None:
    answers: list[Answer] = []

    def ask() -> None:
        with Asking(broker.ports["http"]) as asking:
            answers.append(asking.ask("POST", records, {"payload": 1}, Idempotency_Key="k"))

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {answer.json["first_offset"] for answer in answers} == {0}
    assert sum("idempotency-replayed" not in answer.headers for answer in answers) == 1


# Reading


@pytest.fixture
def numbers(client: Asking, records: str, name: str) -> str:
    messages = [{"payload": {"n": at}, "name": f"{name}/{at % 2}"} for at in range(100)]
    assert client.ask("POST", records, messages).status == 200
    return records


def found(answer: Answer) -> list[int]:
    assert answer.status == 200, answer
    return [one["payload"]["n"] for one in answer.json["records"]]


def test_reading_goes_on_where_an_answer_ended(client: Asking, numbers: str) -> None:
    seen: list[int] = []
    offset = 0
    while True:
        answer = read(client, numbers, from_=offset, limit=30)
        assert answer.json["first_offset"] == offset and answer.json["end_offset"] == 100
        if not answer.json["records"]:
            break
        seen += found(answer)
        offset = answer.json["next_offset"]
    assert seen == list(range(100))


def test_records_of_all_kinds_read_alike_with_and_without_a_filter(
    broker: Hosted, client: Asking, records: str, name: str
) -> None:
    messages: list[dict[str, Any]] = [
        {"payload": "text"},
        {"payload": {"a": [1, None]}},
        {"payload_base64": "/w=="},
        {"payload_base64": "YQ=="},
        {"payload_base64": "/w==", "headers": {"x": "1"}},
        {"payload": "of another name", "name": f"{name}/sub", "retain": True},
        {"payload": "é", "headers": [["x", "1"], ["x", "2"]]},
        {"payload": "plain again"},
    ]
    for size in (1, 3, 8):
        for at in range(0, len(messages), size):
            client.ask("POST", records, messages[at : at + size])
    with Wire(broker.port, name) as wire:
        wire.connect()
        wire.publish(name, b"by MQTT", qos=1)
    for start in range(25):
        for limit in (1, 4, 100):
            plain = read(client, records, from_=start, limit=limit).json
            chosen = read(client, records, from_=start, limit=limit, names="#").json
            assert plain == chosen and len(plain["records"]) == min(limit, 25 - start)


def test_an_answer_ends_before_it_grows_too_large_with_and_without_a_filter(
    client: Asking, records: str
) -> None:
    sizes = [9_000_000, 3_000_000, 3_000_000, 3_000_000, 1]
    for size in sizes:
        client.ask("POST", records, {"payload": "x" * size})
    for query in ({}, {"names": "#"}):
        found, offset = [], 0
        while offset < len(sizes):
            answer = read(client, records, from_=offset, **query).json
            found.append([len(record["payload"]) for record in answer["records"]])
            offset = answer["next_offset"]
        assert found == [[9_000_000], [3_000_000, 3_000_000], [3_000_000, 1]]


def test_filters_choose(client: Asking, numbers: str, name: str) -> None:
    assert found(read(client, numbers, names=f"{name}/1", limit=3)) == [1, 3, 5]
    assert found(read(client, numbers, where="payload.n > 97")) == [98, 99]
    answer = read(client, numbers, where="payload.n > 90", names=f"{name}/0", limit=2)
    assert found(answer) == [92, 94] and answer.json["next_offset"] == 95


def test_every_kind_of_position_is_understood(client: Asking, numbers: str) -> None:
    assert found(read(client, numbers, from_="earliest", limit=1)) == [0]
    assert found(read(client, numbers, from_="latest")) == []
    assert found(read(client, numbers, from_=98)) == [98, 99]
    assert len(found(read(client, numbers, from_="-1h"))) == 100
    stamp = read(client, numbers, limit=1).json["records"][0]["timestamp"]
    time = datetime.fromtimestamp(stamp / 1e6, UTC)
    later, before = time + timedelta(hours=1), time - timedelta(hours=1)
    assert found(read(client, numbers, from_=later.isoformat())) == []
    assert len(found(read(client, numbers, from_=before.isoformat()))) == 100


@pytest.mark.parametrize(
    ("query", "complaint"),
    [
        ({"from": "-1"}, "negative"),
        ({"from": "yesterday"}, "is not a position"),
        ({"limit": "0"}, "from 1 to 10000"),
        ({"limit": "-5"}, "from 1 to 10000"),
        ({"limit": "10001"}, "from 1 to 10000"),
        ({"limit": "9" * 5000}, "from 1 to 10000"),
        ({"where": "payload.n >"}, ""),
        ({"where": "x" * 5000}, ""),
        ({"names": "a/#/b"}, "filter 'a/#/b'"),
        ({"wait": "soon"}, "wait 'soon'"),
        ({"wait": "61"}, "at most 60"),
        ({"wait": "-1"}, "wait '-1'"),
        ({"limits": "5"}, "'limits' is unknown: there are from, limit"),
    ],
)
def test_a_question_that_cannot_be_read_is_400(
    client: Asking, numbers: str, query: dict[str, str], complaint: str
) -> None:
    answer = client.ask("GET", f"{numbers}?{urlencode(query)}")
    assert (answer.status, complaint in answer.detail) == (400, True), answer


def test_an_offset_past_the_end_is_409_with_the_bounds(client: Asking, numbers: str) -> None:
    answer = client.ask("GET", f"{numbers}?from=101")
    assert (answer.status, answer.json["error"]) == (409, "OffsetBeyondEnd")
    assert "offset from 0 to 100" in answer.detail


def test_arrow_has_the_same_records(client: Asking, numbers: str, name: str) -> None:
    answer = client.ask("GET", f"{numbers}?from=10&limit=50", Accept=ARROW)
    assert answer.headers["content-type"] == ARROW
    assert answer.headers["penstock-next-offset"] == "60"
    table = pa.ipc.open_stream(answer.body).read_all()
    assert table.column("offset").to_pylist() == list(range(10, 60))
    assert table.column("payload").to_pylist() == [b'{"n":%d}' % at for at in range(10, 60)]
    assert set(table.column("name").to_pylist()) == {f"{name}/0", f"{name}/1"}
    query = urlencode({"where": "payload.n > 95", "names": f"{name}/1"})
    answer = client.ask("GET", f"{numbers}?{query}", Accept=ARROW)
    assert pa.ipc.open_stream(answer.body).read_all().column("offset").to_pylist() == [97, 99]
    empty = client.ask("GET", f"{numbers}?from=latest", Accept=ARROW)
    assert pa.ipc.open_stream(empty.body).read_all().num_rows == 0


def test_batches_come_as_they_are_stored_without_what_lies_beside_the_records(
    client: Asking, records: str
) -> None:
    for number in range(3):
        answer = client.ask(
            "POST", records, {"payload": f"p{number}"}, **{"Idempotency-Key": f"secret-{number}"}
        )
        assert answer.status == 200
    answer = client.ask("GET", f"{records}?from=1", Accept=BATCHES)
    assert answer.headers["content-type"] == BATCHES
    assert answer.headers["penstock-first-offset"] == "1"
    assert answer.headers["penstock-next-offset"] == "3"
    batches = decode_batches(answer.body, 0, "the answer")
    found = [record for batch in batches for record in batch.records("t", 1, 3)]
    assert [(one.offset, one.payload) for one in found] == [(1, b"p1"), (2, b"p2")]
    assert [batch.marks() for batch in batches] == [[]] * len(batches)
    assert client.ask("GET", f"{records}?from=latest", Accept=BATCHES).body == b""


def test_an_answer_of_batches_is_bounded_by_records_and_bytes(
    client: Asking, records: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(4):
        client.ask("POST", records, {"payload": "x" * 600})
    answer = client.ask("GET", f"{records}?limit=3", Accept=BATCHES)
    assert answer.headers["penstock-next-offset"] == "3"
    monkeypatch.setattr("penstock.doors.http.v1.topics.records.READ_BYTES_MAX", 1_000)
    answer = client.ask("GET", records, Accept=BATCHES)
    assert answer.headers["penstock-next-offset"] == "2"
    assert len(decode_batches(answer.body, 0, "the answer")) == 2


@pytest.mark.parametrize("query", ["where=offset>1", "names=%23", "columns=name"])
def test_batches_are_not_filtered(client: Asking, numbers: str, query: str) -> None:
    answer = client.ask("GET", f"{numbers}?{query}", Accept=BATCHES)
    assert (answer.status, "Arrow" in answer.detail) == (400, True), answer


def test_what_nobody_can_make_is_406(client: Asking, numbers: str) -> None:
    assert client.ask("GET", numbers, Accept="text/html").status == 406
    assert client.ask("GET", numbers, Accept="text/html, */*;q=0.1").status == 200


# Waiting


def test_waiting_ends_with_the_record_that_comes(
    broker: Hosted, client: Asking, records: str
) -> None:
    with Asking(broker.ports["http"]) as other:
        other.send(f"GET {records}?from=0&wait=30 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        client.ask("POST", records, {"payload": "came"})
        assert payloads(other.answer()) == ["came"]


def test_waiting_with_a_filter_waits_for_one_that_passes(
    broker: Hosted, client: Asking, records: str
) -> None:
    where = quote("payload = 'yes'")
    with Asking(broker.ports["http"]) as other:
        other.send(
            f"GET {records}?wait=30&where={where} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        )
        for text in ("no", "no", "yes"):
            client.ask("POST", records, {"payload": text})
        answer = other.answer()
        assert payloads(answer) == ["yes"] and answer.json["first_offset"] == 0


def test_waiting_for_nothing_ends_in_time_with_nothing(client: Asking, records: str) -> None:
    for accept in ("application/json", ARROW, BATCHES):
        answer = client.ask("GET", f"{records}?wait=0.2", Accept=accept)
        assert answer.status == 200
    assert read(client, records, wait="100ms").json["records"] == []


def test_a_client_that_goes_leaves_nobody_waiting(
    broker: Hosted, client: Asking, records: str
) -> None:
    with Asking(broker.ports["http"]) as other:
        other.send(f"GET {records}?wait=60 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        while not broker.call(lambda: len(broker.http.serving.tasks)):
            client.ask("GET", "/healthz")
    for _ in range(1_000):  # sooner than a minute, which is what it asked for
        if not broker.call(lambda: len(broker.http.serving.tasks)):
            break
        client.ask("GET", "/healthz")
    assert not broker.call(lambda: len(broker.http.serving.tasks))


PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_the_trace_context_of_a_request_is_stored_and_reaches_every_reader(
    broker: Hosted, client: Asking, records: str
) -> None:
    topic = records.split("/")[3]
    with Wire(broker.port, "", MQTT_5) as wire:
        wire.connect()
        wire.subscribe(topic, qos=1)
        own = {"payload": 2, "headers": {"traceparent": "own", "x": "y"}}
        rows = [{"payload": 1, "headers": {"x": "y"}}, own, {"payload": 3}]
        client.ask("POST", records, rows, traceparent=PARENT, tracestate="a=b")
        context = [["traceparent", PARENT], ["tracestate", "a=b"]]
        expected = [[["x", "y"], *context], [["traceparent", "own"], ["x", "y"]], context]
        assert [one["headers"] for one in read(client, records).json["records"]] == expected
        sent = [wire.receive().properties.user_properties for _ in rows]
        assert [[list(pair) for pair in one] for one in sent] == expected


LONG = f"01{PARENT[2:]}-{'x' * 9_000}"  # a later version may have more, but each message gets it


@pytest.mark.parametrize(
    "parent", ["", "hello", PARENT.upper(), f"ff{PARENT[2:]}", PARENT[:-1], LONG]
)
def test_a_trace_context_that_is_not_valid_is_ignored(
    client: Asking, records: str, parent: str
) -> None:
    assert client.ask("POST", records, {"payload": 1}, traceparent=parent).status == 200
    assert "headers" not in read(client, records).json["records"][0]


def test_who_waits_is_answered_when_the_topic_goes(
    broker: Hosted, client: Asking, records: str
) -> None:
    with Asking(broker.ports["http"]) as other:
        other.send(f"GET {records}?wait=30 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        while not broker.call(lambda: len(broker.http.serving.tasks)):
            client.ask("GET", "/healthz")
        client.ask("DELETE", records.removesuffix("/records"))
        answer = other.answer()
        assert (answer.status, answer.json["error"]) == (404, "TopicNotFound")
