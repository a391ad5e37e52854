"""HTTP/1.1 on a bare socket: does the server keep to the rules, whatever comes?"""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.doors.hosted import Hosted
from tests.http.asking import Asking

GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_a_connection_serves_one_request_after_another(client: Asking) -> None:
    for _ in range(3):
        answer = client.ask("GET", "/healthz")
        assert (answer.status, answer.body) == (200, b"ok\n")
    assert answer.headers["date"].endswith("GMT")


def test_requests_sent_ahead_are_answered_in_order(client: Asking) -> None:
    client.send(GET + b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n" + GET * 100)
    assert [client.answer().status for _ in range(102)] == [200, 404] + [200] * 100


def test_a_request_may_come_byte_by_byte(client: Asking) -> None:
    for at in range(len(GET)):
        client.send(GET[at : at + 1])
    assert client.answer().status == 200


def test_head_answers_like_get_without_the_body(client: Asking) -> None:
    answer = client.ask("HEAD", "/healthz")
    assert (answer.status, answer.headers["content-length"]) == (200, "3")
    assert client.ask("GET", "/healthz").body == b"ok\n"


def test_options_names_the_methods(client: Asking) -> None:
    answer = client.ask("OPTIONS", "/healthz")
    assert (answer.status, answer.headers["allow"]) == (204, "GET, HEAD, OPTIONS")
    assert client.ask("OPTIONS", "*").status == 204
    assert client.ask("OPTIONS", "/nowhere").status == 404


def test_what_is_not_there_and_what_is_not_possible_say_so(client: Asking) -> None:
    assert client.ask("GET", "/nowhere").detail == "there is nothing at '/nowhere'"
    assert client.ask("GET", "/healthz/").status == 404
    answer = client.ask("DELETE", "/healthz")
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD, OPTIONS")
    assert "use GET, HEAD, OPTIONS" in answer.detail


def test_http_1_0_is_closed_after_its_answer_unless_it_asks_otherwise(broker: Hosted) -> None:
    with Asking(broker.ports["http"]) as client:
        client.send(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert client.answer().headers["connection"] == "close"
        assert client.is_closed()
    with Asking(broker.ports["http"]) as client:
        client.send(b"GET /healthz HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert client.answer().headers["connection"] == "keep-alive"
        client.send(GET)
        assert client.answer().status == 200


def test_connection_close_is_obeyed(client: Asking) -> None:
    assert client.ask("GET", "/healthz", Connection="close").headers["connection"] == "close"
    assert client.is_closed()


def test_an_absolute_target_is_a_path_with_its_server(client: Asking) -> None:
    assert client.ask("GET", "http://localhost/healthz").status == 200


def test_a_body_is_read_whole_sized_or_in_chunks(client: Asking) -> None:
    """GET /healthz takes no body; what matters is that the next request is found behind it."""
    assert client.ask("GET", "/healthz", b"x" * 50_000).status == 200
    client.send(
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"5;note=1\r\nhello\r\n6\r\n world\r\n0\r\nTrailer: x\r\n\r\n"
    )
    assert client.answer().status == 200
    assert client.ask("GET", "/healthz").status == 200


def test_who_expects_100_continue_is_told_to_go_on(client: Asking) -> None:
    client.send(
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
        b"Expect: 100-continue\r\n\r\n"
    )
    assert client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.send(b"hello")
    assert client.answer().status == 200


def test_who_expects_something_else_is_refused(client: Asking) -> None:
    assert client.ask("GET", "/healthz", Expect="a pony").status == 417


def test_a_body_too_large_is_refused_before_it_is_sent(client: Asking) -> None:
    client.send(
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n"
        b"Expect: 100-continue\r\n\r\n"
    )
    answer = client.answer()
    assert (answer.status, answer.headers["connection"]) == (413, "close")
    assert "[http] body_bytes_max" in answer.detail


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"this is not HTTP\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),  # somebody speaks TLS
        (b"GET /healthz HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: b\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nNo colon here\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: a\r\n folded\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX : space before colon\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: \x00\r\n\r\n", 400),
        (
            b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
            400,
        ),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1e1\r\n\r\n", 400),
        (
            b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
        ),  # two lengths: a way to smuggle requests
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n", 400),
        (
            b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            400,
        ),
        (
            b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"2\r\nabc\r\n0\r\n\r\n",
            400,
        ),
        (b"GET healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /h\xc3\xa9 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /healthz HTTP/2.0\r\nHost: localhost\r\n\r\n", 505),
        (b"GET /healthz HTTP/3.1\r\nHost: localhost\r\n\r\n", 400),
        (b"BREW /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n", 400),
        (b"GET /" + b"a" * 9_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 40_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 200_000, 431),
        (
            b"GET / HTTP/1.1\r\nHost: localhost\r\n"
            + b"".join(b"x%d: 1\r\n" % at for at in range(101))
            + b"\r\n",
            431,
        ),
        (
            b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nUpgrade: x\r\nConnection: upgrade\r\n"
            b"Content-Length: 30\r\n\r\nGET /nowhere HTTP/1.1\r\n\r\n....",
            400,
        ),
    ],
)
def test_what_is_no_request_is_refused_and_nothing_behind_it_is_read(
    client: Asking, request_bytes: bytes, status: int
) -> None:
    client.send(GET + request_bytes)
    assert client.answer().status == 200
    answer = client.answer()
    assert (answer.status, answer.headers["connection"]) == (status, "close"), answer
    assert answer.detail
    assert client.is_closed()


def test_a_request_to_speak_something_else_is_answered_as_it_stands(client: Asking) -> None:
    """curl --http2 asks like this."""
    answer = client.ask(
        "GET", "/healthz", Upgrade="h2c", Connection="Upgrade, HTTP2-Settings", HTTP2_Settings="AA"
    )
    assert (answer.status, answer.headers["connection"]) == (200, "close")


def test_every_byte_flipped_never_gives_a_server_error(broker: Hosted) -> None:
    request = b"GET /healthz?a=%41 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"
    for at in range(len(request)):
        for bit in (0, 4, 7):
            broken = bytearray(request)
            broken[at] ^= 1 << bit
            with Asking(broker.ports["http"]) as client:
                client.send(bytes(broken) + b"\r\n\r\nGET / HTTP/1.1\r\n\r\n")
                assert client.answer(is_head=True).status in (200, 400, 404, 405, 413, 421, 505)
    with Asking(broker.ports["http"]) as client:
        assert client.ask("GET", "/healthz").status == 200


def test_clients_beyond_the_bound_are_told_so_and_still_learn_whether_the_broker_lives(
    tmp_path: Path,
) -> None:
    with (
        Hosted(tmp_path, http__connections_max=2) as broker,
        Asking(broker.ports["http"]) as first,
        Asking(broker.ports["http"]) as second,
    ):
        for one in (first, second):
            assert one.ask("GET", "/v1/topics").status == 200
        with Asking(broker.ports["http"]) as third:
            assert third.ask("GET", "/healthz").status == 200
            full = third.ask("GET", "/v1/topics")
            assert full.status == 503 and "connections_max" in full.detail
            assert full.headers["retry-after"]
            second.close()
            first.ask("GET", "/healthz")
            assert third.ask("GET", "/v1/topics").status == 200


def test_slow_requests_end_with_408_and_idle_connections_in_silence(tmp_path: Path) -> None:
    limits = {f"http__{key}_timeout": "1s" for key in ("head", "body", "idle")}
    with Hosted(tmp_path, **limits) as broker:
        port = broker.ports["http"]
        with Asking(port) as head, Asking(port) as body, Asking(port) as idle, Asking(port) as mute:
            head.send(b"GET /healthz HTTP/1.1\r\nHost:")
            body.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc")
            idle.ask("GET", "/healthz")
            assert "headers did not arrive" in head.answer().detail
            assert body.answer().status == 408
            assert idle.is_closed() and mute.is_closed() and head.is_closed() and body.is_closed()


def test_clients_of_the_standard_library_are_served(broker: Hosted) -> None:
    address = f"http://127.0.0.1:{broker.ports['http']}"
    with urllib.request.urlopen(f"{address}/readyz") as answer:
        assert answer.read() == b'{"ready":true,"reasons":[]}'
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(f"{address}/nowhere")
    assert raised.value.code == 404
    raised.value.close()
    connection = http.client.HTTPConnection("127.0.0.1", broker.ports["http"])
    for _ in range(2):
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        text = response.read().decode()
        assert response.getheader("Content-Type", "").startswith("text/plain; version=0.0.4")
    assert "# TYPE penstock_published_records_total counter\n" in text
    assert "# TYPE penstock_commit_records histogram\n" in text
    connection.close()
