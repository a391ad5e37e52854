"""Log lines that clients cause: bounded, so that a flood of clients is no flood of lines."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

WINDOW_S: Final = 10.0
WARNINGS_MAX: Final = 20  # of one event in a window
OTHERS_MAX: Final = 1_000  # some 2 ms of work in each second
VALUE_CHARS_MAX: Final = 500


class LimitedLog:
    """Writes so many lines of an event in a window of time; counts the rest and logs the count.

    Used on the event loop.
    """

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._logger = logging.getLogger(name)
        self._loop = loop
        self._counts: dict[tuple[int, str], int] = {}  # of this window, by level and event
        self._timer: asyncio.TimerHandle | None = None

    @property
    def tells_info(self) -> bool:
        """Ask before collecting the values of a line of this level."""
        return self._logger.isEnabledFor(logging.INFO)

    @property
    def tells_debug(self) -> bool:
        return self._logger.isEnabledFor(logging.DEBUG)

    def debug(self, event: str, text: str, values: dict[str, Any]) -> None:
        self._write(logging.DEBUG, event, text, values)

    def info(self, event: str, text: str, values: dict[str, Any]) -> None:
        self._write(logging.INFO, event, text, values)

    def warning(self, event: str, text: str, values: dict[str, Any]) -> None:
        self._write(logging.WARNING, event, text, values)

    def _write(self, level: int, event: str, text: str, values: dict[str, Any]) -> None:
        if not self._logger.isEnabledFor(level):
            return
        if self._timer is None:
            self._timer = self._loop.call_later(WINDOW_S, self._end_window)
        count = self._counts[level, event] = self._counts.get((level, event), 0) + 1
        if count <= _lines_max(level):
            shown = {key: _cut(value) for key, value in values.items()}
            self._logger.log(level, text, shown | {"event": event})

    def _end_window(self) -> None:
        self._timer = None
        counts, self._counts = self._counts, {}
        for (level, event), count in counts.items():
            suppressed = count - _lines_max(level)
            if suppressed > 0:
                self._logger.log(
                    level,
                    "%(suppressed)d more events %(event)r in %(window_s)g s are not shown",
                    {"suppressed": suppressed, "event": event, "window_s": WINDOW_S},
                )

    def close(self) -> None:
        """Log the counts of the window that is open."""
        if self._timer is not None:
            self._timer.cancel()
            self._end_window()


def _cut(value: object) -> object:
    """Clients choose names of up to 64 KiB: enough of one to recognise it."""
    is_long = isinstance(value, str) and len(value) > VALUE_CHARS_MAX
    return f"{str(value)[:VALUE_CHARS_MAX]}…" if is_long else value


def _lines_max(level: int) -> int:
    return WARNINGS_MAX if level >= logging.WARNING else OTHERS_MAX
