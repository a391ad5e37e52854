"""Names by their levels: all names that a filter matches, without looking at the others.

The counterpart of the trie: there many filters wait for one name, here many names for one filter.
Iterative and lazy; the tree may change while a match is under way, and then a name added meanwhile
may or may not come.
"""

from __future__ import annotations

from collections.abc import Iterator


class _Level:
    __slots__ = ("below", "is_name")

    def __init__(self) -> None:
        self.below: dict[str, _Level] = {}
        self.is_name = False


class NameTree:
    """A set of names that can be asked by filter."""

    def __init__(self) -> None:
        self._root = _Level()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, name: str) -> bool:
        """False if it is there already."""
        level = self._root
        for part in name.split("/"):
            below = level.below.get(part)
            if below is None:
                below = level.below[part] = _Level()
            level = below
        if level.is_name:
            return False
        level.is_name = True
        self._count += 1
        return True

    def remove(self, name: str) -> bool:
        """False if it is not there. Levels that hold nothing more go with it."""
        path: list[tuple[_Level, str]] = []
        level = self._root
        for part in name.split("/"):
            below = level.below.get(part)
            if below is None:
                return False
            path.append((level, part))
            level = below
        if not level.is_name:
            return False
        level.is_name = False
        self._count -= 1
        while path and not level.is_name and not level.below:
            level, part = path.pop()
            del level.below[part]
        return True

    def matching(self, filter: str) -> Iterator[str]:
        """Every name that the checked filter matches; `$` names hide from leading wildcards."""
        parts = filter.split("/")
        end = len(parts)
        stack: list[tuple[_Level, int, str]] = [(self._root, 0, "")]
        while stack:
            level, depth, prefix = stack.pop()
            if depth == end:
                if level.is_name:
                    yield prefix[:-1]
                continue
            part = parts[depth]
            if part not in ("+", "#"):
                below = level.below.get(part)
                if below is not None:
                    stack.append((below, depth + 1, f"{prefix}{part}/"))
                continue
            is_rest = part == "#"
            if is_rest and level.is_name:  # `a/#` matches `a` as well
                yield prefix[:-1]
            for name, below in list(level.below.items()):
                if level is self._root and name.startswith("$"):
                    continue
                stack.append((below, depth if is_rest else depth + 1, f"{prefix}{name}/"))
