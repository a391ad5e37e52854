"""Can one HTTP client, known or not, grow the broker's memory or keep the others waiting?

Each case runs against a real broker process while a healthy client's messages go round beside it.
`Beside` prints the broker's memory and the healthy client's worst wait; pytest -s shows them.
"""

from __future__ import annotations

import base64
import json
import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from penstock.doors.http.limits import UNSENT_BYTES_MAX
from penstock.model.limits import KIB, MIB
from tests.abuse.healthy import Beside, queued_bytes
from tests.doors.served import Served
from tests.http.asking import Answer, Asking
from tests.http.events import Events, Frames

GROWN_BYTES_MAX = 64 * MIB
SERVED_MIN = 10  # rounds of a healthy client during an attack
CHUNKED = b"Host: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
RECORD = json.dumps({"payload": "x"}).encode()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A broker with a user; anonymous clients may use it, so that there is a healthy one."""
    with Served(tmp_path_factory.mktemp("hostile")) as broker:
        yield broker


def make_topic(served: Served, topic: str) -> None:
    with Asking(served.http_port) as client:
        assert client.ask("PUT", f"/v1/topics/{topic}").status in (200, 201)


def post(served: Served, topic: str, body: bytes, kind: str = "application/json") -> Answer:
    """Store it; the topic is made first."""
    make_topic(served, topic)
    with Asking(served.http_port) as client:
        client._socket.settimeout(120)
        return client.ask("POST", f"/v1/topics/{topic}/records", body, Content_Type=kind)


# One client may not stop the others


def test_a_payload_of_millions_of_empty_lists_is_refused_before_it_is_decoded(
    served: Served,
) -> None:
    body = b'{"payload":[' + b"[]," * (10 * MIB) + b"[]]}"
    with Beside.http(served) as watching:
        answer = post(served, "lists", body)
    assert answer.status == 413 and "JSON values" in answer.detail
    watching.check(128 * MIB)


def test_a_large_text_with_many_commas_is_taken(served: Served) -> None:
    text = '1,2,"3",[4],{5}\n' * 500_000
    with Beside.http(served) as watching:
        answer = post(served, "commas", json.dumps({"payload": text}).encode())
    assert answer.status == 200, answer
    watching.check(200 * MIB)


def test_millions_of_empty_headers_are_refused_before_they_are_decoded(served: Served) -> None:
    body = b'{"payload":"x","headers":[' + b'["",""],' * 3_600_000 + b'["",""]]}'
    with Beside.http(served) as watching:
        assert post(served, "headers", body).status == 413
    watching.check(128 * MIB)


def test_fifty_thousand_names_in_one_request_keep_nobody_waiting(served: Served) -> None:
    body = json.dumps([{"payload": "x", "name": f"names/{at}"} for at in range(50_000)]).encode()
    with Beside.http(served) as watching:
        for _ in range(3):
            assert post(served, "names", body).status == 200
    watching.check(256 * MIB)
    assert watching.rounds >= SERVED_MIN and watching.worst_s < watching.took_s / 3, watching


@pytest.mark.parametrize("kind", ["application/json", "application/x-ndjson"])
def test_a_large_body_is_read_as_a_small_one_is(served: Served, kind: str) -> None:
    """Also what is wrong in it: the message is named, and nothing is stored."""
    messages = [{"payload": {"n": at}, "name": f"n/{at % 7}"} for at in range(20_000)]
    wrong = [*messages[:9_999], {"payload": 1, "name": "a+b"}, *messages]
    broken = [*messages[:9_999], {"payload": 1, "nam": 3}, *messages]

    def body(some: list[Any]) -> bytes:
        if kind == "application/json":
            return json.dumps(some).encode()
        return b"\n".join(json.dumps(one).encode() for one in some)

    topic = f"large-{kind.rpartition('/')[2]}"
    for some, text in ((wrong, "message 9999: name 'a+b'"), (broken, "message 9999: ")):
        refused = post(served, topic, body(some), kind)
        assert refused.status == 400 and text in refused.detail
    assert post(served, topic, body(messages * 3), kind).status == 413
    stored = post(served, topic, body(messages), kind)
    assert stored.json["first_offset"] == 0 and stored.json["end_offset"] == len(messages)
    with Asking(served.http_port) as client:
        page = client.ask("GET", f"/v1/topics/{topic}/records?from=19998").json["records"]
    assert [(one["payload"], one["name"]) for one in page] == [
        ({"n": 19_998}, f"n/{19_998 % 7}"),
        ({"n": 19_999}, f"n/{19_999 % 7}"),
    ]


def test_thirty_megabytes_of_base64_keep_nobody_waiting(served: Served) -> None:
    one = base64.b64encode(bytes(5 * MIB)).decode()
    body = json.dumps([{"payload_base64": one}] * 4).encode()
    with Beside.http(served) as watching:
        assert post(served, "coded", body).status == 200
    watching.check(256 * MIB)
    assert watching.rounds >= SERVED_MIN and watching.worst_s < watching.took_s / 2, watching


@pytest.mark.slow
@pytest.mark.parametrize(
    "where",
    [
        "payload LIKE '%" + "a_" * 60 + "b%'",
        "payload LIKE '%" + "a" * 100 + "_b%'",
        "payload LIKE '%" + "a_" * 500 + "b%'",
    ],
)
def test_a_like_over_the_largest_scan_keeps_nobody_waiting(served: Served, where: str) -> None:
    make_topic(served, "like")
    with Asking(served.http_port) as client:
        if client.ask("GET", "/v1/topics/like").json["end_offset"] == 0:
            for _ in range(5):
                body = b"a" * (15 * MIB)
                kind = "text/plain"
                path = "/v1/topics/like/records"
                assert client.ask("POST", path, body, Content_Type=kind).status == 200
        client._socket.settimeout(200)
        with Beside.http(served) as watching:
            quoted = where.replace("%", "%25").replace(" ", "%20")
            answer = client.ask("GET", f"/v1/topics/like/records?where={quoted}")
        assert answer.status == 200 and answer.json["records"] == []
    watching.check(256 * MIB)


def upgraded(served: Served, path: str, **more: str) -> Asking:
    client = Asking(served.http_port)
    answer = client.ask(
        "GET",
        path,
        Upgrade="websocket",
        Connection="Upgrade",
        Sec_WebSocket_Version="13",
        Sec_WebSocket_Key="AAAAAAAAAAAAAAAAAAAAAA==",
        **more,
    )
    assert answer.status == 101
    return client


def test_a_flood_of_pings_keeps_nobody_waiting(served: Served) -> None:
    make_topic(served, "pinged")
    ping = bytes((0x89, 0x80, 0, 0, 0, 0))
    with upgraded(served, "/v1/topics/pinged/stream") as flooding, Beside.http(served) as watching:
        until_s = time.monotonic() + 60
        flooding._socket.setblocking(False)
        flood = ping * 20_000
        sent = taken = 0
        while time.monotonic() < until_s and taken < 2 * 20_000:
            waiting = [flooding._socket] if sent < len(flood) else []
            readable, writable, _ = select.select([flooding._socket], waiting, [], 0.1)
            if readable:
                taken += len(flooding._socket.recv(MIB))
            if writable:
                sent += flooding._socket.send(flood[sent : sent + MIB])
    assert taken >= 2 * 20_000, "every ping is answered"
    watching.check(GROWN_BYTES_MAX)
    assert watching.worst_busy_s < 0.2, watching


# Nobody who does not read may grow memory


def unread(served: Served, request: bytes, count: int, stack: ExitStack) -> list[socket.socket]:
    """Clients that ask and take nothing."""
    socks = []
    for _ in range(count):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        sock.settimeout(20)
        sock.connect(("127.0.0.1", served.http_port))
        sock.sendall(request)
        socks.append(stack.enter_context(sock))
    return socks


@pytest.mark.parametrize("size", [64 * KIB, 8 * MIB], ids=["small", "large"])
@pytest.mark.parametrize("form", ["application/json", "application/vnd.penstock.batches"])
def test_pages_that_nobody_takes_are_bounded_for_all_together(
    served: Served, size: int, form: str
) -> None:
    topic = f"controls-{size}"
    control = b"\x01" * size
    with Asking(served.http_port) as client:
        make_topic(served, topic)
        path = f"/v1/topics/{topic}/records"
        for _ in range(8 * MIB // size):
            assert client.ask("POST", path, control, Content_Type="text/plain").status == 200
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {form}\r\n\r\n".encode()
    with ExitStack() as stack, Beside.http(served) as watching:
        socks = unread(served, request, 30, stack)
        assert select.select(socks, [], [], 20)[0]
        answers = watching.rounds
        until_s = time.monotonic() + 10
        while watching.rounds < answers + 1_000 and time.monotonic() < until_s:
            time.sleep(0.01)  # while the others' pages are made
        with Asking(served.http_port) as client:
            assert client.ask("GET", f"{path}?limit=1&from=latest").status == 200
    watching.check(256 * MIB)


@pytest.mark.slow
def test_small_pages_that_hundreds_do_not_take_are_bounded_for_all_together(served: Served) -> None:
    """Below what needs a place, and six times as long in JSON: 600 MiB for all of them."""
    count, path = 400, "/v1/topics/crowd/records"
    assert post(served, "crowd", b"\x01" * (250 * KIB), "text/plain").status == 200
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    with ExitStack() as stack, Beside.http(served) as watching:
        socks = unread(served, request, count, stack)
        for sock in socks:  # its page was made, or it was closed to make room
            assert select.select([sock], [], [], 60)[0]
        queued = queued_bytes(served.http_port)
    assert queued < count * 256 * KIB, "the system's memory counts, too"
    watching.check(UNSENT_BYTES_MAX + 192 * MIB)  # and what is being made


CONTROL_BYTES = 8 * MIB  # of control characters: each is six in JSON


def store_controls(served: Served, topic: str, count: int) -> None:
    make_topic(served, topic)
    with Asking(served.http_port) as client:
        path = f"/v1/topics/{topic}/records"
        for _ in range(count):
            body = b"\x01" * CONTROL_BYTES
            assert client.ask("POST", path, body, Content_Type="text/plain").status == 200


def asking_for_controls(served: Served, way: str, topic: str, number: int) -> bytes:
    """A request for records of 8 MiB; those that move a position have one of their own."""
    head = "Host: localhost\r\n"
    if way == "websocket":
        head += "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        head += "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    if way in ("sse", "websocket"):
        return f"GET /v1/topics/{topic}/stream?from={number} HTTP/1.1\r\n{head}\r\n".encode()
    if way == "group":
        body = json.dumps({"limit": 1_000})
        path = f"/v1/topics/{topic}/groups/g{number}/fetch"
        lines = f"POST {path} HTTP/1.1\r\n{head}Content-Length: {len(body)}\r\n\r\n{body}"
        return lines.encode()
    with Asking(served.http_port) as client:
        registered = client.ask("POST", "/consumer/register", {"topic": topic})
        consumer = registered.json["consumer_id"]
    query = f"topic={topic}&consumer_id={consumer}"
    return f"GET /consumer/consume?{query} HTTP/1.1\r\n{head}\r\n".encode()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["sse", "websocket", "group", "consume"])
def test_readers_of_large_records_that_read_nothing_are_bounded_together(
    served: Served, way: str
) -> None:
    topic = f"unread-{way}"
    store_controls(served, topic, 4)
    requests = [asking_for_controls(served, way, topic, number % 4) for number in range(30)]
    with ExitStack() as stack, Beside.http(served) as watching:
        socks = []
        for request in requests:
            socks += unread(served, request, 1, stack)
        assert select.select(socks, [], [], 20)[0]
        answers = watching.rounds
        until_s = time.monotonic() + 20
        while watching.rounds < answers + 1_000 and time.monotonic() < until_s:
            time.sleep(0.01)  # while the answers are made
        small = f"small-{way}"
        with Asking(served.http_port) as client:  # small answers need no place
            make_topic(served, small)
            path = f"/v1/topics/{small}"
            assert client.ask("POST", f"{path}/records", RECORD).status == 200
            assert len(client.ask("POST", f"{path}/groups/g/fetch").json["records"]) == 1
            stream = Events(served.http_port, f"{path}/stream?from=earliest")
            assert stream.next().kind == "start"
            assert [one["payload"] for one in stream.records(1)] == ["x"]
            stream.close()
    watching.check(256 * MIB)


@pytest.mark.slow
def test_who_takes_a_large_answer_too_slowly_loses_its_place_to_who_waits(tmp_path: Path) -> None:
    env = {**os.environ, "PENSTOCK_HTTP__SEND_TIMEOUT": "600s"}
    with Served(tmp_path, env=env) as served, ExitStack() as stack:
        store_controls(served, "slow", 1)
        request = b"GET /v1/topics/slow/records HTTP/1.1\r\nHost: localhost\r\n\r\n"
        slow = unread(served, request, 12, stack)  # twice as many as there are places

        def sip() -> None:
            while not is_over.is_set():
                for sock in slow:
                    try:
                        sock.recv(1_000, socket.MSG_DONTWAIT)
                    except OSError:
                        continue
                is_over.wait(0.1)

        is_over = threading.Event()
        sipping = threading.Thread(target=sip)
        sipping.start()
        try:
            with Asking(served.http_port) as client:
                client._socket.settimeout(120)
                answer = client.ask("GET", "/v1/topics/slow/records")
        finally:
            is_over.set()
            sipping.join()
        assert answer.json["records"][0]["payload"] == "\x01" * CONTROL_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("way", ["sse", "websocket", "group", "consume", "consumer"])
@pytest.mark.parametrize("kind", ["text", "bytes", "json"])
def test_a_large_record_comes_whole(served: Served, way: str, kind: str) -> None:
    """Characters that lie across the borders of pieces, in every form of a payload."""
    topic = f"large-{way}-{kind}"
    text = "".join(chr(0x20 * at % 0x3000 + at % 7) for at in range(300_000)) + "\U0001f600"
    body = text.encode("utf-8", "replace")
    make_topic(served, topic)
    with Asking(served.http_port) as client:
        path = f"/v1/topics/{topic}"
        if kind == "json":
            stored = client.ask("POST", f"{path}/records", {"payload": {"text": text}})
        else:
            body += b"\xff\x00" if kind == "bytes" else b""
            how = "text/plain" if kind == "text" else "application/octet-stream"
            stored = client.ask("POST", f"{path}/records", body, Content_Type=how)
        assert stored.status == 200
        record = read_large(served, client, way, topic)
    if kind == "json":
        assert record["payload"] == {"text": text}
    elif kind == "text":
        assert record["payload"] == text
    else:
        assert base64.b64decode(record["payload_base64"]) == body


def read_large(served: Served, client: Asking, way: str, topic: str) -> dict[str, Any]:
    """The first record of a topic."""
    path = f"/v1/topics/{topic}"
    if way == "sse":
        stream = Events(served.http_port, f"{path}/stream?from=earliest")
        stream.next()
        return stream.records(1)[0]
    if way == "websocket":
        url = f"ws://127.0.0.1:{served.http_port}{path}/stream?from=earliest"
        with connect(url, max_size=None) as socket:
            return Frames(socket).records(1)[0]
    if way == "group":
        found: dict[str, Any] = client.ask("POST", f"{path}/groups/g/fetch").json["records"][0]
        assert found["deliveries"] == 1
        return found
    if way == "consumer":
        assert client.ask("PUT", f"{path}/consumers/c").status == 201
        fetched: dict[str, Any] = client.ask("POST", f"{path}/consumers/c/fetch").json
        return fetched["records"][0]
    asked = asking_for_controls(served, "consume", topic, 0)
    taken = client.send(asked).answer().json
    return {"payload": taken["message"], "payload_base64": taken.get("message_base64", "")}


def test_a_large_page_comes_whole(served: Served) -> None:
    texts = [chr(at % 0x2F) * (at * 997 % 40_000) + "\U0001f600é" for at in range(200)]
    body = "\n".join(json.dumps({"payload": text}) for text in texts).encode()
    assert post(served, "whole", body, "application/x-ndjson").status == 200
    with Asking(served.http_port) as client:
        got: list[str] = []
        while len(got) < len(texts):
            answer = client.ask("GET", f"/v1/topics/whole/records?from={len(got)}")
            page = answer.json
            assert page["first_offset"] == len(got) and page["end_offset"] == len(texts)
            got += [record["payload"] for record in page["records"]]
            assert page["next_offset"] == len(got)
    assert got == texts
