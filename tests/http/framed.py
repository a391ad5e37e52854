"""A WebSocket that looks like a socket: for clients that only know bytes."""

from __future__ import annotations

import ssl
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin, Subprotocol

from tests.waiting import WAIT_S


class Framed:
    """`cut` says how many bytes of a send go into one frame; None: all of them."""

    def __init__(self, port: int, cut: int | None = None, **more: Any) -> None:
        self.socket = open_websocket(port, "/mqtt", "mqtt", **more)
        self._cut = cut
        self._wait_s: float | None = WAIT_S

    def sendall(self, data: bytes) -> None:
        cut = self._cut or len(data)
        for at in range(0, len(data), cut):
            self.socket.send(data[at : at + cut])

    def recv(self, size: int) -> bytes:
        try:
            frame = self.socket.recv(self._wait_s)
        except ConnectionClosed:
            return b""
        assert isinstance(frame, bytes)
        return frame

    def settimeout(self, wait_s: float | None) -> None:
        self._wait_s = wait_s

    def close(self) -> None:
        self.socket.close()


def open_websocket(
    port: int,
    path: str,
    subprotocol: str | None = None,
    origin: str | None = None,
    context: ssl.SSLContext | None = None,
    **more: Any,
) -> ClientConnection:
    scheme = "ws" if context is None else "wss"
    """An open one; whoever asked for it closes it."""
    return connect(
        f"{scheme}://127.0.0.1:{port}{path}",
        origin=Origin(origin) if origin else None,
        subprotocols=[Subprotocol(subprotocol)] if subprotocol else None,
        ssl=context,
        open_timeout=WAIT_S,
        compression=None,
        proxy=None,
        **more,
    ).__enter__()
