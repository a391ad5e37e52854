"""Large answers on their way to clients that may be slow: bounded together, sent piece by piece.

An answer above `LARGE_BYTES` has a place in the door's `Room` until its client has taken it; who
finds no place waits for one in turn. So clients that take nothing cannot grow the memory, however
many they are, and they lose their places after a while.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from penstock.doors.budget import Budget, Share
from penstock.doors.http.messages import Pairs, Streamed, Writer
from penstock.doors.http.v1.types import RecordOut
from penstock.model.limits import KIB, MIB

LARGE_BYTES: Final = 256 * KIB  # smaller answers are made whole and need no place
ROOM_BYTES_MAX: Final = 96 * MIB  # of all large answers together; the largest record fits
PIECE_BYTES: Final = 64 * KIB  # made and sent at once
RECORD_BYTES: Final = 100  # what a record has beside its payload, roughly

_EMPTY: Final = b'"payload":""'  # no text contains it: quotes inside of texts are escaped

_encode: Final = msgspec.json.Encoder().encode


class Room:
    """Places for large answers."""

    def __init__(self, bytes_max: int = ROOM_BYTES_MAX) -> None:
        self._budget = Budget(bytes_max)
        self._waiting: deque[tuple[asyncio.Future[None], Share, int]] = deque()

    @staticmethod
    def is_small(size: int) -> bool:
        """An answer made of so many bytes needs no place."""
        return size <= LARGE_BYTES

    @property
    def is_crowded(self) -> bool:
        """Would a large answer have to wait for a place?"""
        budget = self._budget
        return bool(self._waiting) or budget.bytes > budget.bytes_max // 2

    async def reserve(self, size: int) -> Share:
        """A place for an answer made of so many bytes; waits in turn. `release` gives it back."""
        size = min(2 * size, self._budget.bytes_max)  # as it was stored, and as text
        share = Share(self._budget)
        if not self._waiting and share.take(size):
            return share
        granted = asyncio.get_running_loop().create_future()
        self._waiting.append((granted, share, size))
        try:
            await granted
        except asyncio.CancelledError:
            self.release(share)
            raise
        return share

    def release(self, share: Share) -> None:
        """May be called again."""
        share.close()
        while self._waiting:
            granted, next_share, size = self._waiting[0]
            if not granted.done():
                if not next_share.take(size):
                    return
                granted.set_result(None)
            self._waiting.popleft()

    def stream(
        self, share: Share, pieces: Iterable[bytes], content_type: str, headers: Pairs = ()
    ) -> Streamed:
        """An answer that has a place until it is sent."""

        async def produce(writer: Writer) -> None:
            for piece in pieces:
                writer.write(piece)
                await writer.wait_room()

        return Streamed(
            produce, content_type, headers, on_end=lambda: self.release(share), is_finite=True
        )


def cut(data: bytes) -> Iterator[bytes]:
    """The pieces of an answer that is there already."""
    for at in range(0, len(data), PIECE_BYTES):
        yield data[at : at + PIECE_BYTES]


def json_pieces(head: bytes, records: Iterable[RecordOut]) -> Iterator[bytes]:
    """`head`, which ends with the '[' of a list, the records, and the end of list and object."""
    yield head
    gathered: list[RecordOut] = []
    size = 0
    comma = b""
    for record in records:
        weight = _weight(record.payload) + _weight(record.payload_base64)
        if gathered and size + weight > PIECE_BYTES:
            yield comma + _encode(gathered)[1:-1]
            comma = b","
            gathered, size = [], 0
        if weight > PIECE_BYTES and type(record.payload) is str:
            yield from _text_pieces(comma, record, record.payload)
            comma = b","
            continue
        gathered.append(record)
        size += weight
    if gathered:
        yield comma + _encode(gathered)[1:-1]
    yield b"]}"


def _text_pieces(comma: bytes, record: RecordOut, text: str) -> Iterator[bytes]:
    """A record with a long text, which may be six times as long in JSON."""
    record.payload = ""
    before, _, after = _encode(record).partition(_EMPTY)
    yield comma + before + _EMPTY[:-1]
    for at in range(0, len(text), PIECE_BYTES):
        yield _encode(text[at : at + PIECE_BYTES])[1:-1]
    yield b'"' + after


def _weight(payload: Any) -> int:
    if isinstance(payload, msgspec.Raw):
        return RECORD_BYTES + memoryview(payload).nbytes
    return RECORD_BYTES + len(payload) if type(payload) is str else 0
