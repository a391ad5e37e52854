"""From what a program publishes to the bytes that are stored, and the limits on both."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from penstock.model.errors import RefusedError, TooLarge
from penstock.model.limits import HEADERS_BYTES_MAX, KEY_CHARS_MAX
from penstock.model.record import KIND_BYTES, KIND_JSON, KIND_TEXT, Headers, HeadersLike

_DECLARED: Final = ("__dataclass_fields__", "__struct_fields__", "__attrs_attrs__")


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
        check_json(message)
        payload = msgspec.json.encode(message)
        if b"null" in payload and not isinstance(message, dict | list | tuple):
            check_numbers(msgspec.to_builtins(message))
        return payload, KIND_JSON
    except (TypeError, ValueError, RecursionError, OverflowError) as broken:
        raise RefusedError(
            f"a {type(message).__name__} cannot be published: give str, bytes, or a value that "
            f"JSON can hold ({broken})"
        ) from None


def encode_parsed(value: Any) -> tuple[bytes, int]:
    """As `encode_message`, for a value that was read from JSON, or the bytes of a raw body."""
    if isinstance(value, str | bytes):
        return encode_message(value)
    return msgspec.json.encode(value), KIND_JSON


def check_messages(messages: Iterable[Any]) -> Iterable[Any]:
    """RefusedError for one message where several are wanted: its characters are not messages."""
    if isinstance(messages, str | bytes | bytearray | memoryview | Mapping):
        raise RefusedError(
            f"messages is one {type(messages).__name__}: give a list of messages, or publish it "
            "with publish()"
        )
    if not isinstance(messages, Iterable):
        raise RefusedError(f"messages is a {type(messages).__name__}: give a list of messages")
    return messages


def check_json(value: Any) -> None:
    """TypeError or ValueError for what JSON cannot hold, or would give back as something else.

    Objects with declared fields (dataclasses, msgspec Structs) are left to the encoder.
    """
    if isinstance(value, str | int) or value is None:
        return
    if isinstance(value, float):
        check_numbers(value)
    elif isinstance(value, dict):
        for key, part in value.items():
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r} is not text")
            check_json(part)
    elif isinstance(value, list | tuple):
        for part in value:
            check_json(part)
    elif not any(hasattr(type(value), mark) for mark in _DECLARED):
        raise TypeError(
            f"{type(value).__name__} is not a JSON type: convert it to text, a "
            "number, a list or a dict"
        )


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
