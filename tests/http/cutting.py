"""A network that cuts connections after some bytes, at random."""

from __future__ import annotations

import random
import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self


class Cutting:
    """Passes bytes on to a port; each connection ends after as many bytes as chance says."""

    def __init__(self, port: int, seed: int, bytes_max: int) -> None:
        self._target = port
        self._noise = random.Random(seed)
        self._bytes_max = bytes_max
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                budget = self._noise.randrange(200, self._bytes_max)
                for source, sink, most in ((client, server, 1 << 40), (server, client, budget)):
                    work = threading.Thread(
                        target=self._pass, args=(source, sink, most), daemon=True
                    )
                    work.start()

    def _pass(self, source: socket.socket, sink: socket.socket, most: int) -> None:
        with suppress(OSError):
            while most > 0 and (data := source.recv(min(most, 65_536))):
                sink.sendall(data)
                most -= len(data)
            self.cuts += most <= 0
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

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
