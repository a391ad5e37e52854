"""The process that reads history, as the broker sees it: orders out, answers in.

Invariant: no order keeps anything waiting but who gave it. Orders are short and few enough for the
pipe, so writing one never blocks; a thread of their own waits for answers; who waits too long gets
an UnavailableError, and a process that answers nothing at all in that time is replaced.
"""

from __future__ import annotations

import asyncio
import fcntl
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from penstock.log.files.segment import decode_batches
from penstock.log.format.batch import Batch
from penstock.log.history.place import HistoryRoot
from penstock.log.history.reading.orders import FRAME, Answer, Order
from penstock.log.interface import LogIdentity
from penstock.model.errors import CorruptError, UnavailableError
from penstock.model.limits import MIB

_CHILD: Final = "from penstock.log.history.reading.serving import main; main()"
ORDERS_MAX: Final = 64  # at once; a pipe holds 64 KiB, and an order takes less than 1 KiB
ANSWER_S_MAX: Final = 30.0  # a store that is slower counts as away
ALL_ROWS: Final = range(0)  # of a group
PIPE_BYTES: Final = MIB  # of answers that nobody has read yet
IDLE_S: Final = 60.0  # then the process is ended; the next order starts another


class HistoryMissing(Exception):
    """A file is not in the store."""


class HistoryProcess:
    """Starts the process when it is needed. Used on the event loop only."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, root: HistoryRoot, answer_s_max: float = ANSWER_S_MAX
    ) -> None:
        self.root = root
        self.orders = 0  # that were given
        self.failures = 0  # orders without an answer, or with an error
        self._loop = loop
        self._answer_s_max = answer_s_max
        self._child: subprocess.Popen[bytes] | None = None
        self._waiting: dict[int, asyncio.Future[tuple[Answer, list[Batch]]]] = {}
        self._answered_s = 0.0  # when the last answer came
        self._idle: asyncio.TimerHandle | None = None
        self._is_closed = False

    @property
    def has_room(self) -> bool:
        """Whether orders that nobody waits for yet leave enough for those who do."""
        return len(self._waiting) < ORDERS_MAX // 2

    async def ask(
        self,
        what: str,
        log: LogIdentity,
        file: str = "",
        group: int = 0,
        rows: range = ALL_ROWS,
        *,
        life: str = "",
    ) -> tuple[Answer, list[Batch]]:
        """The answer and the batches that came with it.

        UnavailableError if there is none in time; HistoryMissing; CorruptError.
        """
        self.orders += 1
        order = Order(
            self.orders, what, log, file, group, first=rows.start, count=len(rows), life=life
        )
        try:
            answer, batches = await self._ask(order)
        except UnavailableError:
            self.failures += 1
            raise
        if answer.is_missing:
            raise HistoryMissing(answer.error)
        if answer.is_corrupt:
            self.failures += 1
            raise CorruptError(answer.error)
        if answer.error:
            self.failures += 1
            raise UnavailableError(f"the history cannot be read: {answer.error}")
        return answer, batches

    async def _ask(self, order: Order) -> tuple[Answer, list[Batch]]:
        if self._is_closed:
            raise UnavailableError("the broker is closed: open it again")
        if len(self._waiting) >= ORDERS_MAX:
            raise UnavailableError(
                f"{ORDERS_MAX} reads of the history are waiting for the store: try again"
            )
        child = self._running()
        began_s = self._loop.time()
        future = self._waiting[order.number] = self._loop.create_future()
        try:
            assert child.stdin is not None
            child.stdin.write(msgspec.json.encode(order) + b"\n")
            child.stdin.flush()
            return await asyncio.wait_for(future, self._answer_s_max)
        except (TimeoutError, OSError):
            pass
        finally:
            self._waiting.pop(order.number, None)
            self._rest()
        # Not in the handler: whoever waits in one keeps its exception.
        if child is self._child and self._answered_s < began_s:
            self._end(child)
        raise UnavailableError(
            f"the history at {self.root.url} gave no answer within {self._answer_s_max:g} s: "
            "try again, or look after the store"
        )

    def _running(self) -> subprocess.Popen[bytes]:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._child is None or self._child.poll() is not None:
            child = self._child = subprocess.Popen(
                [sys.executable, "-c", _CHILD],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=PIPE_BYTES,
            )
            assert child.stdin is not None and child.stdout is not None
            with suppress(OSError):  # a user may have used up what the system allows
                fcntl.fcntl(child.stdout, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
            child.stdin.write(msgspec.json.encode(self.root) + b"\n")
            listen = threading.Thread(
                target=self._listen, args=(child,), name="penstock-history", daemon=True
            )
            listen.start()
        return self._child

    def _rest(self) -> None:
        """Nobody waits: the process may end after a while."""
        if not self._waiting and self._idle is None and not self._is_closed:
            self._idle = self._loop.call_later(IDLE_S, self.end)

    def _listen(self, child: subprocess.Popen[bytes]) -> None:
        """The thread that waits for answers, and decodes them, until the process ends."""
        assert child.stdout is not None
        with child.stdout as pipe:
            while len(head := pipe.read(FRAME.size)) == FRAME.size:
                length, data_length = FRAME.unpack(head)
                answer = msgspec.json.decode(pipe.read(length), type=Answer)
                batches: list[Batch] = []
                try:
                    batches = decode_batches(pipe.read(data_length), 0, Path(answer.file))
                except CorruptError as broken:
                    answer.error, answer.is_corrupt = str(broken), True
                self._tell(child, answer, batches)
        self._tell(child, None, [])
        child.wait()

    def _tell(
        self, child: subprocess.Popen[bytes], answer: Answer | None, batches: list[Batch]
    ) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self._hear, child, answer, batches)

    def _hear(
        self, child: subprocess.Popen[bytes], answer: Answer | None, batches: list[Batch]
    ) -> None:
        if answer is not None:
            self._answered_s = self._loop.time()
            future = self._waiting.get(answer.number)
            if future is not None and not future.done():
                future.set_result((answer, batches))
        elif child is self._child:  # it ended with orders of somebody, or by itself
            self._end(child)

    def _end(self, child: subprocess.Popen[bytes]) -> None:
        """The process is of no use: those who wait are told, the next order starts another."""
        self._child = None
        child.kill()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(
                    UnavailableError("the process that reads the history ended: try again")
                )

    def end(self) -> None:
        """End the process; the next order starts another."""
        self._idle = None
        if self._child is not None:
            self._end(self._child)

    def close(self) -> None:
        self._is_closed = True
        if self._idle is not None:
            self._idle.cancel()
        self.end()
