"""The process that writes histories, and the broker's side of it.

pyarrow and deltalake are loaded there only. The process ends when the broker does, however that
ends; an order that it has begun it may finish. So it holds a lock while it writes, which the
process of the next broker waits for.
"""

from __future__ import annotations

import fcntl
import os
import sys
from typing import Final

import msgspec

from penstock.log.child import NICENESS, Child
from penstock.log.history.orders import ERRORS, Answer, Order, TableState
from penstock.model.errors import CorruptError, RefusedError, UnavailableError
from penstock.model.limits import FILE_MODE

_CHILD: Final = "from penstock.log.history.child import main; main()"


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
        try:
            sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
            sys.stdout.buffer.flush()
        except BrokenPipeError:  # the broker ended; its next start finds what was written
            os._exit(1)
