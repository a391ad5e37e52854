"""What a tracer remembers of messages, to say later what became of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, NamedTuple, TypeVar

from penstock.broker.topic.topics import Topic

K = TypeVar("K")
V = TypeVar("V")

REMEMBERED_MAX: Final = 10_000  # messages, of each kind
NOT_KNOWN: Final = -1


class Where(NamedTuple):
    """The place of the first message that an event is about."""

    topic: str = ""
    offset: int = NOT_KNOWN
    partition: int = 0


class Message(NamedTuple):
    """A message that is on its way to a reader."""

    name: str
    qos: int
    where: Where = Where()
    share: str = ""  # the shared subscription that gave it to the reader


class Stored(NamedTuple):
    """A stored message that is followed."""

    where: Where
    name: str
    publisher: str
    qos: int

    def follows(self, other: Stored) -> bool:
        """Do both differ in their offsets only, and lie next to each other?"""
        before = other.where._replace(offset=self.where.offset - 1)
        return self == other._replace(where=self.where) and other.where == before


class ByReader(Generic[K, V]):
    """Messages by reader and key, REMEMBERED_MAX at most: further ones are not remembered."""

    def __init__(self) -> None:
        self._of: dict[str, dict[K, V]] = {}
        self._count = 0

    def put(self, reader: str, key: K, value: V) -> None:
        mine = self._of.setdefault(reader, {})
        if key in mine or self._count < REMEMBERED_MAX:
            self._count += key not in mine
            mine[key] = value

    def pop(self, reader: str, key: K) -> V | None:
        mine = self._of.get(reader)
        if mine is None or key not in mine:
            return None
        self._count -= 1
        value = mine.pop(key)
        if not mine:
            del self._of[reader]
        return value

    def of(self, reader: str) -> list[tuple[K, V]]:
        return list(self._of.get(reader, {}).items())

    def take(self, reader: str) -> list[tuple[K, V]]:
        """All of a reader, which are remembered no longer."""
        taken = list(self._of.pop(reader, {}).items())
        self._count -= len(taken)
        return taken

    def __iter__(self) -> Iterator[tuple[str, K, V]]:
        for reader, mine in list(self._of.items()):
            for key, value in list(mine.items()):
                yield reader, key, value

    def clear(self) -> None:
        self._of.clear()
        self._count = 0


def is_removed(topic: Topic | None, offset: int) -> bool:
    """Can the record no longer be read from the log or its history? None: the topic is deleted."""
    return topic is None or offset < topic.log.bounds().first
