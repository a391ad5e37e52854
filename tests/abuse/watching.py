"""A broker's memory and a healthy HTTP client's worst wait while others attack it."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.model.limits import MIB
from tests.doors.served import Served
from tests.http.asking import Asking

WAIT_S_MAX = 2.0  # far above what a healthy client waits, far below a standstill
PATIENCE_S = 300.0


class Watching:
    """One request after the other is answered while the block runs."""

    def __init__(self, served: Served) -> None:
        self._status = Path(f"/proc/{served.pid}/status")
        self._client = Asking(served.http_port)
        self._client._socket.settimeout(PATIENCE_S)
        self._is_over = False
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self.idle_s = max(self._ask() for _ in range(20))
        self.answers = 0  # given to the healthy client during the attack
        self.worst_s = 0.0  # it waited for one of them
        self._before_bytes = served.memory_bytes
        Path(f"/proc/{served.pid}/clear_refs").write_text("5")  # the peak begins anew (proc(5))

    def _ask(self) -> float:
        begin_s = time.monotonic()
        assert self._client.ask("GET", "/healthz").status == 200
        return time.monotonic() - begin_s

    def _run(self) -> None:
        try:
            while not self._is_over:
                self.worst_s = max(self.worst_s, self._ask())
                self.answers += 1
        except BaseException as failed:
            self._failed = failed

    @property
    def grown_bytes(self) -> int:
        """What the broker had in memory at most, beyond what it had before."""
        for line in self._status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return max(0, int(line.split()[1]) * 1024 - self._before_bytes)
        raise AssertionError("no VmHWM")

    def check(self, grown_bytes_max: int) -> None:
        """Neither the memory nor the healthy client had to suffer much."""
        assert self.grown_bytes < grown_bytes_max, self
        assert self.answers > 0, self
        assert self.worst_s < max(WAIT_S_MAX, 20 * self.idle_s), self

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over = True
        self._thread.join()
        self._client.close()
        print(self)
        if kind is None:
            assert self._failed is None, f"the healthy client was not served: {self._failed!r}"

    def __str__(self) -> str:
        return (
            f"memory +{self.grown_bytes / MIB:.0f} MiB; healthy client: {self.answers} answers, "
            f"worst wait {self.worst_s * 1e3:.0f} ms (idle {self.idle_s * 1e3:.0f} ms)"
        )
