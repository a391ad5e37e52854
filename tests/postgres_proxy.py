"""A network between a program and PostgreSQL that fails at a chosen moment."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, urlsplit

CHUNK_BYTES = 1 << 20

SWALLOW = "swallow"  # the request never reaches the server, and the connection ends
DEAFEN = "deafen"  # the server does it, and the connection ends in place of its answer
ABANDON = "abandon"  # as a machine that vanishes: the server goes on, and hears of no end


class PostgresProxy:
    """Passes bytes on; the request that it is told of meets a fate, once."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._socket_path = f"{parse_qs(parts.query)['host'][0]}/.s.PGSQL.5432"
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.url = f"postgresql://postgres@127.0.0.1:{port}{parts.path}"
        self.is_down = False  # whoever connects is turned away
        self.has_struck = threading.Event()
        self._fate = ""
        self._is_doomed: Callable[[bytes], bool] = lambda request: True
        self._wires: list[_Wire] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def doom(self, fate: str, is_doomed: Callable[[bytes], bool] = lambda request: True) -> None:
        """The next request for which `is_doomed` holds meets this fate."""
        self.has_struck.clear()
        self._is_doomed = is_doomed
        self._fate = fate

    def cut(self) -> None:
        """End every connection now."""
        for wire in self._wires:
            wire.close()
        self._wires.clear()

    def fate_of(self, request: bytes) -> str:
        if not self._fate or not self._is_doomed(request):
            return ""
        fate, self._fate = self._fate, ""
        return fate

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                try:
                    if self.is_down:
                        raise ConnectionRefusedError
                    server.connect(self._socket_path)
                except OSError:
                    client.close()
                    continue
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                wire = _Wire(self, client, server)
                self._wires.append(wire)
                for work in (wire.pass_requests, wire.pass_answers):
                    threading.Thread(target=work, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _close(self._listener)
        self.cut()


class _Wire:
    def __init__(self, proxy: PostgresProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._fate = ""

    def pass_requests(self) -> None:
        with suppress(OSError):
            while request := self._client.recv(CHUNK_BYTES):
                self._fate = self._proxy.fate_of(request)
                if self._fate != SWALLOW:
                    self._server.sendall(request)
                if self._fate == ABANDON:
                    _close(self._client)
                    self._proxy.has_struck.set()
                if self._fate:
                    break
        if self._fate in ("", SWALLOW):
            self._end()

    def pass_answers(self) -> None:
        with suppress(OSError):
            while answer := self._server.recv(CHUNK_BYTES):
                if self._fate == DEAFEN:
                    break
                if not self._fate:
                    self._client.sendall(answer)
        self._end()

    def _end(self) -> None:
        self.close()
        if self._fate:
            self._proxy.has_struck.set()

    def close(self) -> None:
        _close(self._client)
        _close(self._server)


def _close(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
