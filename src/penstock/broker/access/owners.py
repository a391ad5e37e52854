"""Whose each of many things is, and how many of them everybody has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, KeysView
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Amounts:
    """How many things, and how many bytes of them, each owner has. Nobody's are not counted."""

    __slots__ = ("_bytes", "_counts")

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    def add(self, owner: str | None, count: int, size: int) -> None:
        """Negative numbers take away."""
        if owner is None:
            return
        self._counts[owner] += count
        self._bytes[owner] += size
        if not self._counts[owner] and not self._bytes[owner]:
            del self._counts[owner], self._bytes[owner]

    def count_of(self, owner: str) -> int:
        return self._counts[owner]

    def bytes_of(self, owner: str) -> int:
        return self._bytes[owner]


class Owners(Generic[Key]):
    """The owners by what they own: sessions by client id, wills and topics by their ids."""

    def __init__(
        self, owners: dict[Key, str] | None = None, weights: Iterable[tuple[Key, int]] = ()
    ) -> None:
        self._owners: dict[Key, str] = owners or {}
        self._counts = Counter(self._owners.values())
        self._weights: dict[Key, int] = {}  # of those that weigh something
        self._held: Counter[str] = Counter()  # weights by owner
        self.weight = 0  # of all together
        for key, weight in weights:
            self.weigh(key, weight)

    def __len__(self) -> int:
        return len(self._owners)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._owners)

    def __contains__(self, key: object) -> bool:
        return key in self._owners

    def put(self, key: Key, owner: str | None) -> None:
        """One of them, unless nobody owns it."""
        if owner is not None:
            self[key] = owner

    def __setitem__(self, key: Key, owner: str) -> None:
        self.pop(key)
        self._owners[key] = owner
        self._counts[owner] += 1

    def get(self, key: Key, default: str) -> str:
        return self._owners.get(key, default)

    def keys(self) -> KeysView[Key]:
        return self._owners.keys()

    def pop(self, key: Key, default: None = None) -> str | None:
        """Forget one of them; its owner, if it had one."""
        self.weigh(key, 0)
        owner = self._owners.pop(key, default)
        if owner is not None:
            self._counts[owner] -= 1
            if not self._counts[owner]:
                del self._counts[owner]
        return owner

    def count_of(self, owner: str) -> int:
        """How many an owner has."""
        return self._counts[owner]

    def weigh(self, key: Key, weight: int) -> None:
        """One of them weighs this from now on: how many filters a session has, say."""
        owner = self._owners.get(key)
        if owner is None:
            return
        more = weight - self._weights.pop(key, 0)
        if weight:
            self._weights[key] = weight
        if more:
            self.weight += more
            self._held[owner] += more
            if not self._held[owner]:
                del self._held[owner]

    def weight_of(self, owner: str) -> int:
        """Of all that an owner has."""
        return self._held[owner]
