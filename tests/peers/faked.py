"""A broker process whose wall clock and whose machine's clock are set from outside."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

from tests.doors.served import Served
from tests.http.asking import Asking
from tests.powerloss.run import compile_library

DAY_S = 86_400
JUMPS = {
    "hour ahead": 3600,
    "hour back": -3600,
    "years ahead": 3652 * DAY_S,
    "day back": -DAY_S,
}

SETTINGS = {
    "PENSTOCK_LOG__UPKEEP_EVERY": "200ms",
    "PENSTOCK_MQTT__WILL_GRACE_S": "1",
}


def compile_faked_clock(directory: Path) -> Path:
    return compile_library(Path(__file__).with_name("faked_clock.c"), directory / "faked_clock.so")


class Faked:
    """`penstock serve` under a preloaded library; its clocks run at their usual rate."""

    def __init__(self, directory: Path, library: Path) -> None:
        self._clock = directory / "clock"
        self._boot_id = directory / "boot_id"
        self._wall_ns = self._machine_ns = 0
        self._boots = 0
        self.reboot()
        env = os.environ | SETTINGS
        env |= {"LD_PRELOAD": str(library), "FAKED_CLOCK": str(self._clock)}
        env |= {"FAKED_BOOT_ID": str(self._boot_id)}
        self.broker = Served(directory / "data", env=env)

    def _set(self) -> None:
        data = struct.pack("=qq", self._wall_ns, self._machine_ns)
        with open(self._clock, "r+b" if self._clock.exists() else "wb") as file:
            file.write(data)

    def jump(self, by_s: int) -> None:
        """Somebody sets the wall clock."""
        self._wall_ns += by_s * 10**9
        self._set()

    def pass_time(self, by_s: int) -> None:
        """As if so much time had passed; timers of the event loop do not notice."""
        self._machine_ns += by_s * 10**9
        self.jump(by_s)

    def reboot(self) -> None:
        """The next start of the broker is on a machine that was restarted a minute ago."""
        self._boots += 1
        self._boot_id.write_text(f"boot-{self._boots}\n")
        self._machine_ns = 60 * 10**9 - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self._set()

    @property
    def wall_us(self) -> int:
        return (time.time_ns() + self._wall_ns) // 1_000

    def ask(self) -> Asking:
        return Asking(self.broker.http_port)
