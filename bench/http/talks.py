"""Conversations with each kind of server: requests encoded beforehand, answers only counted.

A conversation has one request in flight, which holds one message or many. What answers it is known
by its length or by its lines; an answer that says no ends the benchmark.
"""

from __future__ import annotations

import itertools
import json
import random
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

from bench.http.peers import TOPIC
from bench.mqtt.servers import HOST

MESSAGE_BYTES: Final = 100
VARIANTS: Final = 64  # requests that differ, in turn: nothing has it easier than in life
RECEIVE_BYTES: Final = 1 << 18
WAIT_S_MAX: Final = 30.0

_numbers: Final = itertools.count(1)


class Refused(Exception):
    """An answer that is none."""


class Answers(Protocol):
    """Knows where an answer ends."""

    def take(self, data: bytes) -> bool:
        """Whether these bytes complete it."""
        ...


class HttpAnswers:
    """Each says its length."""

    def __init__(self) -> None:
        self._held = b""
        self._left_bytes = 0

    def take(self, data: bytes) -> bool:
        if self._left_bytes:
            self._left_bytes -= len(data)
        else:
            data = self._held + data
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._held = data
                return False
            if not data.startswith(b"HTTP/1.1 200"):
                raise Refused(data[:500])
            self._held = b""
            at = data.index(b"Content-Length: ") + 16
            length = int(data[at : data.index(b"\r\n", at)])
            self._left_bytes = end + 4 + length - len(data)
        assert self._left_bytes >= 0, "an answer nobody asked for"
        return not self._left_bytes


class LineAnswers:
    """Each has so many lines: Redis and NATS."""

    def __init__(self, lines: int, sock: socket.socket, wrong: bytes) -> None:
        self._lines = self._left = lines
        self._sock = sock
        self._wrong = wrong

    def take(self, data: bytes) -> bool:
        if self._wrong in data:
            raise Refused(data[:500])
        self._left -= data.count(b"\n")
        if b"PING\r\n" in data:  # NATS asks whether we are there
            self._sock.sendall(b"PONG\r\n")
            self._left += 1
        assert self._left >= 0, "an answer nobody asked for"
        if self._left:
            return False
        self._left = self._lines
        return True


class SizedAnswers:
    """Each has so many bytes: PostgreSQL."""

    def __init__(self, size: int) -> None:
        self._size = self._left_bytes = size

    def take(self, data: bytes) -> bool:
        if data[:1] == b"E":
            raise Refused(data[:500])
        self._left_bytes -= len(data)
        assert self._left_bytes >= 0, "an answer nobody asked for"
        if self._left_bytes:
            return False
        self._left_bytes = self._size
        return True


class Talk:
    """One connection that asks the same things again and again."""

    __slots__ = ("_answers", "_requests", "sock")

    def __init__(self, sock: socket.socket, requests: Sequence[bytes], answers: Answers) -> None:
        self.sock = sock
        self._requests = itertools.cycle(requests)
        self._answers = answers

    def ask(self) -> None:
        self.sock.sendall(next(self._requests))

    def hear(self) -> bool:
        """Take what has come; True when it completes the answer."""
        data = self.sock.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionError("the server closed a connection")
        return self._answers.take(data)

    def call(self) -> None:
        """Ask, and wait for the answer."""
        self.ask()
        self.wait()

    def wait(self) -> None:
        """For the answer."""
        while not self.hear():
            pass


def dial(port: int) -> socket.socket:
    sock = socket.create_connection((HOST, port), WAIT_S_MAX)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def texts(count: int, seed: int = 1) -> list[str]:
    """Readings of sensors as text, each of MESSAGE_BYTES."""
    numbers = random.Random(seed)
    made = [
        f"device=d-{numbers.randrange(5_000):04} at={1_790_000_000 + at} "
        f"celsius={numbers.random() * 40:06.3f} humidity={numbers.random() * 100:06.2f} "
        f"battery={numbers.randrange(100):03} "
        for at in range(count)
    ]
    return [text.ljust(MESSAGE_BYTES, ".") for text in made]


def variants(batch: int) -> Iterator[list[str]]:
    return (texts(batch, seed) for seed in range(VARIANTS))


# HTTP


def http_request(method: str, path: str, body: bytes = b"", *lines: str) -> bytes:
    head = [f"{method} {path} HTTP/1.1", f"Host: {HOST}", *lines]
    if body or method != "GET":
        head += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def http_ask(port: int, method: str, path: str, value: Any = None) -> Any:
    """One request on a connection of its own; what the answer says."""
    body = b"" if value is None else json.dumps(value).encode()
    with dial(port) as sock:
        sock.sendall(http_request(method, path, body, "Connection: close"))
        answer = b"".join(iter(lambda: sock.recv(RECEIVE_BYTES), b""))
    head, _, text = answer.partition(b"\r\n\r\n")
    if head.split(None, 2)[1] not in (b"200", b"201"):
        raise Refused(answer[:500])
    return json.loads(text)


def record_requests(batch: int, topic: str = TOPIC) -> list[bytes]:
    """`POST /v1/topics/{topic}/records` with one message, or a list of them."""
    path = f"/v1/topics/{topic}/records"
    requests = []
    for messages in variants(batch):
        many = [{"payload": text} for text in messages]
        body = json.dumps(many if batch > 1 else many[0], separators=(",", ":"))
        requests.append(http_request("POST", path, body.encode()))
    return requests


def produce_requests(producer_id: str) -> list[bytes]:
    """`POST /producer/produce`, the queue's."""
    fields = {"topic": TOPIC, "producer_id": producer_id}
    bodies = [json.dumps(fields | {"message": text}) for (text,) in variants(1)]
    return [http_request("POST", "/producer/produce", body.encode()) for body in bodies]


def http_talk(port: int, requests: Sequence[bytes]) -> Talk:
    return Talk(dial(port), requests, HttpAnswers())


# Redis


def redis_command(*words: str) -> bytes:
    parts = [word.encode() for word in words]
    coded = b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts])
    return b"*%d\r\n%b" % (len(parts), coded)


def redis_requests(batch: int) -> list[bytes]:
    """So many XADD at once, as a pipelining client sends them."""
    return [
        b"".join([redis_command("XADD", TOPIC, "*", "p", text) for text in messages])
        for messages in variants(batch)
    ]


def redis_talk(port: int, requests: Sequence[bytes], lines: int) -> Talk:
    """An XADD is answered by two lines."""
    sock = dial(port)
    return Talk(sock, requests, LineAnswers(lines, sock, b"-ERR"))


# NATS


def nats_publish(subject: str, inbox: str, text: str) -> bytes:
    return f"PUB {subject} {inbox} {len(text)}\r\n{text}\r\n".encode()


def nats_talk(port: int, lines: int) -> tuple[socket.socket, str, LineAnswers]:
    """A client with an inbox; each message that comes there has two lines."""
    sock = dial(port)
    inbox = f"_INBOX.b{next(_numbers)}"
    sock.sendall(f'CONNECT {{"verbose":false}}\r\nSUB {inbox} 1\r\nPING\r\n'.encode())
    _until(sock, b"PONG\r\n")
    return sock, inbox, LineAnswers(lines, sock, b'"error"')


def nats_publisher(port: int) -> Talk:
    sock, inbox, answers = nats_talk(port, 2)
    requests = [nats_publish(TOPIC, inbox, text) for (text,) in variants(1)]
    return Talk(sock, requests, answers)


def nats_ask(port: int, subject: str, value: dict[str, Any]) -> None:
    """A request to JetStream itself."""
    sock, inbox, answers = nats_talk(port, 2)
    with sock:
        Talk(sock, [nats_publish(f"$JS.API.{subject}", inbox, json.dumps(value))], answers).call()


# PostgreSQL


def postgres_talk(path: str) -> Talk:
    """Single-row inserts by a statement that was prepared; `path` is of the server's socket."""
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(WAIT_S_MAX)
    sock.connect(path)
    start = struct.pack(">i", 196_608) + b"user\0postgres\0database\0postgres\0\0"
    sock.sendall(struct.pack(">i", len(start) + 4) + start)
    _until(sock, POSTGRES_READY)
    text = b"insert into single (message) values ($1)"
    sock.sendall(_message(b"P", b"s\0" + text + b"\0\0\0") + _message(b"S", b""))
    _until(sock, POSTGRES_READY)
    requests = [_insert(text.encode()) for (text,) in variants(1)]
    # Bind is complete, the command's tag, ready for the next.
    return Talk(sock, requests, SizedAnswers(5 + 5 + len(b"INSERT 0 1\0") + len(POSTGRES_READY)))


POSTGRES_READY: Final = b"Z\0\0\0\x05I"


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack(">i", len(body) + 4) + body


def _insert(payload: bytes) -> bytes:
    bind = b"\0s\0" + struct.pack(">hhhi", 1, 1, 1, len(payload)) + payload + b"\0\0"
    return _message(b"B", bind) + _message(b"E", b"\0\0\0\0\0") + _message(b"S", b"")


def _until(sock: socket.socket, end: bytes) -> None:
    data = b""
    while not data.endswith(end):
        more = sock.recv(RECEIVE_BYTES)
        if not more:
            raise ConnectionError(f"the server closed the connection: {data[:500]!r}")
        data += more
