"""Records of streams as JSON, made once where several readers follow the same place."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.doors.http.v1.reading import record_out
from penstock.model.limits import MIB
from penstock.model.record import Record

LINES_BYTES_MAX: Final = 8 * MIB  # of JSON that is shared
LINE_BYTES: Final = 240  # what a line takes beyond its characters; measured, rounded up
_encode: Final = msgspec.json.Encoder().encode


class Lines:
    """Records as JSON, for readers of the same place; bounded, and begun anew when full."""

    __slots__ = ("_is_used", "_lines", "bytes")

    def __init__(self) -> None:
        self._lines: dict[tuple[int, int], bytes] = {}
        self.bytes = 0
        self._is_used = False  # since `release_unused` was called last

    def get(self, topic_id: int, record: Record) -> bytes:
        key = (topic_id, record.offset)
        line = self._lines.get(key)
        if line is None:
            line = _encode(record_out(record))
            size = len(line) + LINE_BYTES
            self.bytes += size
            if self.bytes > LINES_BYTES_MAX:
                self._lines.clear()
                self.bytes = size
            self._lines[key] = line
        self._is_used = True
        return line

    def release_unused(self) -> None:
        """Give everything back if nobody has asked since the last call."""
        if not self._is_used:
            self._lines.clear()
            self.bytes = 0
        self._is_used = False
