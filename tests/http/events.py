"""Readers of streams that count: server-sent events on a bare socket, frames in a WebSocket."""

from __future__ import annotations

import json
import socket
from typing import Any, NamedTuple

from websockets.sync.client import ClientConnection

from tests.http.asking import Asking
from tests.waiting import WAIT_S


class Event(NamedTuple):
    kind: str  # "" for a record
    id: str
    data: Any


class Events:
    """The events of one answer."""

    def __init__(
        self, port: int, path: str, sock: socket.socket | None = None, **headers: str
    ) -> None:
        self._client = Asking(port, sock)
        lines = [f"GET {path} HTTP/1.1", "Host: localhost", "Accept: text/event-stream"]
        lines += [f"{key.replace('_', '-')}: {value}" for key, value in headers.items()]
        self._client.send("\r\n".join(lines).encode() + b"\r\n\r\n")
        self.head = self._client.until(b"\r\n\r\n")
        assert self.head.startswith(b"HTTP/1.1 200"), self.head
        self._text = b""
        self._left = 0  # of the chunk that is being read
        self.beats = 0

    def next(self) -> Event:
        """The next event with data; EOFError when the stream ended."""
        while True:
            while b"\n\n" not in self._text:
                self._text += self._more()
            block, _, self._text = self._text.partition(b"\n\n")
            fields: dict[str, str] = {}
            for line in block.decode().split("\n"):
                key, _, value = line.partition(": ")
                fields[key] = value
            if "data" in fields:
                data = json.loads(fields["data"])
                return Event(fields.get("event", ""), fields.get("id", ""), data)
            self.beats += "id" in fields

    def _more(self) -> bytes:
        """What has come of the body, also of a chunk that is not complete."""
        if not self._left:
            self._left = int(self._client.until(b"\r\n"), 16)
            if not self._left:
                raise EOFError("the stream ended")
        data = self._client.some(self._left)
        self._left -= len(data)
        if not self._left:
            assert self._client.exactly(2) == b"\r\n"
        return data

    def records(self, count: int) -> list[dict[str, Any]]:
        found = []
        while len(found) < count:
            event = self.next()
            assert event.kind == "" and event.id == str(event.data["offset"])
            found.append(event.data)
        return found

    def close(self) -> None:
        self._client.close()


class Frames:
    """The frames of one WebSocket."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.next_offset = -1
        self.beats = 0
        self._records: list[dict[str, Any]] = []

    def next(self) -> dict[str, Any]:
        frame: dict[str, Any] = json.loads(self.socket.recv(WAIT_S))
        self.next_offset = frame["next_offset"]
        return frame

    def records(self, count: int) -> list[dict[str, Any]]:
        while len(self._records) < count:
            frame = self.next()
            if frame["type"] == "records":
                self._records += frame["records"]
            self.beats += frame["type"] == "heartbeat"
        found, self._records = self._records[:count], self._records[count:]
        return found
