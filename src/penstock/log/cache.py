"""A small cache of decoded chunks, shared by all readers of all logs; oldest use goes first."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from penstock.log.format.batch import Batch
from penstock.model.limits import MIB

CACHE_BYTES_MAX: Final = 24 * MIB  # shared by all logs of a store
ChunkKey = tuple[int, int]  # identity of the Segment, or of the log that has none; chunk number
WHOLE: Final = 0  # the length of a chunk that no longer grows


class ChunkCache:
    """Bounded by bytes held. Holds what owns the chunks too, so that its identity stays its own."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._is_used = False  # since `release_unused` was called last
        self._chunks: OrderedDict[ChunkKey, tuple[object, list[Batch], int, int]] = OrderedDict()

    def get(self, owner: object, number: int, length: int = WHOLE) -> list[Batch] | None:
        """A chunk, if it is held as it was when its owner had this length, or WHOLE."""
        key = (id(owner), number)
        entry = self._chunks.get(key)
        if entry is None or entry[3] != length:
            return None
        self._chunks.move_to_end(key)
        self._is_used = True
        return entry[1]

    def put(self, owner: object, number: int, batches: list[Batch], length: int = WHOLE) -> None:
        """Hold a chunk, in place of what it was at another length."""
        size = sum(batch.memory_bytes for batch in batches)
        if size > self._bytes_max:
            return
        key = (id(owner), number)
        before = self._chunks.pop(key, None)
        self._chunks[key] = (owner, batches, size, length)
        self._is_used = True
        self._bytes += size - (before[2] if before is not None else 0)
        while self._bytes > self._bytes_max:
            _, (_, _, freed, _) = self._chunks.popitem(last=False)
            self._bytes -= freed

    def drop(self, owner: object) -> None:
        """Forget what was trimmed, replaced or closed."""
        for key in [key for key in self._chunks if key[0] == id(owner)]:
            self._bytes -= self._chunks.pop(key)[2]

    def release_unused(self) -> None:
        """Give everything back if nobody has read a chunk since the last call."""
        if not self._is_used:
            self._chunks.clear()
            self._bytes = 0
        self._is_used = False

    @property
    def bytes(self) -> int:
        return self._bytes
