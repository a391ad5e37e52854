"""How much a JSON body would become, looked at before it is decoded.

A decoder holds the interpreter until it is done, in whatever thread it runs, and a value takes many
times the memory of its text. So bodies with too many values are refused by counting characters.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.doors.http.wire.messages import HttpError
from penstock.model.limits import KIB

VALUES_MAX: Final = 1_000_000  # of one body of messages, which are decoded one after another
ONE_VALUES_MAX: Final = 250_000  # of one message: 20 MB and 50 ms for the costliest, empty lists
SLICE_BYTES: Final = 256 * KIB  # looked at in one go: what is too much is refused early
_other: Final = re.compile(rb"[^\\]")
_MARKS: Final = (b",", b"[", b"{")  # each value but the outermost comes right behind one of them


def check_values(body: bytes, values_max: int = ONE_VALUES_MAX, what: str = "the body") -> None:
    """HttpError 413 if the body holds more JSON values than may be decoded at once."""
    if len(body) <= values_max or _count(body) <= values_max:
        return
    if not _has_more(body, values_max):
        return
    raise HttpError(
        413,
        f"{what} contains more than {values_max:,} JSON values: send fewer at once, or send a "
        "large payload as text/plain or application/octet-stream",
    )


def _has_more(body: bytes, values_max: int) -> bool:
    """The same without the texts, which may contain these characters, too; ends early."""
    values = quotes = at = 0
    while at < len(body) and values <= values_max and quotes // 2 <= values_max:
        end = at + SLICE_BYTES
        if body[end - 1 : end] == b"\\":  # what it escapes belongs to it
            escaped = _other.search(body, end)
            end = len(body) if escaped is None else escaped.end()
        plain = body[at:end].replace(rb"\\", b"").replace(rb"\"", b"")
        pieces = plain.split(b'"')
        values += _count(b"".join(pieces[quotes % 2 :: 2]))
        quotes += len(pieces) - 1
        at = end
    return values > values_max or quotes // 2 > values_max


def _count(data: bytes) -> int:
    return sum([data.count(mark) for mark in _MARKS])
