"""How `penstock sub` shows a message: its payload, JSON, or a format of mosquitto_sub."""

from __future__ import annotations

import argparse
import base64
import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from penstock.cli.mqtt.history import (
    OFFSET,
    PARTITION,
    TIME,
    TOPIC,
    number_of,
    offset_of,
    place_of,
)
from penstock.cli.output import UsageError
from penstock.mqtt.packets import Publish
from penstock.mqtt.properties import Properties

_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "a": "\a", "e": "\x1b", "\\": "\\"}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PLACES: Final = {TOPIC: "topic", PARTITION: "partition", OFFSET: "offset", TIME: "time"}
_PIECE: Final = re.compile(rb"%(.)|\\(.)", re.DOTALL)

Show = Callable[[Publish], bytes]


def _user_properties(message: Publish) -> str:
    return " ".join(f"{key}:{value}" for key, value in message.properties.user_properties)


def _text(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    return b"" if value is None else str(value).encode()


# What follows a '%'; our own words are 'o', 'T' and 'w'.
_WORDS: Final[dict[str, Callable[[Publish], object]]] = {
    "%": lambda message: "%",
    "t": lambda message: message.name,
    "p": lambda message: message.payload,
    "x": lambda message: message.payload.hex(),
    "X": lambda message: message.payload.hex().upper(),
    "l": lambda message: len(message.payload),
    "m": lambda message: message.packet_id,
    "q": lambda message: message.qos,
    "r": lambda message: int(message.retain),
    "C": lambda message: message.properties.content_type,
    "D": lambda message: message.properties.correlation_data,
    "E": lambda message: message.properties.message_expiry_interval,
    "F": lambda message: message.properties.payload_format_indicator,
    "P": _user_properties,
    "R": lambda message: message.properties.response_topic,
    "S": lambda message: " ".join(map(str, message.properties.subscription_identifiers)),
    "I": lambda message: datetime.now().astimezone().isoformat(timespec="seconds"),
    "U": lambda message: f"{time.time():.9f}",
    "j": lambda message: json.dumps(as_json(message), ensure_ascii=False),
    "o": lambda message: place_of(message).get(OFFSET),
    "T": lambda message: place_of(message).get(TOPIC),
    "w": lambda message: place_of(message).get(TIME),
}


def make_show(options: argparse.Namespace) -> Show:
    """How messages are turned into bytes; UsageError if the format is not understood."""
    end = b"" if options.no_newline else b"\n"
    if options.format is not None:
        parts = _compiled(options.format)
        return lambda message: b"".join(part(message) for part in parts) + end
    if options.json:
        return lambda message: json.dumps(as_json(message), ensure_ascii=False).encode() + b"\n"
    if options.verbose:
        return lambda message: message.name.encode() + b" " + (message.payload or b"(null)") + end
    return lambda message: message.payload + end


def show(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def as_json(message: Publish) -> dict[str, Any]:
    """Everything a message says, by the names that records have; the other properties by their own.

    What a feed adds stands by its own name.
    """
    shown: dict[str, Any] = {"name": message.name, "qos": message.qos, "retain": message.retain}
    place = place_of(message)
    offset = offset_of(place)
    if offset is not None:
        shown["partition"] = 0  # unless another one is named
    for key, text in place.items():
        number = number_of(text) if key in (OFFSET, PARTITION) else None
        shown[_PLACES[key]] = text if number is None else number
    stamp = _timestamp(place.get(TIME, ""))
    if stamp is not None:
        shown["timestamp"] = stamp
    try:
        shown["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        shown["payload_base64"] = base64.b64encode(message.payload).decode()
    shown["headers"] = []
    for field in fields(Properties):
        value: Any = getattr(message.properties, field.name)
        if field.name == "user_properties":
            value = tuple(pair for pair in value if pair[0] not in _PLACES)
        if isinstance(value, bytes):
            value = base64.b64encode(value).decode()
        if value not in (None, ()):
            shown["headers" if field.name == "user_properties" else field.name] = value
    return shown


def _timestamp(text: str) -> int | None:
    """µs since 1970 of a time; None if somebody made it up."""
    try:
        return (datetime.fromisoformat(text) - _EPOCH) // timedelta(microseconds=1)
    except (ValueError, TypeError):
        return None


def _compiled(format: str) -> list[Show]:
    """The format as one function for each of its pieces."""
    raw = format.encode("utf-8", "surrogateescape")
    parts: list[Show] = []
    at = 0
    for piece in _PIECE.finditer(raw):
        parts += [_constant(raw[at : piece.start()]), _piece(format, piece)]
        at = piece.end()
    return [*parts, _constant(raw[at:])]


def _constant(data: bytes) -> Show:
    return lambda message: data


def _piece(format: str, piece: re.Match[bytes]) -> Show:
    word, escape = ((part or b"").decode("latin-1") for part in piece.groups())
    if escape:
        if escape not in _ESCAPES:
            known = " ".join("\\" + one for one in _ESCAPES)
            raise UsageError(
                f"format {format!r} contains the unknown escape '\\{escape}': use one of {known}"
            )
        return _constant(_ESCAPES[escape].encode())
    value = _WORDS.get(word)
    if value is None:
        known = " ".join("%" + one for one in _WORDS)
        raise UsageError(
            f"format {format!r} contains the unknown field %{word}: use one of {known}"
        )
    return lambda message: _text(value(message))
