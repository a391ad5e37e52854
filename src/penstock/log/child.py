"""A process of its own for work that would take the interpreter from the event loop.

It is given lines and answers each with one. It ends when the broker does, however that ends.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Final

NICENESS: Final = 10  # of such a process: readers and publishers go first
IDLE_S: Final = 60.0  # then it is ended; the next line starts another


class Child:
    """A process that answers lines with lines, started when it is needed. Blocking."""

    def __init__(self, program: str) -> None:
        self._program = program
        self.process: subprocess.Popen[bytes] | None = None
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
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen(
                [sys.executable, "-c", self._program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        child = self.process
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
            if self._timer is not None:
                self._timer.cancel()
            child, self.process = self.process, None
            if child is not None:
                assert child.stdin is not None and child.stdout is not None
                child.stdin.close()
                child.wait()
                child.stdout.close()

    def close(self) -> None:
        """End the process at once, whatever it does: that is as safe as a crash."""
        child = self.process
        if child is not None:
            child.kill()
        self.rest()
