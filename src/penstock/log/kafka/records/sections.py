"""Headers and keys of the records of a batch: what they mean in Penstock.

Most records of a batch have the same headers, byte for byte: they are decoded once.
Compiled by mypyc; the same source runs interpreted.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Final

from penstock.core.fences import Fences
from penstock.core.naming.names import check_name
from penstock.log.format.marks import MARK_FENCE, encode_headers
from penstock.log.kafka.records.properties import KEY, Properties, decode_properties
from penstock.log.kafka.records.record_batch import read_record_headers
from penstock.model.errors import InvalidName
from penstock.model.record import Headers

KEY_HEADER: Final = "kafka.key"  # of a foreign record whose key cannot be a name: its key in base64
FOREIGN_FLAGS: Final = 1  # QoS 1, not retained, bytes


class Shared:
    """What records with the same bytes of headers have in common."""

    def __init__(self, section: bytes) -> None:
        self.properties: Properties | None = None
        self.is_void = False
        headers: list[tuple[str, str]] = []
        for key, value in read_record_headers(section):
            if key == KEY and value is not None:
                self.properties = decode_properties(value)
            else:
                headers.append((_text(key), "" if value is None else _text(value)))
        self.headers: Headers = tuple(headers)
        self.encoded_headers = encode_headers(self.headers) if headers else b""

    def judge(self, fences: Fences, offset: int) -> None:
        """Find out whether the records are void, being at `offset` or shortly behind it.

        No fence of their own incarnation lies between them: they were appended at once. A fence
        that a dead node wrote counts all the same.
        """
        properties = self.properties
        if properties is None or not properties.is_guarded:
            return
        if fences.is_void(properties.incarnation, offset):
            properties.marks = [mark for mark in properties.marks if mark.kind == MARK_FENCE]
            self.is_void = not properties.marks


def _text(data: bytes) -> str:
    """Text of another program: what is not UTF-8 stays readable."""
    return data.decode(errors="backslashreplace")


def own_name(key: bytes) -> str:
    """The name of a record that Penstock wrote."""
    return _text(key)


def shown_name(key: bytes, topic: str) -> str:
    """The name of a record of another program; that of the topic if its key cannot be one."""
    return name_of(key) or topic


def name_of(key: bytes) -> str:
    """The key as a name; empty if it cannot be one, or is one of the broker's own."""
    try:
        name = check_name(key.decode())
    except (UnicodeDecodeError, InvalidName):
        return ""
    return "" if name.startswith("$") else name


def header_of_key(key: bytes) -> bytes:
    """The header, encoded, that keeps the key of a foreign record that cannot be a name."""
    if not key or name_of(key):
        return b""
    return encode_headers(((KEY_HEADER, b64encode(key).decode()),))
