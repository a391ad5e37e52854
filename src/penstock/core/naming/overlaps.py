"""How many filters of one session a name can match, at most.

That bounds the work that a session causes with each new name, and what is sent with each message:
the identifiers of all matching subscriptions (MQTT 5 §3.3.4). The answer is an upper bound: it
assumes that one name takes the worst way on every level. So it also bounds how many nodes of the
tree of filters a name leads to on each level. Filters without a wildcard match one name each and
are left out.
"""

from __future__ import annotations

from typing import Final

OVERLAPS_MAX: Final = 64  # filters of a session with a wildcard that match one name


class Overlaps:
    """The filters of one session that have a wildcard."""

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root = _Node()

    @property
    def most(self) -> int:
        """So many filters match one name, at most."""
        return self._root.most

    def add(self, filter: str) -> bool:
        """Take one more; False, and it is not taken, if a name could then match too many."""
        if not has_wildcard(filter):
            return True
        self._change(filter, 1)
        if self.most <= OVERLAPS_MAX:
            return True
        self._change(filter, -1)
        return False

    def remove(self, filter: str) -> None:
        """One that was added is gone."""
        if has_wildcard(filter):
            self._change(filter, -1)

    def _change(self, filter: str, change: int) -> None:
        """Count a filter in or out, then its way back to the root."""
        path: list[tuple[_Node, str, _Node]] = []
        node = self._root
        for level in filter.split("/"):
            if level == "#":
                node.hashes += change
                break
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _Node()
            path.append((node, level, child))
            node = child
        else:
            node.ends += change
        for parent, level, child in reversed(path):
            parent.recount(level, child)
        self._root.count()


class _Node:
    """A place that filters go through; '+' is a child like any other level."""

    __slots__ = ("children", "ends", "hashes", "most", "tally")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.ends = 0  # filters that end here
        self.hashes = 0  # filters that end with '#' here
        self.most = 0  # filters from here on that match one name
        self.tally: dict[int, int] = {}  # how many children other than '+' have so many

    def count(self) -> None:
        plus = self.children.get("+")
        below = max(self.tally, default=0) + (0 if plus is None else plus.most)
        self.most = self.hashes + max(self.ends, below)

    def recount(self, level: str, child: _Node) -> None:
        """Something below a child has changed; one that is empty is let go."""
        before = child.most
        child.count()
        if not child.most:
            del self.children[level]
        if level != "+":
            self._tally(before, -1)
            self._tally(child.most, 1)

    def _tally(self, most: int, change: int) -> None:
        if most:
            self.tally[most] = self.tally.get(most, 0) + change
            if not self.tally[most]:
                del self.tally[most]


def has_wildcard(filter: str) -> bool:
    return "+" in filter or filter.endswith("#")
