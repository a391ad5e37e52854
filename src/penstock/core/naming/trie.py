"""Which values were added under a filter that matches a name, whatever the number of filters.

A tree of levels with two short cuts. What follows the last wildcard of a filter is one key in one
dict, however many levels it has; so a filter without a wildcard is one dict entry. And a filter
has nodes of its own only as far as another filter goes the same way; the rest of it is one text.
Invariant: below the root a node exists if and only if two or more filters go through it. So the
shape depends only on what is inside, and removing gives back what adding took.
Matching walks the tree level by level, without recursion, and meets each node at most once.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar, cast

V = TypeVar("V")

# "Values" below are what lies in one slot: _NOTHING, one value, or several values as the keys of
# a dict in the order of adding. Values are hashable and a dict is not, so no dict is a value.
_NOTHING: Final = object()


class FilterTrie(Generic[V]):
    """A set of (filter, value) pairs that answers which values match a name.

    Filters and names come checked (core/naming/names); values are hashable. The text of a filter
    without a wildcard is kept, not copied.
    """

    __slots__ = ("_pair_count", "_root")

    def __init__(self) -> None:
        self._root = _Node()
        self._pair_count = 0

    def __len__(self) -> int:
        """The number of pairs."""
        return self._pair_count

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left inside, neither a value nor a node on the way to one."""
        return self._root.way_count() == 0

    @property
    def node_count(self) -> int:
        """The nodes of the tree, counted by walking it: for tests and memory reports."""
        count = 0
        waiting = [self._root]
        while waiting:
            node = waiting.pop()
            count += 1
            if isinstance(node.plus, _Node):
                waiting.append(node.plus)
            if node.children is not None:
                for child in node.children.values():
                    if isinstance(child, _Node):
                        waiting.append(child)
        return count

    def add(self, filter: str, value: V) -> bool:
        """Add a pair; False if it is there already."""
        if not _add_below(self._root, filter, value):
            return False
        self._pair_count += 1
        return True

    def remove(self, filter: str, value: V) -> bool:
        """Take a pair out; False if it is not there."""
        if not _remove_below(self._root, filter, value):
            return False
        self._pair_count -= 1
        return True

    def match(self, name: str) -> list[V]:
        """The values of all matching filters, one for each matching pair.

        Names that begin with '$' are hidden from filters that begin with a wildcard
        (MQTT 5 §4.7.2).
        """
        found: list[object] = []
        _match_below(self._root, name, found)
        return cast(list[V], found)


class _Node:
    """A place in the tree through which at least two filters go, or the root.

    A child is a node, a _Tail if one filter goes there alone, or just its values if that filter
    ends with '#' right there.
    """

    __slots__ = ("children", "ends", "hash_end", "plus", "plus_end")

    def __init__(self) -> None:
        self.ends: dict[str, object] | None = None  # all levels that are left -> values
        self.plus_end: object = _NOTHING  # values of '+' as the last level
        self.hash_end: object = _NOTHING  # values of '#'
        self.children: dict[str, object] | None = None  # level before a wildcard -> child
        self.plus: object = _NOTHING  # child of '+'

    def values(self, end: str) -> object:
        """The values of a filter that ends here with `end` (see `_is_end`)."""
        if end == "#":
            return self.hash_end
        if end == "+":
            return self.plus_end
        return _NOTHING if self.ends is None else self.ends.get(end, _NOTHING)

    def set_values(self, end: str, values: object) -> None:
        if end == "#":
            self.hash_end = values
        elif end == "+":
            self.plus_end = values
        else:
            self.ends = _changed(self.ends, end, values)

    def child(self, level: str) -> object:
        if level == "+":
            return self.plus
        return _NOTHING if self.children is None else self.children.get(level, _NOTHING)

    def set_child(self, level: str, child: object) -> None:
        if level == "+":
            self.plus = child
        else:
            self.children = _changed(self.children, level, child)

    def way_count(self) -> int:
        """How many ways lead on from here, ends included."""
        count = 0 if self.ends is None else len(self.ends)
        if self.children is not None:
            count += len(self.children)
        for slot in (self.plus_end, self.hash_end, self.plus):
            if slot is not _NOTHING:
                count += 1
        return count


class _Tail:
    """The last levels of a filter that goes its way alone, and its values."""

    __slots__ = ("levels", "values")

    def __init__(self, levels: str, values: object) -> None:
        self.levels = levels
        self.values = values


def _add_below(root: _Node, filter: str, value: object) -> bool:
    node = root
    rest = filter
    while not _is_end(rest):
        level, _, rest = rest.partition("/")
        child = node.child(level)
        if isinstance(child, _Node):
            node = child
            continue
        lone_rest, values = _taken_apart(child)
        if child is _NOTHING or lone_rest == rest:
            if _holds(values, value):
                return False
            node.set_child(level, _lone(rest, _joined(values, value)))
            return True
        # Another filter goes this way alone: from here on both go through a node.
        inner = _Node()
        _put_alone(inner, lone_rest, values)
        node.set_child(level, inner)
        node = inner
    values = node.values(rest)
    if _holds(values, value):
        return False
    node.set_values(rest, _joined(values, value))
    return True


def _remove_below(root: _Node, filter: str, value: object) -> bool:
    node = root
    rest = filter
    path: list[tuple[_Node, str]] = []
    while not _is_end(rest):
        level, _, rest = rest.partition("/")
        child = node.child(level)
        if isinstance(child, _Node):
            path.append((node, level))
            node = child
            continue
        lone_rest, values = _taken_apart(child)
        if lone_rest != rest or not _holds(values, value):
            return False
        node.set_child(level, _lone(rest, _without(values, value)))
        _fold(path)
        return True
    values = node.values(rest)
    if not _holds(values, value):
        return False
    node.set_values(rest, _without(values, value))
    _fold(path)
    return True


def _match_below(root: _Node, name: str, found: list[object]) -> None:
    is_hidden = name.startswith("$")
    start = 0
    nodes = [root]
    while True:
        end = name.find("/", start)
        is_last = end < 0
        level = name[start:] if is_last else name[start:end]
        beyond = -1 if is_last else end + 1
        left: str | None = None  # cut and hashed at most once a level: a name may be long
        below: list[_Node] = []
        for node in nodes:
            ends = node.ends
            if ends is not None:
                if left is None:
                    left = name[start:]
                values = ends.get(left, _NOTHING)
                if values is not _NOTHING:
                    _give(values, found)
            children = node.children
            if children is not None:
                child = children.get(level, _NOTHING)
                if child is not _NOTHING:
                    _follow(child, name, beyond, below, found)
            if is_hidden:
                continue
            if node.hash_end is not _NOTHING:
                _give(node.hash_end, found)
            if node.plus_end is not _NOTHING and is_last:
                _give(node.plus_end, found)
            if node.plus is not _NOTHING:
                _follow(node.plus, name, beyond, below, found)
        nodes = below
        if is_last or not below:
            break
        start = beyond
        is_hidden = False
    for node in nodes:
        if node.hash_end is not _NOTHING:  # also the level above it (MQTT 5 §4.7.1.2)
            _give(node.hash_end, found)


def _follow(child: object, name: str, start: int, below: list[_Node], found: list[object]) -> None:
    """Go on from a level that matched; the name goes on at `start`, or ended if it is negative."""
    if isinstance(child, _Node):
        below.append(child)
    elif isinstance(child, _Tail):
        if _tail_matches(child.levels, name, start):
            _give(child.values, found)
    else:
        _give(child, found)


def _tail_matches(tail: str, name: str, start: int) -> bool:
    """Whether the levels of the name from `start` on match; stops at the first that does not."""
    at = 0
    while True:
        end = tail.find("/", at)
        want = tail[at:] if end < 0 else tail[at:end]
        if want == "#":
            return True
        if start < 0:
            return False
        stop = name.find("/", start)
        if want != "+" and want != (name[start:] if stop < 0 else name[start:stop]):
            return False
        start = -1 if stop < 0 else stop + 1
        if end < 0:
            return start < 0
        at = end + 1


def _is_end(rest: str) -> bool:
    """Whether what is left of a filter is an end: '#', '+', or levels without a wildcard."""
    return rest == "#" or rest == "+" or ("+" not in rest and "#" not in rest)


def _lone(rest: str, values: object) -> object:
    """The child for a filter that goes on alone with `rest`."""
    if values is _NOTHING or rest == "#":
        return values
    return _Tail(rest, values)


def _taken_apart(lone: object) -> tuple[str, object]:
    """What `_lone` was made of."""
    if isinstance(lone, _Tail):
        return lone.levels, lone.values
    return "#", lone


def _put_alone(node: _Node, rest: str, values: object) -> None:
    """Let the first filter into a new node."""
    if _is_end(rest):
        node.set_values(rest, values)
    else:
        level, _, beyond = rest.partition("/")
        node.set_child(level, _lone(beyond, values))


def _take_alone(node: _Node) -> tuple[str, object]:
    """The opposite of `_put_alone`; no values if more than one filter goes through the node."""
    if node.way_count() != 1:
        return "", _NOTHING
    if node.hash_end is not _NOTHING:
        return "#", node.hash_end
    if node.plus_end is not _NOTHING:
        return "+", node.plus_end
    if node.ends is not None:
        return next(iter(node.ends.items()))
    level, child = "+", node.plus
    if node.children is not None:
        level, child = next(iter(node.children.items()))
    if isinstance(child, _Node):
        return "", _NOTHING
    beyond, values = _taken_apart(child)
    return level + "/" + beyond, values


def _fold(path: list[tuple[_Node, str]]) -> None:
    """Restore the invariant after a removal, from its place back to the root."""
    for node, level in reversed(path):
        child = node.child(level)
        assert isinstance(child, _Node)
        rest, values = _take_alone(child)
        if values is _NOTHING:
            return
        node.set_child(level, _lone(rest, values))


def _changed(
    slots: dict[str, object] | None, key: str, content: object
) -> dict[str, object] | None:
    """The dict with one entry set, or deleted by _NOTHING; an empty dict is None."""
    if content is not _NOTHING:
        if slots is None:
            return {key: content}
        slots[key] = content
        return slots
    if slots is None:
        return None
    slots.pop(key, None)
    return slots or None  # an emptied dict would keep its table, which may be large


def _give(values: object, found: list[object]) -> None:
    if type(values) is dict:
        found.extend(values)
    else:
        found.append(values)


def _holds(values: object, value: object) -> bool:
    if type(values) is dict:
        return value in values
    return values is value or values == value


def _joined(values: object, value: object) -> object:
    """The values with one more, which is not among them."""
    if values is _NOTHING:
        return value
    if type(values) is dict:
        values[value] = None
        return values
    return {values: None, value: None}


def _without(values: object, value: object) -> object:
    """The values without one of them."""
    if type(values) is dict:
        del values[value]
        if len(values) > 1:
            return values
        return next(iter(values))
    return _NOTHING
