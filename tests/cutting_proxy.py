"""A TCP proxy on loopback that cuts connections, loses answers or goes silent when told to."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self


class CuttingProxy:
    """Passes bytes on; `cut` breaks what is open. `bytes_each` breaks each after so many bytes.

    `answers_lost`: so many of the next answers are cut, each somewhere before its end, and the
    requests they answer were carried out; `answers_spared` come before them. `answer_loss` is the
    same as a share of all answers. `on_loss` is called when an answer is lost.
    """

    def __init__(self, port: int, seed: int = 0, bytes_each: int = 0) -> None:
        self._target = port
        self._chance = random.Random(seed)
        self._bytes_each = bytes_each
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.cuts = 0
        self.answers_spared = 0
        self.answers_lost = 0
        self.on_loss: Callable[[], None] = lambda: None
        self.answer_loss = 0.0
        self._silent: set[socket.socket] = set()  # what they send goes nowhere
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
            for source, sink, answers in ((near, far, False), (far, near, True)):
                work = (source, sink, answers)
                threading.Thread(target=self._pass, args=work, daemon=True).start()

    def _is_lost(self) -> bool:
        with self._lock:
            if self.answers_spared:
                self.answers_spared -= 1
                return False
            if self.answers_lost:
                self.answers_lost -= 1
                return True
            return self._chance.random() < self.answer_loss

    def _pass(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        left = self._chance.randint(1, self._bytes_each) if self._bytes_each else -1
        with suppress(OSError):
            while data := source.recv(65_536):
                if source in self._silent:
                    continue
                if answers and self._is_lost():
                    left = self._chance.randrange(len(data))
                    self.on_loss()
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

    def stop_listening(self) -> None:
        """New connections are refused."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def silence(self) -> None:
        """Everything that is open goes silent and stays open; new connections work."""
        with self._lock:
            self._silent |= self._open

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
        self.stop_listening()
        self.cut()
