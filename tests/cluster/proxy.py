"""A network between two programs that can be cut, in both directions or in one.

Bytes that are on their way while it is cut are not lost: they arrive late, as TCP makes them do.
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

CHUNK_BYTES = 65536
LOOK_S = 0.02

Dial = Callable[[], socket.socket]


class _Half:
    """What one side said and the other has not heard yet."""

    def __init__(self, source: socket.socket, target: socket.socket, *, to_server: bool) -> None:
        self.source = source
        self.target = target
        self.to_server = to_server
        self.waiting = b""
        self.has_ended = False  # the source closed; told to the target behind what waits


class Proxy:
    """Listens on 127.0.0.1 and passes everything on to what `dial` connects to."""

    def __init__(self, dial: Dial, port: int = 0) -> None:
        self._dial = dial
        self._listener = socket.create_server(("127.0.0.1", port))
        self._listener.settimeout(0)
        self.port: int = self._listener.getsockname()[1]
        self.is_cut_to_server = False
        self.is_cut_to_client = False
        self._halves: list[_Half] = []
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_closed.set()
        self._thread.join()

    def cut(self, *, to_server: bool = True, to_client: bool = True) -> None:
        self.is_cut_to_server, self.is_cut_to_client = to_server, to_client

    def heal(self) -> None:
        self.cut(to_server=False, to_client=False)

    def _is_cut(self, half: _Half) -> bool:
        return self.is_cut_to_server if half.to_server else self.is_cut_to_client

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._is_closed.is_set():
                for key, _ in selector.select(LOOK_S):
                    if key.data is None:
                        self._accept(selector)
                    elif self._is_cut(key.data) or len(key.data.waiting) > CHUNK_BYTES:
                        selector.unregister(key.fileobj)  # read again once it can be passed on
                    else:
                        self._read(selector, key.data)
                for half in list(self._halves):
                    self._pass_on(selector, half)
        for half in self._halves:
            half.source.close()
        self._listener.close()

    def _accept(self, selector: selectors.BaseSelector) -> None:
        client, _ = self._listener.accept()
        try:
            server = self._dial()
        except OSError:
            client.close()
            return
        for one in (client, server):
            one.settimeout(0)
            with suppress(OSError):  # not of TCP
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        halves = (
            _Half(client, server, to_server=True),
            _Half(server, client, to_server=False),
        )
        for half in halves:
            self._halves.append(half)
            selector.register(half.source, selectors.EVENT_READ, half)

    def _read(self, selector: selectors.BaseSelector, half: _Half) -> None:
        try:
            found = half.source.recv(CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            found = b""
        half.waiting += found
        if not found:
            half.has_ended = True
            selector.unregister(half.source)

    def _pass_on(self, selector: selectors.BaseSelector, half: _Half) -> None:
        if self._is_cut(half):
            return
        try:
            if half.waiting:
                half.waiting = half.waiting[half.target.send(half.waiting) :]
        except BlockingIOError:
            return
        except OSError:
            half.waiting, half.has_ended = b"", True
        if half.has_ended and not half.waiting:
            self._end(selector, half)
        elif not half.has_ended and half.source not in selector.get_map():
            selector.register(half.source, selectors.EVENT_READ, half)

    def _end(self, selector: selectors.BaseSelector, half: _Half) -> None:
        self._halves.remove(half)
        with suppress(OSError):
            half.target.shutdown(socket.SHUT_WR)
        back = [one for one in self._halves if one.source is half.target]
        if not back:  # the other direction has ended before
            for one in (half.source, half.target):
                if one in selector.get_map():
                    selector.unregister(one)
                one.close()


def dial_tcp(port: int) -> Dial:
    return lambda: socket.create_connection(("127.0.0.1", port), 10)


def dial_unix(path: str) -> Dial:
    def dial() -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        made.connect(path)
        return made

    return dial
