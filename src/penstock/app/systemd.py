"""Telling systemd how the server is doing: started, stopping, and alive (sd_notify(3)).

The watchdog is fed from the event loop, so a loop that no longer turns is not fed, and systemd
restarts the server.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"
ALIVE: Final = "WATCHDOG=1"
FEEDS: Final = 2  # in each period of the watchdog, as systemd recommends


class ServiceManager:
    """The one that started this process, if it is one that listens; else nothing happens."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog_s = 0.0  # 0: nobody waits for a sign of life
        period_us = environment.get("WATCHDOG_USEC", "")
        is_ours = environment.get("WATCHDOG_PID", "") in ("", str(os.getpid()))
        if self._address and is_ours and period_us.isdecimal():
            self.watchdog_s = int(period_us) / 1_000_000

    def tell(self, *facts: str) -> None:
        """Never blocks, and an error is not one of ours."""
        if not self._address:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
            sending.setblocking(False)
            sending.sendto("\n".join(facts).encode(), self._address)

    async def feed_watchdog(self) -> None:
        """Until cancelled; returns at once if there is none."""
        while self.watchdog_s:
            self.tell(ALIVE)
            await asyncio.sleep(self.watchdog_s / FEEDS)
