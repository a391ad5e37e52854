"""A real `penstock serve` process, started on a free port, stopped or killed by its id."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from tests import on_kafka
from tests.waiting import WAIT_S


class Served:
    """A broker process on a data directory; `restart` opens the same directory again."""

    def __init__(
        self,
        data: Path,
        *flags: str,
        program: Path | None = None,
        env: dict[str, str] | None = None,
    ) -> None:
        self.data = data
        self.env = env
        self._program = ["-m", "penstock.cli.main"] if program is None else [str(program)]
        self.port = 0
        self.http_port = 0
        self.ports: dict[str, int] = {}  # by scheme, of this start
        self._flags = flags
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> Self:
        command = [sys.executable, *self._program, "serve", "--data", str(self.data)]
        self._process = subprocess.Popen(
            [
                *(*command, "--mqtt", f"127.0.0.1:{self.port}"),
                *("--http", f"127.0.0.1:{self.http_port}", *self._flags),
            ],
            stdout=subprocess.PIPE,
            text=True,
            env={**(self.env or os.environ), **on_kafka.environment_of(self.data)},
        )
        weakref.finalize(self, self._process.kill)  # a test that failed leaves nothing running
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("listening:") and "://" in line:
                scheme, _, port = line.removeprefix("listening: ").rpartition(":")
                self.ports[scheme.partition("://")[0]] = int(port)
            if line.startswith("ready"):
                self.port = self.ports.get("mqtt", 0)
                self.http_port = self.ports.get("http", 0)
                return self
        raise AssertionError(f"the broker ended with {self._process.wait()}")

    def lines(self) -> Iterator[str]:
        """What it prints from now on, as it comes."""
        assert self._process is not None and self._process.stdout is not None
        yield from self._process.stdout

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def memory_bytes(self) -> int:
        """What the process has in memory now."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmRSS")

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL, -signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM, 0)

    def revive(self) -> None:
        """Start it again unless it runs."""
        if self._process is not None and self._process.poll() is not None:
            self._process = None
        if self._process is None:
            self.start()

    def wait_killed(self) -> None:
        """Until the broker has killed itself, as some are made to."""
        self._end(None, -signal.SIGKILL)

    def wait_ended(self, code: int) -> None:
        """Until the broker has ended by itself with this exit code."""
        self._end(None, code)

    def _end(self, how: signal.Signals | None, code: int) -> None:
        process, self._process = self._process, None
        assert process is not None and process.stdout is not None
        if how is not None:
            process.send_signal(how)
        try:
            assert process.wait(WAIT_S) == code
        finally:
            process.kill()  # if it still runs, the next test could not have its port
            process.wait()
            process.stdout.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self.kill() if kind else self.stop()
