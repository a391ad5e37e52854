"""A TCP proxy on loopback that cuts connections when it is told to, or now and then by itself."""

from __future__ import annotations

import random
import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self


class CuttingProxy:
    """Passes bytes on; `cut` breaks what is open. `bytes_each` breaks each after so many bytes."""

    def __init__(self, port: int, seed: int = 0, bytes_each: int = 0) -> None:
        self._target = port
        self._chance = random.Random(seed)
        self._bytes_each = bytes_each
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._target), 10)
            except OSError:
                near.close()
                continue
            with self._lock:
                self._open |= {near, far}
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        left = self._chance.randint(1, self._bytes_each) if self._bytes_each else -1
        with suppress(OSError):
            while data := source.recv(65_536):
                if left >= 0:
                    data = data[:left]
                    left -= len(data)
                sink.sendall(data)
                if left == 0:
                    self.cuts += 1
                    break
        self._end(source, sink)

    def _end(self, *sockets: socket.socket) -> None:
        with self._lock:
            self._open.difference_update(sockets)
        for one in sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def cut(self) -> None:
        """Break everything that is open."""
        with self._lock:
            victims = list(self._open)
        self.cuts += 1
        self._end(*victims)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
