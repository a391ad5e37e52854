"""The ways to reach the MQTT door: a bare socket, TLS, and WebSocket."""

from __future__ import annotations

import socket
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.mqtt.kinds import MQTT_5
from tests.doors.certificates import Authority
from tests.doors.hosted import Hosted
from tests.doors.wire import WAIT_S, Wire

WAYS = pytest.mark.parametrize("way", ["tcp", "tls", "websocket"])


class BareWebSocket:
    """A WebSocket that looks like a socket, and takes no part in closing: it answers nothing."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), WAIT_S)
        self._unread = b""
        self._socket.sendall(
            b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
            b"Connection: Upgrade\r\nSec-WebSocket-Protocol: mqtt\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        while not self._unread.endswith(b"\r\n\r\n"):
            self._unread += self._socket.recv(1)
        assert b" 101 " in self._unread
        self._unread = b""

    def sendall(self, data: bytes) -> None:
        mask = bytes(4)  # changes nothing
        self._socket.sendall(b"\x82\xff" + len(data).to_bytes(8, "big") + mask + data)

    def recv(self, size: int) -> bytes:
        """What is in the next frame; nothing if it closes."""
        first, length = self._exactly(2)
        if length >= 126:
            length = int.from_bytes(self._exactly(2 if length == 126 else 8), "big")
        payload = self._exactly(length)
        return payload if first == 0x82 else b""

    def _exactly(self, size: int) -> bytes:
        while len(self._unread) < size:
            data = self._socket.recv(1 << 20)
            if not data:
                raise ConnectionResetError("closed without a close frame")
            self._unread += data
        found, self._unread = self._unread[:size], self._unread[size:]
        return found

    def settimeout(self, wait_s: float | None) -> None:
        self._socket.settimeout(wait_s)

    def close(self) -> None:
        self._socket.close()


class Reachable(Hosted):
    """A broker that takes clients in every way, and lets them linger as long as it is told to."""

    def __init__(self, path: Path, **lingering: Any) -> None:
        self._authority = Authority(path)
        cert, key = self._authority.sign("server")
        files = {"mqtt__tls_cert": str(cert), "mqtt__tls_key": str(key)}
        super().__init__(path / "data", mqtt__tls_listen="127.0.0.1:0", **files)
        settings = self._settings
        self._settings = replace(
            settings,
            mqtt_limits=replace(settings.mqtt_limits, **lingering),
            http_limits=replace(settings.http_limits, **lingering),
        )

    def reach(self, way: str, client_id: str, version: int = MQTT_5) -> Wire:
        if way == "websocket":
            return Wire(0, client_id, version, cast(Any, BareWebSocket(self.ports["http"])))
        if way == "tcp":
            return Wire(self.port, client_id, version)
        wire = Wire(self.ports["mqtts"], client_id, version)
        context = ssl.create_default_context(cafile=str(self._authority.cert))
        wire._socket = context.wrap_socket(wire._socket, server_hostname="localhost")
        return wire
