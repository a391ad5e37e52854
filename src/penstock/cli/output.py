"""How commands speak: tables for people, JSON for programs, errors on stderr, progress on a tty.

Names come from outside: none of them reaches a terminal with control characters in it. Payloads do,
as they are.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final

from penstock.model.errors import RefusedError

if TYPE_CHECKING:
    from penstock.model.record import Offsets, Record

PROGRESS_AFTER_S: Final = 1.0  # a command that is done sooner stays quiet
PROGRESS_EVERY_S: Final = 0.2

EXIT_DONE: Final = 0
EXIT_REFUSED: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNAVAILABLE: Final = 3
EXIT_INTERRUPTED: Final = 130  # Ctrl-C, as shells count it
_CONTROLS: Final = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}


class UsageError(RefusedError):
    """The command line is wrong, whatever broker it means."""


def printable(text: str) -> str:
    """Control characters as Python writes them: a terminal would obey them."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def warn(text: object) -> None:
    """Print a message on standard error, apart from the output of the command."""
    lines = "\n".join(map(printable, str(text).split("\n")))
    print(f"penstock: {lines}", file=sys.stderr, flush=True)


@contextmanager
def naming(what: str) -> Iterator[None]:
    """RefusedError begins with `what` where the system refuses a file."""
    try:
        yield
    except OSError as failed:
        raise RefusedError(f"{what}: {failed.strerror or failed}") from failed


def show_json(value: Any) -> None:
    import json

    # JSON escapes only those below U+0020 by itself.
    print(json.dumps(value, ensure_ascii=False).translate(_CONTROLS), flush=True)


def show_facts(facts: Iterable[tuple[str, object]]) -> None:
    """A line each, the label in front."""
    for label, value in facts:
        print(f"{label:<11} {printable(str(value))}")


def shown_offsets(offsets: Offsets) -> str:
    """An offset, or those of all partitions in the form that a position is given in."""
    if not isinstance(offsets, dict):
        return str(offsets)
    return "{" + ", ".join([f'"{number}": {offset}' for number, offset in offsets.items()]) + "}"


def shown_time(timestamp_us: int) -> str:
    """A time in µs since 1970 as people read it."""
    moment = datetime.fromtimestamp(timestamp_us // 1_000_000, UTC)
    return moment.isoformat().replace("+00:00", "Z")


def show_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns as wide as their widest cell; numbers to the right."""
    table = [[printable(str(cell)) for cell in row] for row in rows]
    widths = [
        max([len(heading), *(len(row[at]) for row in table)]) for at, heading in enumerate(headings)
    ]
    numeric = [
        all(row[at].replace(",", "").lstrip("-").isdigit() for row in table) and bool(table)
        for at in range(len(headings))
    ]
    for row in [list(headings), *table]:
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ]
        print("  ".join(cells).rstrip())


def human_bytes(count: int | None) -> str:
    if count is None:
        return "unlimited"
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def human_duration(seconds: float | None) -> str:
    if seconds is None:
        return "unlimited"
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:g}{unit}"
    return f"{seconds:g}s"


def counted(count: int, noun: str) -> str:
    """`1 topic`, `2 topics`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def offset_range(first: int, end: int) -> str:
    """`offsets 0 to 2`, `offset 5`, `no records`; `end` is one past the last offset."""
    if end <= first:
        return "no records"
    return f"offset {first}" if end == first + 1 else f"offsets {first} to {end - 1}"


def record_json(record: Record) -> dict[str, Any]:
    """A record as `/v1` gives it, with all its fields, its topic, and its time as text."""
    import base64

    from penstock.model.record import KIND_JSON, KIND_NAMES

    shown: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "time": record.time.isoformat().replace("+00:00", "Z"),
        "name": record.name,
        "kind": KIND_NAMES[record.kind],
        "headers": [list(pair) for pair in record.headers],
        "publisher": record.publisher,
        "qos": record.qos,
        "retain": record.retain,
        "expires_at": record.expires_at,
    }
    if record.kind == KIND_JSON:
        return shown | {"payload": record.value}
    try:
        return shown | {"payload": record.payload.decode()}
    except UnicodeDecodeError:
        return shown | {"payload_base64": base64.b64encode(record.payload).decode()}


def record_line(record: Record, *, verbose: bool) -> str:
    """One line for people: the payload, in front of it what `--verbose` adds."""
    text = record.payload.decode("utf-8", "backslashreplace")
    if not verbose:
        return text
    stamp = record.time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    headers = "".join(f" {key}={value}" for key, value in record.headers)
    return f"{record.offset}  {stamp}  {printable(record.name + headers)}  {text}"


class Progress:
    """A line on the terminal that says how far a long command is."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._started_s = self._shown_s = time.monotonic()
        self._is_shown = False

    def tell(self, text: str) -> None:
        now_s = time.monotonic()
        is_due = now_s - self._started_s > PROGRESS_AFTER_S
        if sys.stderr.isatty() and is_due and now_s - self._shown_s > PROGRESS_EVERY_S:
            self._shown_s = now_s
            self._is_shown = True
            print(f"\r\x1b[K{self._what}: {text}", end="", file=sys.stderr, flush=True)

    def done(self) -> None:
        if self._is_shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show on a terminal for how long something runs that cannot say how far it is."""
    if not sys.stderr.isatty():
        yield
        return
    progress, started_s, ended = Progress(what), time.monotonic(), Event()

    def tell() -> None:
        while not ended.wait(PROGRESS_EVERY_S):
            progress.tell(f"{time.monotonic() - started_s:.0f} s")

    thread = Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        progress.done()


def agrees(question: str) -> bool:
    """Ask on stderr, so that stdout holds nothing but the answer to the command."""
    print(question, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
