"""A healthy client that is served while others attack, and what that costs the broker."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

from tests.doors.served import Served
from tests.doors.wire import Wire


class Beside:
    """One message after the other goes round while the block runs; the memory is looked at."""

    def __init__(self, served: Served, client_id: str = "beside") -> None:
        self._served = served
        self._client = Wire(served.port, client_id)
        self._client.connect()
        self._client.subscribe(client_id, qos=1)
        self._name = client_id
        self._is_over = False
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self.idle_s = max(self._round() for _ in range(20))
        self.rounds = 0  # messages that went round during the attack
        self.worst_s = 0.0  # the longest of them took
        self.grown_bytes = 0  # memory of the broker at its highest
        self._before_bytes = served.memory_bytes
        self._begin_s = 0.0
        self.took_s = 0.0

    def _round(self) -> float:
        begin_s = time.monotonic()
        self._client.publish(self._name, b"x", 1)
        self._client.receive()
        return time.monotonic() - begin_s

    def _run(self) -> None:
        try:
            while not self._is_over:
                self.worst_s = max(self.worst_s, self._round())
                self.rounds += 1
                self.look()
        except BaseException as failed:
            self._failed = failed

    def look(self) -> int:
        grown = self._served.memory_bytes - self._before_bytes
        self.grown_bytes = max(self.grown_bytes, grown)
        return self.grown_bytes

    def __enter__(self) -> Self:
        self._begin_s = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.took_s = time.monotonic() - self._begin_s
        self.look()
        self._is_over = True
        self._thread.join()
        self._client.close()
        print(self)
        if kind is None:
            assert self._failed is None, f"the healthy client was not served: {self._failed!r}"

    def __str__(self) -> str:
        return (
            f"{self.took_s:.2f} s, memory +{self.grown_bytes / 1e6:.0f} MB; healthy client: "
            f"{self.rounds} rounds, worst wait {self.worst_s * 1e3:.0f} ms "
            f"(idle {self.idle_s * 1e3:.0f} ms)"
        )
