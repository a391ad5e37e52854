"""The window of one session: which packet ids are out, and what each of them stands for.

Invariant: an id is given out at most once until it is released, ids are 1 to 65,535, and at most
`size_max` are out. What an id stands for is one integer, so a full window makes no objects.
Compiled by mypyc; the same source runs interpreted.
"""

from __future__ import annotations

from typing import Final

PACKET_ID_MAX: Final = 65_535


class Window:
    """Gives out packet ids and remembers an integer tag for each until it is released."""

    __slots__ = ("_next_id", "_tags", "room", "size_max")

    def __init__(self, size_max: int) -> None:
        assert 1 <= size_max <= PACKET_ID_MAX, f"window of {size_max}"
        self.size_max = size_max
        self.room = size_max  # how many more may be sent; below 0 if more were out before
        self._tags: dict[int, int] = {}  # in the order of sending
        self._next_id = 1

    @property
    def count(self) -> int:
        """How many are out."""
        return len(self._tags)

    def take(self, tag: int, count: int) -> list[int]:
        """Packet ids for `count` messages; their tags are `tag`, `tag + 1`, and so on."""
        assert count <= self.room, f"{count} do not fit"
        tags = self._tags
        ids: list[int] = []
        packet_id = self._next_id
        for number in range(count):
            # Skip ids still in flight: reusing one before its ack confuses the receiver
            # (MQTT 5 §2.2.1).
            while packet_id in tags:
                packet_id = packet_id + 1 if packet_id < PACKET_ID_MAX else 1
            tags[packet_id] = tag + number
            ids.append(packet_id)
            packet_id = packet_id + 1 if packet_id < PACKET_ID_MAX else 1
        self._next_id = packet_id
        self.room -= count
        return ids

    def restore(self, packet_id: int, tag: int) -> None:
        """An id that was out before the client came back, or the broker; new ones follow it."""
        self._tags[packet_id] = tag
        self.room = self.size_max - len(self._tags)
        if packet_id >= self._next_id:
            self._next_id = packet_id + 1 if packet_id < PACKET_ID_MAX else 1

    def release(self, packet_id: int) -> int:
        """The tag of an id that is out, which is free again; -1 if it is not out."""
        tag = self._tags.pop(packet_id, -1)
        if tag >= 0:
            self.room += 1
        return tag

    def tag_of(self, packet_id: int) -> int:
        """The tag of an id that is out; -1 if it is not."""
        return self._tags.get(packet_id, -1)

    def items(self) -> list[tuple[int, int]]:
        """(packet id, tag) of all that is out, in the order of sending."""
        return list(self._tags.items())
