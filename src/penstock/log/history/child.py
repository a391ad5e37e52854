"""The process that writes histories, and the broker's side of it.

pyarrow and deltalake are loaded there only. The process ends when the broker does, however that
ends; an order that it has begun it may finish. So it holds a lock while it writes, which the
process of the next broker waits for.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from typing import Final

import msgspec

from penstock.log.history.orders import ERRORS, Answer, Order, TableState
from penstock.model.errors import CorruptError, RefusedError, UnavailableError
from penstock.model.limits import FILE_MODE

NICENESS: Final = 10  # readers and publishers go first
IDLE_S: Final = 60.0  # then the process is ended; the next order starts another
_CHILD: Final = "from penstock.log.history.child import main; main()"


class Child:
    """A process that answers lines with lines, started when it is needed. Blocking."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def ask(self, line: bytes) -> bytes:
        """The answer to one line; ChildProcessError if the process died."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            answer = self._ask(line)
            self._timer = threading.Timer(IDLE_S, self.rest)
            self._timer.daemon = True
            self._timer.start()
            return answer

    def _ask(self, line: bytes) -> bytes:
        if self._child is None or self._child.poll() is not None:
            self._child = subprocess.Popen(
                [sys.executable, "-c", self._program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        child = self._child
        assert child.stdin is not None and child.stdout is not None
        try:
            child.stdin.write(line + b"\n")
            child.stdin.flush()
            answer = child.stdout.readline()
        except BrokenPipeError:
            answer = b""
        if not answer:
            raise ChildProcessError(0, f"the process ended with {child.wait()}")
        return answer

    def rest(self) -> None:
        """Let the process end; the next line starts another."""
        with self._lock:
            child, self._child = self._child, None
            if child is not None:
                assert child.stdin is not None and child.stdout is not None
                child.stdin.close()
                child.wait()
                child.stdout.close()

    def close(self) -> None:
        """End the process at once, whatever it does: that is as safe as a crash."""
        child = self._child
        if child is not None:
            child.kill()
        if self._timer is not None:
            self._timer.cancel()
        self.rest()


class HistoryWriter:
    """Has orders carried out in a process of its own. Blocking."""

    def __init__(self) -> None:
        self._child = Child(_CHILD)

    def ask(self, order: Order) -> TableState | None:
        """CorruptError, RefusedError, UnavailableError; OSError if the process died."""
        answer = msgspec.json.decode(self._child.ask(msgspec.json.encode(order)), type=Answer)
        if answer.error:
            raise ERRORS[answer.error](answer.text)
        return answer.state

    def close(self) -> None:
        self._child.close()


class WriterLock:
    """Held from the first write to the end of the process."""

    def __init__(self) -> None:
        self._fds: dict[str, int] = {}

    def take(self, path: str) -> None:
        """Wait until no other process holds it."""
        if path not in self._fds:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
            fcntl.flock(fd, fcntl.LOCK_EX)
            self._fds[path] = fd


def main() -> None:
    """Carry out what the lines of standard input say, until it ends."""
    from penstock.log.history.work import Tables

    os.nice(NICENESS)
    tables = Tables(WriterLock())
    for line in sys.stdin.buffer:
        order: Order = msgspec.json.decode(line, type=Order)
        try:
            answer = Answer(tables.perform(order))
        except CorruptError as broken:
            answer = Answer(error="corrupt", text=str(broken))
        except RefusedError as refused:
            answer = Answer(error="refused", text=str(refused))
        except (UnavailableError, OSError) as away:
            answer = Answer(error="unavailable", text=str(away))
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()
