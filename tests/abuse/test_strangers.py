"""What can somebody who has not logged in make the broker hold, read or do?

Nothing of a body is read beyond what came with its head, before the login is looked at.
"""

from __future__ import annotations

import base64
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from penstock.model.limits import KIB, MIB
from penstock.mqtt.encode import encode
from penstock.mqtt.kinds import MQTT_3_1_1
from penstock.mqtt.packets import Connect, Publish
from tests.abuse.crowd import many_descriptors, reach
from tests.abuse.healthy import Beside
from tests.doors.served import Served
from tests.doors.users import add_users
from tests.http.asking import Asking

PATH = "/v1/topics/strange/records"
RIGHT = "Basic " + base64.b64encode(b"alice:wonder").decode()
WRONG = "Basic " + base64.b64encode(b"alice:wrong").decode()
GROWN_BYTES_MAX = 48 * MIB


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    data = tmp_path_factory.mktemp("guarded")
    add_users(data, alice="wonder")
    with many_descriptors(), Served(data) as served:
        with Asking(served.http_port) as client:
            made = client.ask("PUT", "/v1/topics/strange", Authorization=RIGHT)
            assert made.status == 201
        yield served


def head(*lines: str, length: int = -1) -> bytes:
    framing = f"Content-Length: {length}" if length >= 0 else "Transfer-Encoding: chunked"
    kind = "Content-Type: text/plain"
    both = [f"POST {PATH} HTTP/1.1", "Host: localhost", kind, framing, *lines]
    return "\r\n".join(both).encode() + b"\r\n\r\n"


@pytest.mark.parametrize("login", [(), (f"Authorization: {WRONG}",)], ids=["none", "wrong"])
def test_a_stranger_is_refused_before_its_body_comes(
    guarded: Served, login: tuple[str, ...]
) -> None:
    with Asking(guarded.http_port) as client:
        answer = client.send(head(*login, length=20 * MIB)).answer()
        assert answer.status == 401
        assert answer.headers["connection"] == "close"
        assert client.is_closed()


def test_a_stranger_that_expects_to_continue_is_told_why_not(guarded: Served) -> None:
    with Asking(guarded.http_port) as client:
        client.send(head("Expect: 100-continue", length=5))
        assert client.until(b"\r\n").startswith(b"HTTP/1.1 401 ")


def test_a_user_that_expects_to_continue_may_after_the_login(guarded: Served) -> None:
    lines = ("Expect: 100-continue", f"Authorization: {RIGHT}")
    with Asking(guarded.http_port) as client:
        client.send(head(*lines, length=5))
        assert client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert client.send(b"hello").answer().status == 200
        client.send(head(*lines, length=5) + b"hello")  # sent without waiting
        assert client.until(b"\r\n").startswith(b"HTTP/1.1 200 ")


def test_requests_behind_a_large_body_are_answered_in_order(guarded: Served) -> None:
    lines = (f"Authorization: {RIGHT}",)
    with Asking(guarded.http_port) as client:
        healthz = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        client.send(healthz + head(*lines, length=MIB) + bytes(MIB) + healthz)
        client.send(head(*lines) + b"3\r\nabc\r\n" * 9_000 + b"0\r\nTrailer: x\r\n\r\n" + healthz)
        assert [client.answer().status for _ in range(5)] == [200] * 5


@pytest.mark.parametrize(
    "crumb",
    [b"2\r\nxx\r\n" * 8_192, b"x" * (64 * KIB), b"0\r\nTrailer: " + b"x" * (64 * KIB)],
    ids=["chunks of two bytes", "no chunk at all", "an endless trailer"],
)
@pytest.mark.parametrize("login", [(), (f"Authorization: {WRONG}",)], ids=["none", "wrong"])
def test_bodies_of_strangers_are_not_read(
    guarded: Served, crumb: bytes, login: tuple[str, ...]
) -> None:
    with ExitStack() as stack, Beside.http(guarded) as watching:
        socks = [
            stack.enter_context(socket.create_connection(("127.0.0.1", guarded.http_port), 20))
            for _ in range(20)
        ]
        for sock in socks:
            sock.sendall(head(*login))
            sock.setblocking(False)
        for _ in range(30):
            for sock in socks:
                try:
                    sock.send(crumb)
                except OSError:
                    continue
    watching.check(GROWN_BYTES_MAX)


def test_an_endless_trailer_of_a_user_is_refused(guarded: Served) -> None:
    with Asking(guarded.http_port) as client, Beside.http(guarded) as watching:
        client.send(head(f"Authorization: {RIGHT}") + b"1\r\nx\r\n0\r\nTrailer: ")
        for _ in range(50):
            client.send(b"x" * (64 * KIB))
        assert client.answer().status == 431
    watching.check(GROWN_BYTES_MAX)


def test_an_open_path_takes_no_large_body(guarded: Served) -> None:
    with Asking(guarded.http_port) as client:
        client.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000000\r\n\r\n")
        client.send(bytes(256 * KIB))
        assert client.answer().status == 413
        assert client.is_closed()


def upgraded(served: Served) -> Asking:
    client = Asking(served.http_port)
    key = "AAAAAAAAAAAAAAAAAAAAAA=="
    answer = client.ask(
        *("GET", "/mqtt"),
        Upgrade="websocket",
        Connection="Upgrade",
        Sec_WebSocket_Protocol="mqtt",
        Sec_WebSocket_Version="13",
        Sec_WebSocket_Key=key,
    )
    assert answer.status == 101
    return client


def frame_head(size: int) -> bytes:
    """Of a masked binary frame; the mask is zeros."""
    return bytes((0x82, 0xFF)) + size.to_bytes(8, "big") + bytes(4)


def test_frames_of_strangers_are_not_gathered(guarded: Served) -> None:
    with ExitStack() as stack, Beside.http(guarded) as watching:
        for _ in range(40):
            client = stack.enter_context(upgraded(guarded))
            client._socket.setblocking(False)
            with suppress(OSError):
                client.send(frame_head(16 * MIB) + bytes(MIB))
    watching.check(GROWN_BYTES_MAX)


def test_a_stranger_with_a_large_frame_is_told_why_it_is_closed(guarded: Served) -> None:
    with upgraded(guarded) as client:
        client.send(frame_head(16 * MIB) + bytes(600 * KIB))
        closing = client.exactly(4)
        assert closing[0] == 0x88 and int.from_bytes(closing[2:], "big") == 1009


def test_who_logs_in_may_send_a_large_frame_at_once(guarded: Served) -> None:
    connect = Connect("eager", username="alice", password=b"wonder", version=MQTT_3_1_1)
    hello = encode(connect, MQTT_3_1_1)
    large = encode(Publish("eager", bytes(2 * MIB), 1, packet_id=1), MQTT_3_1_1)
    with upgraded(guarded) as client:
        client.send(frame_head(len(hello)) + hello + frame_head(len(large)) + large)
        assert client.exactly(6) == b"\x82\x04\x20\x02\x00\x00"
        assert client.exactly(6) == b"\x82\x04\x40\x02\x00\x01"


def test_strangers_together_leave_room_for_those_who_log_in(guarded: Served) -> None:
    """Small bodies wait for the check of a wrong password; all of them have one budget."""
    with ExitStack() as stack, Beside.http(guarded) as watching:
        for _ in range(600):
            sock = socket.create_connection(("127.0.0.1", guarded.http_port), 20)
            stack.enter_context(sock)
            sock.setblocking(False)
            body = bytes(15 * KIB)
            request = head(f"Authorization: {WRONG}", length=len(body)) + body
            try:
                sock.send(request * 8)
            except OSError:
                continue
        with Asking(guarded.http_port) as client:
            answer = client.ask(
                "POST", PATH, bytes(4 * MIB), Content_Type="text/plain", Authorization=RIGHT
            )
            assert answer.status == 200
    watching.check(2 * GROWN_BYTES_MAX)


def long_head(size: int, *lines: str) -> bytes:
    """Of a request without a body, whose headers have so many bytes."""
    filling = [f"X-{number}: {'x' * 1_000}" for number in range(size // 1_010)]
    return "\r\n".join(["GET /v1/topics HTTP/1.1", "Host: localhost", *filling, *lines]).encode()


def pour(socks: list[socket.socket], data: bytes) -> None:
    """Send each as much of this as the broker takes by and by."""
    left = dict.fromkeys(socks, memoryview(data))
    for sock in socks:
        sock.setblocking(False)
    for _ in range(30):
        for sock, rest in list(left.items()):
            try:
                left[sock] = rest[sock.send(rest[: 256 * KIB]) :]
            except BlockingIOError:
                continue
            except OSError:
                del left[sock]


def test_heads_that_strangers_do_not_finish_have_one_bound(guarded: Served) -> None:
    with ExitStack() as stack, Beside.http(guarded) as watching:
        socks = [stack.enter_context(reach(guarded.http_port, "127.0.0.1")) for _ in range(4_500)]
        pour(socks, long_head(30 * KIB))
        with Asking(guarded.http_port) as client:
            assert client.ask("GET", "/v1/topics", Authorization=RIGHT).status == 200
    watching.check(2 * GROWN_BYTES_MAX)


def test_requests_behind_a_login_that_is_checked_have_one_bound(guarded: Served) -> None:
    request = long_head(30 * KIB, f"Authorization: {WRONG}") + b"\r\n\r\n"
    with ExitStack() as stack, Beside.http(guarded) as watching:
        socks = [stack.enter_context(reach(guarded.http_port, "127.0.0.1")) for _ in range(600)]
        pour(socks, request * 33)
        with Asking(guarded.http_port) as client:
            assert client.ask("GET", "/v1/topics", Authorization=RIGHT).status == 200
    watching.check(2 * GROWN_BYTES_MAX)


def test_long_paths_of_strangers_are_not_remembered(guarded: Served) -> None:
    with Asking(guarded.http_port) as client:
        client.ask("GET", f"/v1/topics/{'y' * 100}/records")
        before = guarded.memory_bytes
        for number in range(4_000):
            path = f"/v1/topics/{number}{'y' * 8_000}/records"
            assert client.ask("GET", path).status == 401
        assert guarded.memory_bytes - before < 16 * MIB


def test_pages_that_strangers_do_not_take_cost_little_each(guarded: Served) -> None:
    request = b"GET /console/messages.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with ExitStack() as stack, Beside.http(guarded) as watching:
        socks = [stack.enter_context(reach(guarded.http_port, "127.0.0.1")) for _ in range(600)]
        pour(socks, request * 60)
        with Asking(guarded.http_port) as client:
            assert client.ask("GET", "/v1/topics", Authorization=RIGHT).status == 200
    watching.check(2 * GROWN_BYTES_MAX)
