"""The header `~p` of a record: what Penstock knows of a message that Kafka has no field for.

    byte    version, 1
    byte    flags of the record: QoS, retained, kind of value
    byte    which of the optional parts follow
    u32     incarnation of the node that appended it; 0 for a broker alone
    i64     when the broker received it, in µs
    i64     when it expires, in µs                   (EXPIRY)
    u16 …   the publisher                            (PUBLISHER)
    …       marks, as in a batch, to the end         (MARKS; index 0 is this record)

GUARDED has no bytes: the record was appended together with one that has marks, such as the first
message of a request with an idempotency key, so both are void beyond a fence or none of them is.

Little-endian, like all formats of Penstock. A version that is not known reads as no header at all.
"""

from __future__ import annotations

import struct
from typing import Final

from penstock.log.format.marks import NO_RECORD, Mark, decode_marks, encode_marks
from penstock.model.errors import CorruptError

KEY: Final = b"~p"
VERSION: Final = 1
_HEAD: Final = struct.Struct("<BBBIq")
_EXPIRY: Final = struct.Struct("<q")
_LENGTH: Final = struct.Struct("<H")
_HAS_EXPIRY: Final = 1
_HAS_PUBLISHER: Final = 2
_HAS_MARKS: Final = 4
_IS_GUARDED: Final = 8
PLAIN_PARTS: Final = _HAS_EXPIRY | _HAS_PUBLISHER  # what messages have that no view follows
VALUE_BYTES_MIN: Final = _HEAD.size


class Properties:
    """What `~p` says of one record."""

    def __init__(self, flags: int, incarnation: int, stamp: int) -> None:
        self.flags = flags
        self.incarnation = incarnation
        self.stamp = stamp  # µs since 1970, UTC
        self.expires_at = 0  # 0: never
        self.publisher = ""
        self.marks: list[Mark] = []  # index 0 if it guards this record, or NO_RECORD
        self.is_guarded = False  # void beyond a fence of its incarnation, as if it had marks


def encode_properties(properties: Properties) -> bytes:
    """The value of the header."""
    p = properties
    parts = 0
    rest = b""
    if p.expires_at:
        parts |= _HAS_EXPIRY
        rest = _EXPIRY.pack(p.expires_at)
    if p.publisher:
        parts |= _HAS_PUBLISHER
        publisher = p.publisher.encode()
        rest += _LENGTH.pack(len(publisher)) + publisher
    if p.marks:
        parts |= _HAS_MARKS
        rest += encode_marks(p.marks)
    if p.is_guarded:
        parts |= _IS_GUARDED
    return _HEAD.pack(VERSION, p.flags, parts, p.incarnation, p.stamp) + rest


def read_incarnation(data: bytes, at: int) -> int:
    """The incarnation in a value that begins at `at` and is whole."""
    _, _, _, incarnation, _ = _HEAD.unpack_from(data, at)
    return int(incarnation)


def decode_properties(value: bytes) -> Properties | None:
    """What the header says; None if these are not bytes that Penstock wrote."""
    if len(value) < _HEAD.size or value[0] != VERSION:
        return None
    _, flags, parts, incarnation, stamp = _HEAD.unpack_from(value, 0)
    properties = Properties(flags, incarnation, stamp)
    properties.is_guarded = bool(parts & (_IS_GUARDED | _HAS_MARKS))
    at = _HEAD.size
    try:
        if parts & _HAS_EXPIRY:
            (properties.expires_at,) = _EXPIRY.unpack_from(value, at)
            at += _EXPIRY.size
        if parts & _HAS_PUBLISHER:
            (length,) = _LENGTH.unpack_from(value, at)
            at += _LENGTH.size
            if at + length > len(value):
                return None
            properties.publisher = value[at : at + length].decode()
            at += length
        if parts & _HAS_MARKS:
            properties.marks = decode_marks(value[at:])
    except (struct.error, UnicodeDecodeError, CorruptError):
        return None
    if any(mark.index not in (0, NO_RECORD) for mark in properties.marks):
        return None
    return properties
