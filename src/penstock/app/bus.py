"""Bus: integer topics and function handlers, inside one process or between those of a machine.

`publish` only enqueues. Handlers run one by one on a thread of the process that subscribed them;
one that raises is reported and harms nobody.
"""

from __future__ import annotations

import asyncio
import queue
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from penstock.app.sync import Broker
from penstock.broker.bus import NOBODY, BusLoop, Subscriber
from penstock.core.bus import BusTable, Ring, split_id
from penstock.doors.bus import wire
from penstock.doors.bus.wire import FrameReader, encode_frame
from penstock.model.errors import PeerError, RefusedError, TooLarge, UnavailableError
from penstock.model.messages import encode_message

Handler = Callable[[int, bytes], object]  # called with the id and the data

WAITING_MAX: Final = 1_024  # messages that wait for this process's handlers
ANSWER_S_MAX: Final = 30.0
RECEIVE_BYTES: Final = 1 << 16


class Handlers:
    """The handlers of this process, run one by one on a thread of their own."""

    def __init__(self) -> None:
        self._handlers: dict[int, Handler] = {}  # by topic
        self._waiting: queue.Queue[tuple[int, bytes] | None] = queue.Queue(WAITING_MAX)
        self._thread = threading.Thread(target=self._run, name="penstock-bus", daemon=True)
        self._thread.start()

    def set(self, id: int, handler: Handler) -> None:
        self._handlers[split_id(id)[1]] = handler

    def remove(self, id: int) -> None:
        self._handlers.pop(split_id(id)[1], None)

    def call(self, id: int, data: bytes) -> bool:
        """Have the handler called; False if too many wait already."""
        try:
            self._waiting.put_nowait((id, data))
        except queue.Full:
            return False
        return True

    def wait_and_call(self, id: int, data: bytes) -> None:
        """As `call`, but wait for room: what is not read stays where it is bounded."""
        self._waiting.put((id, data))

    def _run(self) -> None:
        while (message := self._waiting.get()) is not None:
            id, data = message
            handler = self._handlers.get(split_id(id)[1])
            if handler is None:
                continue
            try:
                handler(id, data)
            except Exception:
                print(f"penstock bus: the handler of id {id} raised", file=sys.stderr)
                traceback.print_exc()

    def close(self) -> None:
        self._waiting.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()


class LockedRing(Ring):
    """A ring that any thread may put into."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    def put(self, id: int, data: bytes) -> None:
        with self._lock:
            super().put(id, data)

    def peek(self) -> list[tuple[int, bytes]]:
        with self._lock:
            return super().peek()

    def drop_first(self, count: int) -> None:
        with self._lock:
            super().drop_first(count)


class Bus:
    """A bus inside this process. With a Broker its messages are kept in the topic `bus`."""

    def __init__(self, broker: Broker | None = None) -> None:
        self._broker = broker if broker is not None else Broker.memory()
        self._owns_broker = broker is None
        self._handlers = Handlers()
        self._table: BusTable[Subscriber] = BusTable()
        self._ring = LockedRing()
        self._is_closed = False
        self._loop: BusLoop = self._broker._call(self._open())

    @staticmethod
    def connect(path: str | Path) -> RemoteBus:
        """The bus of a broker that runs with `--bus PATH`."""
        return RemoteBus(path)

    async def _open(self) -> BusLoop:
        self._asyncio = asyncio.get_running_loop()
        loop = BusLoop(self._broker._broker.engine, self._table, self._ring, _nobody)
        await loop.open()
        return loop

    def subscribe(self, id: int, handler: Handler) -> None:
        """Have `handler(id, data)` called; a process has one handler for each topic."""
        self._check_open()
        _check_handler(handler)
        self._broker._call(self._change(self._table.subscribe, id))
        self._handlers.set(id, handler)

    def unsubscribe(self, id: int) -> None:
        self._check_open()
        self._broker._call(self._change(self._table.unsubscribe, id))
        self._handlers.remove(id)

    async def _change(self, act: Callable[[Subscriber, int], None], id: int) -> None:
        """On the loop, which reads the table too."""
        act(self._handlers, id)

    def publish(self, id: int, data: object) -> None:
        """Enqueue, and return at once; RefusedError when 256 messages wait."""
        self._check_open()
        self._ring.put(id, encode_message(data)[0])
        self._asyncio.call_soon_threadsafe(self._loop.wake)

    def _check_open(self) -> None:
        if self._is_closed:
            raise UnavailableError("the bus is closed: make another")

    def close(self) -> None:
        """Store what waits, run the handlers it calls, then end. Safe to call twice."""
        if self._is_closed:
            return
        self._is_closed = True
        self._broker._call(self._loop.close())
        self._handlers.close()
        if self._owns_broker:
            self._broker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class RemoteBus:
    """A process on the bus of a broker; the same methods as Bus. Usable from several threads."""

    def __init__(self, path: str | Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(str(path))
        except OSError as failed:
            self._socket.close()
            raise UnavailableError(
                f"there is no bus at {str(path)!r} ({failed.strerror or failed}): "
                "start `penstock serve --bus PATH`"
            ) from failed
        self._handlers = Handlers()
        self._asking = threading.Lock()
        self._answers: queue.SimpleQueue[wire.Frame | None] = queue.SimpleQueue()
        self._is_closed = False
        self._listener = threading.Thread(target=self._listen, name="penstock-bus-in", daemon=True)
        self._listener.start()

    def subscribe(self, id: int, handler: Handler) -> None:
        """Have `handler(id, data)` called; a process has one handler for each topic."""
        _check_handler(handler)
        self._ask(wire.SUBSCRIBE, id, b"", lambda: self._handlers.set(id, handler))

    def unsubscribe(self, id: int) -> None:
        self._ask(wire.UNSUBSCRIBE, id, b"", lambda: self._handlers.remove(id))

    def publish(self, id: int, data: object) -> None:
        """Enqueue at the broker; RefusedError when 256 messages wait there."""
        payload = encode_message(data)[0]
        if len(payload) > wire.DATA_BYTES_MAX:
            raise TooLarge(
                f"{len(payload)} bytes are too many for the bus: at most {wire.DATA_BYTES_MAX}"
            )
        self._ask(wire.PUBLISH, id, payload, lambda: None)

    def _ask(self, kind: int, id: int, data: bytes, on_done: Callable[[], None]) -> None:
        split_id(id)
        with self._asking:
            if self._is_closed:
                raise UnavailableError("the bus is closed, or its broker is gone: connect again")
            try:
                self._socket.sendall(encode_frame(kind, id, data))
            except OSError as failed:
                raise UnavailableError(f"the bus is gone ({failed}): connect again") from failed
            try:
                answer = self._answers.get(timeout=ANSWER_S_MAX)
            except queue.Empty:
                raise UnavailableError("the bus does not answer: connect again") from None
            if answer is None:
                raise UnavailableError("the broker of the bus is gone: connect again")
            if answer.kind == wire.REFUSED:
                raise RefusedError(answer.data.decode())
            on_done()

    def _listen(self) -> None:
        reader = FrameReader()
        while True:
            try:
                data = self._socket.recv(RECEIVE_BYTES)
                frames = reader.feed(data)
            except (OSError, PeerError):
                data, frames = b"", []
            for frame in frames:
                if frame.kind == wire.CALL:
                    self._handlers.wait_and_call(frame.id, frame.data)
                else:
                    self._answers.put(frame)
            if not data:
                self._is_closed = True
                self._answers.put(None)
                return

    def close(self) -> None:
        """Leave the bus: this process is subscribed to nothing. Safe to call twice."""
        self._is_closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._listener.join()
        self._socket.close()
        self._handlers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _check_handler(handler: Handler) -> None:
    if not callable(handler):
        raise RefusedError(f"{handler!r} is no function: a handler is called with (id, data)")


def _nobody(id: int) -> None:
    print(NOBODY, flush=True)
