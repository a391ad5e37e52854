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
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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
CLOSED: Final = "the bus is closed, or its broker is gone: connect again"
RECEIVE_BYTES: Final = 1 << 16


class Handlers:
    """The handlers of this process, run one by one on a thread of their own."""

    def __init__(self) -> None:
        self._handlers: dict[int, Handler] = {}  # by topic
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._changed = threading.Condition()
        self._is_asking = False  # a handler waits for an answer that comes behind calls
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="penstock-bus", daemon=True)
        self._thread.start()

    def set(self, id: int, handler: Handler) -> None:
        self._handlers[split_id(id)[1]] = handler

    def remove(self, id: int) -> None:
        self._handlers.pop(split_id(id)[1], None)

    def call(self, id: int, data: bytes) -> bool:
        """Have the handler called; False if too many wait already."""
        with self._changed:
            if len(self._waiting) >= WAITING_MAX:
                return False
            self._waiting.append((id, data))
            self._changed.notify_all()
        return True

    def wait_and_call(self, id: int, data: bytes) -> None:
        """As `call`, but wait for room: what is not read stays where it is bounded."""
        with self._changed:
            self._changed.wait_for(self._may_come)
            if not self._is_closed:
                self._waiting.append((id, data))
                self._changed.notify_all()

    def _may_come(self) -> bool:
        # A handler that asks would wait for ever behind calls that wait for it. So much more may
        # come meanwhile as the broker holds for one process.
        return len(self._waiting) < WAITING_MAX or self._is_asking or self._is_closed

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Around a question whose answer comes on the connection that brings calls."""
        if threading.current_thread() is not self._thread:
            yield
            return
        self._set_asking(True)
        try:
            yield
        finally:
            self._set_asking(False)

    def _set_asking(self, is_asking: bool) -> None:
        with self._changed:
            self._is_asking = is_asking
            self._changed.notify_all()

    def _run(self) -> None:
        while (message := self._next()) is not None:
            id, data = message
            handler = self._handlers.get(split_id(id)[1])
            if handler is None:
                continue
            try:
                handler(id, data)
            except Exception:
                print(f"penstock bus: the handler of id {id} raised", file=sys.stderr)
                traceback.print_exc()

    def _next(self) -> tuple[int, bytes] | None:
        """The next message; None once it is closed and nothing waits."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            if not self._waiting:
                return None
            message = self._waiting.popleft()
            self._changed.notify_all()
            return message

    def close(self) -> None:
        """Call the handlers of what waits, then end."""
        self.stop_waiting()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def stop_waiting(self) -> None:
        """Accept no more messages; wake everyone who waits for room."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


class LockedRing(Ring):
    """A ring that any thread may put into."""

    def __init__(self, payload_bytes_max: int) -> None:
        super().__init__(payload_bytes_max=payload_bytes_max)
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
        settings = self._broker._broker.engine.settings
        self._ring = LockedRing(settings.payload_bytes_max)
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
        """Enqueue, and return at once; RefusedError if 256 wait or it is too large."""
        self._check_open()
        self._ring.put(id, encode_message(data)[0])
        self._asyncio.call_soon_threadsafe(self._loop.wake)

    def _check_open(self) -> None:
        if self._is_closed:
            raise UnavailableError("the bus is closed: connect again")

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
    """A process on the bus of a broker; the same methods as Bus. Usable from several threads.

    Calls come on one connection, messages go out on another: a handler may publish however many
    calls wait for it.
    """

    def __init__(self, path: str | Path) -> None:
        self._publishing = Asking(path)
        self._socket = _connect(path)
        self._handlers = Handlers()
        self._asking = threading.Lock()
        self._answers: queue.SimpleQueue[wire.Frame | None] = queue.SimpleQueue()
        self._is_closed = False
        self._listener = threading.Thread(target=self._listen, name="penstock-bus-in", daemon=True)
        self._listener.start()

    def subscribe(self, id: int, handler: Handler) -> None:
        """Have `handler(id, data)` called; a process has one handler for each topic."""
        _check_handler(handler)
        self._ask(wire.SUBSCRIBE, id, lambda: self._handlers.set(id, handler))

    def unsubscribe(self, id: int) -> None:
        self._ask(wire.UNSUBSCRIBE, id, lambda: self._handlers.remove(id))

    def publish(self, id: int, data: object) -> None:
        """Enqueue at the broker; RefusedError when 256 messages wait there."""
        payload = encode_message(data)[0]
        if len(payload) > wire.DATA_BYTES_MAX:
            raise TooLarge(
                f"{len(payload)} bytes are too large for the bus: at most {wire.DATA_BYTES_MAX}"
            )
        split_id(id)
        if self._is_closed:
            raise UnavailableError(CLOSED)
        _check_answer(self._publishing.ask(encode_frame(wire.PUBLISH, id, payload)))

    def _ask(self, kind: int, id: int, on_done: Callable[[], None]) -> None:
        split_id(id)
        with self._asking, self._handlers.asking():
            if self._is_closed:
                raise UnavailableError(CLOSED)
            try:
                self._socket.sendall(encode_frame(kind, id))
            except OSError as failed:
                raise UnavailableError(f"the bus is gone ({failed}): connect again") from failed
            try:
                answer = self._answers.get(timeout=ANSWER_S_MAX)
            except queue.Empty:
                self.close()  # its answer would be taken for that of the next question
                raise UnavailableError("the bus does not answer: connect again") from None
            _check_answer(answer)
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
        self._publishing.close()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._handlers.stop_waiting()
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


class Asking:
    """A connection for questions: one at a time, each followed by its answer."""

    def __init__(self, path: str | Path) -> None:
        self._socket = _connect(path)
        self._socket.settimeout(ANSWER_S_MAX)
        self._reader = FrameReader()
        self._lock = threading.Lock()

    def ask(self, frame: bytes) -> wire.Frame | None:
        """The answer; None if the broker is gone, which a connection does not survive."""
        with self._lock:
            try:
                self._socket.sendall(frame)
                while data := self._socket.recv(RECEIVE_BYTES):
                    for answer in self._reader.feed(data):
                        return answer
            except TimeoutError:
                self._socket.close()
                raise UnavailableError("the bus does not answer: connect again") from None
            except (OSError, PeerError):
                pass
            self._socket.close()
            return None

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._socket.close()


def _connect(path: str | Path) -> socket.socket:
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        one.connect(str(path))
    except OSError as failed:
        one.close()
        raise UnavailableError(
            f"there is no bus at {str(path)!r} ({failed.strerror or failed}): "
            "start `penstock serve --bus PATH`"
        ) from failed
    return one


def _check_answer(answer: wire.Frame | None) -> None:
    if answer is None:
        raise UnavailableError("the broker closed the bus connection: connect again")
    if answer.kind == wire.REFUSED:
        raise wire.decode_refusal(answer.data)


def _check_handler(handler: Handler) -> None:
    if not callable(handler):
        raise RefusedError(f"{handler!r} is not a function: a handler is called with (id, data)")


def _nobody(id: int) -> None:
    print(NOBODY, flush=True)
