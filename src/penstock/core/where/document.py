"""A payload as JSON, or as nothing: one meaning on every Python, and the one Spark's parser has.

RFC 8259 in UTF-8 without a byte order mark, the whole payload. NaN, Infinity, comments, trailing
commas, trailing text, lone surrogates and bytes that are not UTF-8 make all of it invalid. Of
duplicate keys the last counts. Nothing here raises for what a payload holds.

Known edges: JSON nested deeper than JSON_DEPTH_MAX is invalid here, while Spark stops at 1,000
levels; and numbers written with more than 1,000 digits, which Spark calls invalid, are read here
up to 4,300 digits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from penstock.core.where.tree import INTEGER_MAX, INTEGER_MIN

# The decoder recurses and shares the interpreter's stack of 1,000 frames with its callers: a fixed
# bound well below makes a record pass or fail alike wherever it is evaluated.
JSON_DEPTH_MAX: Final = 256

UNREAD: Final = object()  # a document nobody has asked for yet

_decode: Final[Callable[[bytes], object]] = msgspec.json.Decoder().decode
# Half as fast, but a number beyond the range of a double is an infinity instead of an error.
_decode_wide: Final[Callable[[bytes], object]] = msgspec.json.Decoder(float_hook=float).decode


def read_json(payload: bytes, decode: Callable[[bytes], object] = _decode) -> object:
    """The JSON value, made of dict, list, str, int, float, bool and None; None if invalid."""
    try:
        document = decode(payload)
    except msgspec.ValidationError:  # well-formed so far, with a number out of range
        return None if decode is _decode_wide else read_json(payload, _decode_wide)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    except RecursionError:
        if _brackets(payload) > JSON_DEPTH_MAX:
            return None
        raise  # the caller's stack was nearly full: the payload is not to blame
    if len(payload) < 2 * JSON_DEPTH_MAX or _brackets(payload) <= JSON_DEPTH_MAX:
        return document
    return None if _is_too_deep(document) else document


def as_value(number: int) -> int | float:
    """An integer as the language sees it: beyond 64 bits it is a double, at last an infinity."""
    if INTEGER_MIN <= number <= INTEGER_MAX:
        return number
    try:
        return float(number)
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")


def _brackets(payload: bytes) -> int:
    """No fewer than the levels of nesting; those inside strings are counted too."""
    return payload.count(b"[") + payload.count(b"{")


def _is_too_deep(document: object) -> bool:
    level: list[Iterable[object]] = [(document,)]
    for _ in range(JSON_DEPTH_MAX + 1):
        level = [
            value.values() if type(value) is dict else value
            for values in level
            for value in values
            if type(value) is dict or type(value) is list
        ]
        if not level:
            return False
    return True
