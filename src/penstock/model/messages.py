"""From what a program publishes to the bytes that are stored, and the limits on both."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from penstock.model.errors import RefusedError, TooLarge
from penstock.model.limits import HEADERS_BYTES_MAX, KEY_CHARS_MAX
from penstock.model.record import KIND_BYTES, KIND_JSON, KIND_TEXT, Headers, HeadersLike


def encode_message(message: Any) -> tuple[bytes, int]:
    """(payload, kind): bytes as they are, str as UTF-8, anything else as JSON."""
    if isinstance(message, bytes):
        return message, KIND_BYTES
    if isinstance(message, str):
        try:
            return message.encode(), KIND_TEXT
        except UnicodeEncodeError as broken:
            raise RefusedError(f"text cannot be stored: {broken.reason}; publish bytes") from None
    if isinstance(message, bytearray | memoryview):
        return bytes(message), KIND_BYTES
    try:
        payload = msgspec.json.encode(message)
        if b"null" in payload:
            check_numbers(message)
        return payload, KIND_JSON
    except (TypeError, ValueError, RecursionError, OverflowError) as broken:
        raise RefusedError(
            f"a {type(message).__name__} cannot be published: give str, bytes, "
            f"or a value that can be converted to JSON ({broken})"
        ) from None


def check_numbers(value: Any) -> None:
    """JSON has no word for NaN and infinity: they would come back as None."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not a JSON number")
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple | set | frozenset):
        return
    for part in value:
        check_numbers(part)


def check_headers(headers: HeadersLike) -> Headers:
    """Headers as ordered pairs of text; duplicates are kept."""
    if not headers:
        return ()
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    if not isinstance(pairs, Iterable):
        raise RefusedError(f"headers {headers!r} are neither a mapping nor pairs of text")
    checked = []
    size = 0
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise RefusedError(f"header {pair!r} is not a pair of key and value")
        key, value = pair
        if not isinstance(key, str) or not isinstance(value, str) or not key:
            raise RefusedError(
                f"header {key!r}: {value!r} must be text, with a key that is not empty"
            )
        try:
            size += len(key.encode()) + len(value.encode())
        except UnicodeEncodeError:
            raise RefusedError(f"header {key!r} holds text that UTF-8 cannot express") from None
        if size > HEADERS_BYTES_MAX:  # here: the others are not looked at
            raise TooLarge(
                f"headers of {size} bytes or more: at most {HEADERS_BYTES_MAX} for one message"
            )
        checked.append((key, value))
    return tuple(checked)


def check_key(key: str) -> str:
    """An idempotency key that a header can hold; else RefusedError."""
    is_text = isinstance(key, str) and 1 <= len(key) <= KEY_CHARS_MAX
    if not is_text or not key.isascii() or not key.isprintable() or key != key.strip():
        raise RefusedError(
            f"idempotency key {str(key)[:60]!r} cannot be used: use 1 to {KEY_CHARS_MAX} printable "
            "ASCII characters without spaces at the ends, such as a UUID"
        )
    return key


def check_payload_size(size: int, bytes_max: int) -> None:
    if size > bytes_max:
        raise TooLarge(
            f"message of {size} bytes: at most {bytes_max}; store large data elsewhere and "
            "publish its address"
        )
