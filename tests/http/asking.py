"""Asking over a bare socket: what is sent is exactly what the test says."""

from __future__ import annotations

import json
import socket
from types import TracebackType
from typing import Any, NamedTuple, Self

from tests.waiting import WAIT_S


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]  # names in small letters
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def detail(self) -> str:
        assert self.headers["content-type"] == "application/problem+json", self
        assert self.json["status"] == self.status
        return str(self.json["detail"])


class Asking:
    """One connection to the HTTP door."""

    def __init__(self, port: int, sock: socket.socket | None = None) -> None:
        self._socket = sock or socket.create_connection(("127.0.0.1", port), WAIT_S)
        self._kept = b""

    def send(self, data: bytes) -> Self:
        self._socket.sendall(data)
        return self

    def ask(self, method: str, path: str, body: bytes | Any = b"", **headers: str) -> Answer:
        """Send one request, wait for its answer; what is not bytes is sent as JSON."""
        self.request(method, path, body, **headers)
        return self.answer(is_head=method == "HEAD")

    def request(self, method: str, path: str, body: bytes | Any = b"", **headers: str) -> None:
        """Send one request; `answer` waits for what comes back."""
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
        lines += [f"{key.replace('_', '-')}: {value}" for key, value in headers.items()]
        if body:
            lines.append(f"Content-Length: {len(body)}")
        self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    def answer(self, *, is_head: bool = False) -> Answer:
        """The next answer, interim ones aside."""
        while True:
            head = self.until(b"\r\n\r\n").decode("latin-1").split("\r\n")
            version, status, _ = head[0].split(" ", 2)
            assert version == "HTTP/1.1"
            headers = {}
            for line in head[1:-2]:
                key, _, value = line.partition(": ")
                assert key.lower() not in headers, f"{key} comes twice"
                headers[key.lower()] = value
            if int(status) != 100:
                break
        body = b""
        if not is_head and int(status) not in (101, 204, 304):
            if headers.get("transfer-encoding") == "chunked":
                body = b"".join(iter(self.chunk, b""))
            elif "content-length" in headers:
                body = self.exactly(int(headers["content-length"]))
            else:
                body = self.rest()
        return Answer(int(status), headers, body)

    def chunk(self) -> bytes:
        """One chunk of a body; empty at its end."""
        size = int(self.until(b"\r\n"), 16)
        data = self.exactly(size)
        assert self.exactly(2) == b"\r\n"
        return data

    def until(self, end: bytes) -> bytes:
        while end not in self._kept:
            self._receive()
        head, _, self._kept = self._kept.partition(end)
        return head + end

    def exactly(self, size: int) -> bytes:
        while len(self._kept) < size:
            self._receive()
        data, self._kept = self._kept[:size], self._kept[size:]
        return data

    def some(self, size_max: int) -> bytes:
        """What has come, at least a byte."""
        if not self._kept:
            self._receive()
        data, self._kept = self._kept[:size_max], self._kept[size_max:]
        return data

    def rest(self) -> bytes:
        """Everything until the server closes."""
        try:
            while True:
                self._receive()
        except EOFError:
            data, self._kept = self._kept, b""
            return data

    def is_closed(self) -> bool:
        """Waits for the server to close, or to say something."""
        try:
            return not self._kept and self._socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _receive(self) -> None:
        data = self._socket.recv(65_536)
        if not data:
            raise EOFError(f"closed after {self._kept!r}")
        self._kept += data

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
