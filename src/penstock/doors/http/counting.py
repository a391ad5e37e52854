"""How much a JSON body would become, looked at before it is decoded.

A decoder holds the interpreter until it is done, in whatever thread it runs, and a value takes many
times the memory of its text. So bodies with too many values are refused by counting characters.
"""

from __future__ import annotations

from typing import Final

from penstock.doors.http.messages import HttpError

VALUES_MAX: Final = 1_000_000  # of one body of messages, which are decoded one after another
ONE_VALUES_MAX: Final = 250_000  # of one message: 20 MB and 50 ms for the costliest, empty lists
_MARKS: Final = (b",", b"[", b"{")  # each value but the outermost comes right behind one of them


def check_values(body: bytes, values_max: int = ONE_VALUES_MAX, what: str = "the body") -> None:
    """HttpError 413 if the body holds more JSON values than may be decoded at once."""
    if len(body) <= values_max or _count(body) <= values_max:
        return
    # Texts may contain these characters, too: count again without the texts.
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"")
    texts = plain.count(b'"') // 2
    if texts <= values_max and _count(b"".join(plain.split(b'"')[::2])) <= values_max:
        return
    raise HttpError(
        413,
        f"{what} contains more than {values_max:,} JSON values: send fewer at once, or send a "
        "large payload as text/plain or application/octet-stream",
    )


def _count(data: bytes) -> int:
    return sum([data.count(mark) for mark in _MARKS])
