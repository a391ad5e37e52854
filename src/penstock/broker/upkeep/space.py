"""The free space of the disk that all topics share, and whether publishes are accepted."""

from __future__ import annotations

from collections.abc import Callable

from penstock.broker.limited_log import LimitedLog

FreeSpace = Callable[[], tuple[int, int]]  # (available, size of the file system)


class Space:
    """As last seen. `refusal` says why publishes are refused; empty while there is space.

    `listeners` are called when that has changed.
    """

    def __init__(self, free_space: FreeSpace, free_percent_min: float, log: LimitedLog) -> None:
        self.seen = (0, 0)  # free bytes, and all of the file system
        self.refusal = ""
        self.listeners: list[Callable[[], None]] = []
        self._free_space = free_space
        self._free_percent_min = free_percent_min
        self._log = log

    def look(self) -> None:
        """Refuse publishes below the setting; they resume by themselves."""
        free, size = self.seen = self._free_space()
        percent = 100 * free / size if size else 100.0
        before = self.refusal
        if percent < self._free_percent_min:
            self.refusal = (
                f"{percent:.1f} % of the disk is free and publishes need "
                f"{self._free_percent_min:g} %: nothing was stored; free some space, or lower "
                "disk_free_percent_min"
            )
            if not before:
                text = "publishes are refused: %(percent).1f %% of the disk is free"
                self._log.warning("disk refusal begins", text, {"percent": percent})
        elif self.refusal:
            self.refusal = ""
            text = "publishes are accepted again: %(percent).1f %% of the disk is free"
            self._log.info("disk refusal ends", text, {"percent": percent})
        if self.refusal != before:
            for listener in self.listeners:
                listener()
