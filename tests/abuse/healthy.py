"""A healthy client that is served while others attack: its worst wait, and the broker's memory.

What counts as a wait is how long the broker's event loop computed before it answered: that is the
same on a busy machine.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from penstock.model.limits import MIB
from tests.doors.served import Served
from tests.doors.wire import Wire
from tests.http.asking import Asking

BUSY_S_MAX = 2.0  # far above what a healthy client waits, far below a standstill
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PATIENCE_S = 300.0


class Client(Protocol):
    """Asks for something small, and waits for it."""

    def go_round(self) -> None: ...

    def close(self) -> None: ...


class MqttClient:
    """Publishes to itself."""

    def __init__(self, port: int, client_id: str) -> None:
        self._wire = Wire(port, client_id)
        self._wire.connect()
        self._wire.subscribe(client_id, qos=1)
        self._name = client_id

    def go_round(self) -> None:
        self._wire.publish(self._name, b"x", 1)
        self._wire.receive()

    def close(self) -> None:
        self._wire.close()


class HttpClient:
    """Asks whether the broker is alive."""

    def __init__(self, port: int) -> None:
        self._asking = Asking(port)
        self._asking._socket.settimeout(PATIENCE_S)

    def go_round(self) -> None:
        assert self._asking.ask("GET", "/healthz").status == 200

    def close(self) -> None:
        self._asking.close()


def busy_s(pid: int) -> float:
    """How long the event loop of a broker has computed so far (proc_pid_stat(5), utime, stime)."""
    fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def queued_bytes(port: int) -> int:
    """What the system holds of what a broker sent from this port, and nobody took (proc_net(5))."""
    found = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, _, queues, *_ = line.split()
        if int(local.partition(":")[2], 16) == port:
            found += int(queues.partition(":")[0], 16)
    return found


class Beside:
    """The client goes round again and again while the block runs."""

    def __init__(self, served: Served, client: Client) -> None:
        self._client = client
        self._pid = served.pid
        self._status = Path(f"/proc/{served.pid}/status")
        self._is_over = False
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self.idle_s = max(self._round() for _ in range(20))
        self.rounds = 0  # during the attack
        self.worst_s = 0.0  # the longest of them took
        self.worst_busy_s = 0.0  # so long the broker computed during one of them
        self.took_s = 0.0  # the attack
        self._begin_s = 0.0
        self._before_bytes = served.memory_bytes
        Path(f"/proc/{served.pid}/clear_refs").write_text("5")  # the peak begins anew (proc(5))

    @classmethod
    def mqtt(cls, served: Served, client_id: str = "beside") -> Self:
        return cls(served, MqttClient(served.port, client_id))

    @classmethod
    def http(cls, served: Served) -> Self:
        return cls(served, HttpClient(served.http_port))

    def _round(self) -> float:
        begin_s = time.monotonic()
        self._client.go_round()
        return time.monotonic() - begin_s

    def _run(self) -> None:
        try:
            while not self._is_over:
                busy_before_s = busy_s(self._pid)
                self.worst_s = max(self.worst_s, self._round())
                self.worst_busy_s = max(self.worst_busy_s, busy_s(self._pid) - busy_before_s)
                self.rounds += 1
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
        assert self.rounds > 0, self
        assert self.worst_busy_s < BUSY_S_MAX, self

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
        self._is_over = True
        self._thread.join()
        self._client.close()
        print(self)
        if kind is None:
            assert self._failed is None, f"the healthy client was not served: {self._failed!r}"

    def __str__(self) -> str:
        return (
            f"{self.took_s:.2f} s, memory +{self.grown_bytes / MIB:.0f} MiB; healthy client: "
            f"{self.rounds} rounds, worst wait {self.worst_s * 1e3:.0f} ms "
            f"(idle {self.idle_s * 1e3:.0f} ms), of which the broker computed up to "
            f"{self.worst_busy_s * 1e3:.0f} ms"
        )
