"""Can one HTTP client, known or not, grow the broker's memory or keep the others waiting?

Each case runs against a real broker process while a healthy client's messages go round beside it.
`Beside` prints the broker's memory and the healthy client's worst wait; pytest -s shows them.
"""

from __future__ import annotations

import base64
import json
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from penstock.model.limits import KIB, MIB
from tests.abuse.healthy import Beside
from tests.doors.served import Served
from tests.http.asking import Answer, Asking

GROWN_BYTES_MAX = 64 * MIB
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


def test_thirty_megabytes_of_base64_keep_nobody_waiting(served: Served) -> None:
    one = base64.b64encode(bytes(5 * MIB)).decode()
    body = json.dumps([{"payload_base64": one}] * 4).encode()
    with Beside.http(served) as watching:
        assert post(served, "coded", body).status == 200
    watching.check(256 * MIB)


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
    assert watching.worst_s < max(0.2, 10 * watching.idle_s), watching


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
