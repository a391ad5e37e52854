"""The server log: lines on standard error, as text for people or as JSON for programs.

Parts of Penstock log with the standard library, under names that begin with `penstock.`, and give
the values of a line as one dictionary: `log.info("stopped after %(s)d s", {"event": …, "s": …})`.
Text shows the sentence; JSON has the sentence and the values. Control characters are escaped.

A thread writes the lines: a reader of standard error that stops reading never stops the broker.
What does not fit into the bounded queue meanwhile is counted, and the count is logged afterwards.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
import time
from typing import Any, Final

from penstock.cli.output import printable

LINES_MAX: Final = 10_000  # that wait to be written
LINE_CHARS_MAX: Final = 8_192
CLOSE_S_MAX: Final = 2.0  # for the reader to take what waits when the server ends
LOGGERS: Final = ("penstock", "asyncio")  # asyncio reports what no caller could catch
JSON: Final = "json"
STDERR: Final = 2


class TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.000Z warning mqtt: the sentence`; a traceback follows, indented."""

    def format(self, record: logging.LogRecord) -> str:
        part = record.name.removeprefix("penstock.")
        said = _shortened(printable(record.getMessage()))
        line = f"{_stamp(record)} {record.levelname.lower():<7} {part}: {said}"
        if record.exc_info:
            trace = self.formatException(record.exc_info)
            # Indented: no part of it can pass for a line of the log.
            line += "".join(f"\n    {printable(one)}" for one in trace.splitlines())
        return line


class JsonFormatter(logging.Formatter):
    """One object per line: time, level, logger, message, and the values of the message."""

    def format(self, record: logging.LogRecord) -> str:
        shown: dict[str, Any] = dict(record.args) if isinstance(record.args, dict) else {}
        shown |= {
            "time": _stamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _shortened(record.getMessage()),
        }
        if record.exc_info:
            shown["exception"] = self.formatException(record.exc_info)
        return json.dumps(shown, default=str)


def _stamp(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def _shortened(text: str) -> str:
    return text if len(text) <= LINE_CHARS_MAX else f"{text[:LINE_CHARS_MAX]}…"


class LogOutput(logging.Handler):
    """Installed while it is used as a context manager."""

    def __init__(self, level: str, form: str, fd: int = STDERR) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter() if form == JSON else TextFormatter())
        self._level = level.upper()
        self._fd = fd
        self._lines: queue.Queue[str | None] = queue.Queue(LINES_MAX)
        self._lost = 0
        self._thread = threading.Thread(target=self._write_all, name="penstock-log", daemon=True)

    def __enter__(self) -> LogOutput:
        self._thread.start()
        for name in LOGGERS:
            logging.getLogger(name).addHandler(self)
        logging.getLogger("penstock").setLevel(self._level)
        return self

    def __exit__(self, *raised: object) -> None:
        logging.getLogger("penstock").setLevel(logging.NOTSET)
        for name in LOGGERS:
            logging.getLogger(name).removeHandler(self)
        try:
            self._lines.put(None, timeout=CLOSE_S_MAX)
        except queue.Full:
            return
        self._thread.join(CLOSE_S_MAX)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.put_nowait(self.format(record))
        except queue.Full:
            self._lost += 1

    def _write_all(self) -> None:
        while (line := self._lines.get()) is not None:
            if self._lost:
                lost, self._lost = self._lost, 0
                line = f"{self.format(_lost_record(lost))}\n{line}"
            data = f"{line}\n".encode(errors="backslashreplace")
            try:
                while data:
                    # Not through sys.stderr, whose lock this thread may hold at exit.
                    data = data[os.write(self._fd, data) :]
            except OSError:  # the reader is gone, or there is no standard error
                return


def _lost_record(lost: int) -> logging.LogRecord:
    text = "%(lost)d log lines were lost: standard error was not read fast enough"
    values = ({"lost": lost},)
    return logging.LogRecord(
        "penstock.log_output",
        logging.WARNING,
        pathname="",
        lineno=0,
        msg=text,
        args=values,
        exc_info=None,
    )
