"""Does a client that floods and reads nothing, or that sends in crumbs, cost the others anything?

The broker may read on only as far as its answers are taken: what it holds for a client is bounded.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.model.limits import MIB
from penstock.mqtt.encode import encode
from penstock.mqtt.kinds import MQTT_3_1_1
from penstock.mqtt.packets import Connect, Pingreq, Pingresp
from tests.abuse.conftest import MEMORY_BYTES_MAX, Patient
from tests.abuse.healthy import BUSY_S_MAX, busy_s
from tests.abuse.test_abuse import ends
from tests.doors.served import Served
from tests.doors.users import add_users
from tests.doors.wire import Wire
from tests.http.asking import Asking

GROWN_BYTES_MAX = 24 * MIB  # of which the flood itself may hold a few
HELD_S = 2.0  # not taken for so long: the broker does not read on


def request(path: str, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def flood(sock: socket.socket, chunk: bytes, bytes_max: int, look: Callable[[], object]) -> int:
    """Send it again and again until the broker takes no more; how many bytes it took."""
    sock.setblocking(False)
    sent = 0
    while sent < bytes_max and select.select([], [sock], [], HELD_S)[1]:
        try:
            sent += sock.send(chunk[sent % len(chunk) :])
        except BlockingIOError:
            continue
        look()
    sock.settimeout(20)
    return sent


class Watch:
    """The highest memory of a broker."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._before = served.memory_bytes
        self.grown = 0
        self._calls = 0

    def __call__(self) -> None:
        self._calls += 1
        if self._calls % 16 == 0:
            self.look()

    def look(self) -> int:
        self.grown = max(self.grown, self._served.memory_bytes - self._before)
        return self.grown


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/healthz"), ("HEAD", "/nowhere"), ("GET", "/v1/openapi.json")]
)
def test_requests_are_not_read_on_while_their_answers_are_not_taken(
    patient: Patient, method: str, path: str
) -> None:
    watch = Watch(patient.served)
    with socket.create_connection(("127.0.0.1", patient.served.http_port), 20) as sock:
        sent = flood(sock, request(path, method) * 1_000, 76 * MIB, watch)
        assert sent < 76 * MIB, "the broker read all of it"
        assert watch.look() < GROWN_BYTES_MAX
        patient.check()


def test_a_hundred_such_clients_cost_little_more_than_one(patient: Patient) -> None:
    watch = Watch(patient.served)
    tiny = b"GET /healthz HTTP/1.1\r\nHost:\r\n\r\n" * 2_000
    socks = [
        socket.create_connection(("127.0.0.1", patient.served.http_port), 20) for _ in range(100)
    ]
    for sock in socks:  # 64 KiB, which a broker reads at once, hold two thousand requests
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        sock.setblocking(False)
    for _ in range(40):
        writable = select.select([], socks, [], HELD_S)[1]
        for sock in writable:
            try:
                sock.send(tiny)
            except BlockingIOError:
                continue
        watch.look()
    assert watch.look() / len(socks) < 1 * MIB
    for sock in socks:
        sock.close()


def test_answers_that_waited_come_whole_and_in_order(patient: Patient) -> None:
    with socket.create_connection(("127.0.0.1", patient.served.http_port), 20) as sock:
        paths = [request("/healthz"), request("/nowhere"), request("/readyz")]
        count = 30_000
        data = b"".join(paths[at % 3] for at in range(count))
        sender = threading.Thread(target=sock.sendall, args=(data,))
        sender.start()
        with Asking(0, sock) as client:
            for at in range(count):
                assert client.answer().status == (404 if at % 3 == 1 else 200)
        sender.join()


def test_a_client_that_takes_no_answer_is_let_go_although_it_asks_on(tmp_path: Path) -> None:
    env = {**os.environ, "PENSTOCK_HTTP__SEND_TIMEOUT": "1s"}
    with (
        Served(tmp_path, env=env) as served,
        socket.create_connection(("127.0.0.1", served.http_port), 20) as sock,
    ):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        sock.setblocking(False)
        until_s = time.monotonic() + 20
        is_let_go = False
        try:
            while not is_let_go and time.monotonic() < until_s:
                if select.select([], [sock], [], 0.01)[1]:
                    sock.send(request("/v1/openapi.json") * 4)
        except (BrokenPipeError, ConnectionResetError):
            is_let_go = True
        assert is_let_go, "it is still connected"


@pytest.mark.slow
def test_pings_are_not_read_on_while_their_answers_are_not_taken(patient: Patient) -> None:
    watch = Watch(patient.served)
    with Wire(patient.port, "pinging") as client:
        client.connect()
        sock = client._socket
        pings = encode(Pingreq(), MQTT_3_1_1) * 10_000
        sent = flood(sock, pings, 24 * MIB, watch)
        assert sent < 24 * MIB, "the broker read all of it"
        assert watch.look() < MEMORY_BYTES_MAX
        patient.check()
        left = sent // 2 * len(encode(Pingresp(), MQTT_3_1_1))
        while left > 0:  # all that was asked is answered when it is taken
            left -= len(sock.recv(MIB))
        assert left == 0


# Crumbs


def test_a_body_in_chunks_of_two_bytes_takes_the_memory_of_its_bytes(patient: Patient) -> None:
    watch = Watch(patient.served)
    head = (
        b"PUT /v1/topics/crumbs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    with Asking(patient.served.http_port) as client:
        client.send(head)
        for _ in range(100):
            client.send(b"2\r\nxx\r\n" * 10_000)
            watch.look()
        assert watch.grown < GROWN_BYTES_MAX
        assert client.send(b"0\r\n\r\n").answer().status == 400


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    data = tmp_path_factory.mktemp("guarded")
    add_users(data, alice="wonder")
    with Served(data) as served:
        yield served


def frame(data: bytes, opcode: int = 2) -> bytes:
    """A masked frame of up to 125 bytes; the mask is zeros."""
    return bytes((0x80 | opcode, 0x80 | len(data), 0, 0, 0, 0)) + data


def test_one_byte_frames_behind_a_login_keep_nobody_waiting(guarded: Served) -> None:
    hello = encode(Connect("x", username="alice", password=b"wrong"), MQTT_3_1_1)
    watch = Watch(guarded)
    worst_s = 0.0  # that the broker computed before it answered
    with Asking(guarded.http_port) as flooding, Asking(guarded.http_port) as healthy:
        answer = flooding.ask(
            "GET",
            "/mqtt",
            Upgrade="websocket",
            Connection="Upgrade",
            Sec_WebSocket_Protocol="mqtt",
            Sec_WebSocket_Version="13",
            Sec_WebSocket_Key="AAAAAAAAAAAAAAAAAAAAAA==",
        )
        assert answer.status == 101
        flooding.send(frame(hello) + frame(b"\0") * 60_000)  # wrong logins wait for a second
        until_s = time.monotonic() + 2
        while time.monotonic() < until_s:
            begin_s = busy_s(guarded.pid)
            assert healthy.ask("GET", "/healthz").status == 200
            worst_s = max(worst_s, busy_s(guarded.pid) - begin_s)
        assert worst_s < BUSY_S_MAX
        assert watch.look() < GROWN_BYTES_MAX
        assert ends(flooding._socket)
