"""The `penstock` commands of the demonstration, as processes that never outlive it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from demo.story import Failed

STOP_S_MAX: Final = 20.0
TAIL_LINES: Final = 15
JAVA_SAYS: Final = "WARNING: Using incubator modules"  # at every start, and it means nothing


class Command:
    """One running `penstock …`; what it prints goes into a file."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self._name = " ".join(arguments[:3])
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "penstock.cli.main", *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    def wait_for_line(self, start: str, deadline_s: float) -> list[str]:
        """What was printed up to a line that begins so."""
        while True:
            lines = self._lines()
            if any(line.startswith(start) for line in lines):
                return lines
            self.check_running()
            if time.monotonic() > deadline_s:
                raise Failed(f"`{self._name}` took too long", self._tail())
            time.sleep(0.05)

    def check_running(self) -> None:
        code = self._process.poll()
        if code is not None:
            raise Failed(f"`{self._name}` ended with {code}", self._tail())

    def wait_done(self, deadline_s: float) -> list[str]:
        """Until it ends by itself, well; what it printed."""
        try:
            code = self._process.wait(max(deadline_s - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            raise Failed(f"`{self._name}` took too long", self._tail()) from None
        if code != 0:
            raise Failed(f"`{self._name}` ended with {code}", self._tail())
        return self._lines()

    def interrupt(self) -> None:
        """As Ctrl-C does."""
        self._process.send_signal(signal.SIGINT)

    def stop(self) -> None:
        """Whatever it does, it ends."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _tail(self) -> list[str]:
        return self._lines()[-TAIL_LINES:]

    def _lines(self) -> list[str]:
        lines = self._log.read_text(errors="replace").splitlines()
        return [line for line in lines if not line.startswith(JAVA_SAYS)]
