"""Which topic holds a name.

The first binding whose filter matches the name decides; without one, the declared topic equal to
the name's first level; without that, `default`. Topics are known by their key, so letter case does
not matter. Invariant: every binding leads to a declared topic, and `version` grows with every
change, so a caller that caches an answer can tell whether it is still valid.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from penstock.core.naming.names import (
    AUDIT_TOPIC,
    check_filter,
    check_topic,
    covers,
    first_level,
    overlaps,
    quoted,
    topic_key,
)
from penstock.core.naming.trie import FilterTrie
from penstock.model.errors import RefusedError, TopicExists, TopicNotFound

DEFAULT_TOPIC: Final = "default"
SHOWN_BINDINGS_MAX: Final = 3  # in an error message; a topic may have thousands


@dataclass(frozen=True, slots=True)
class Binding:
    """Names that match `filter` go to the topic with the key `topic`."""

    filter: str
    topic: str


class Placement:
    """The declared topics and the bindings of one tenant. Bindings keep the order of binding."""

    __slots__ = ("_bindings", "_filters", "_orders", "_spellings", "version")

    def __init__(
        self, topics: Iterable[str] = (), bindings: Iterable[tuple[str, str]] = ()
    ) -> None:
        self._spellings: dict[str, str] = {}  # topic key -> as declared
        self._bindings: dict[int, Binding] = {}  # order -> binding; orders only grow
        self._orders: dict[str, int] = {}  # filter -> order
        self._filters: FilterTrie[int] = FilterTrie()  # filter -> order
        self.version = 0  # grows with every change; equal versions give equal answers
        for topic in topics:
            self.add_topic(topic)
        for filter, topic in bindings:
            self.bind(filter, topic)

    @property
    def topics(self) -> tuple[str, ...]:
        """The declared topics, in their declared spelling, in the order of declaration."""
        return tuple(self._spellings.values())

    @property
    def bindings(self) -> tuple[Binding, ...]:
        """The bindings, the one that decides first in front."""
        return tuple(self._bindings.values())

    def place(self, name: str) -> str:
        """The key of the topic that holds a checked name.

        `default` is the answer whether or not it is declared. The cost depends on the bindings
        that match, not on all there are.
        """
        orders = self._filters.match(name)
        if orders:
            return self._bindings[min(orders)].topic
        key = topic_key(first_level(name))
        return key if key in self._spellings else DEFAULT_TOPIC

    def homeless(self, name: str) -> str:
        """The first level of a checked name that only `default` takes; empty if another does."""
        first = first_level(name)
        is_placed = self._filters.match(name) or topic_key(first) in self._spellings
        return "" if is_placed else first

    def places(self, filter: str) -> set[str]:
        """The keys of the topics that may hold names which a checked filter matches.

        Goes through the bindings: meant for the few who must know, not for every message.
        """
        found = set()
        for binding in self._bindings.values():
            if overlaps(binding.filter, filter):
                found.add(binding.topic)
            if covers(binding.filter, filter):
                return found
        first = first_level(filter)
        if first in ("+", "#"):
            return found.union(self._spellings, (DEFAULT_TOPIC,))
        key = topic_key(first)
        found.add(key if key in self._spellings else DEFAULT_TOPIC)
        return found

    def add_topic(self, topic: str) -> str:
        """Declare a topic; returns its key. TopicExists if it is declared in any letter case."""
        key = topic_key(topic if topic == AUDIT_TOPIC else check_topic(topic))
        if key in self._spellings:
            raise TopicExists(
                f"topic {quoted(self._spellings[key])} already exists: use it, or choose a name "
                "that differs by more than letter case"
            )
        self._spellings[key] = topic
        self.version += 1
        return key

    def remove_topic(self, topic: str) -> None:
        """Forget a topic; refused while a binding leads to it."""
        key = self._declared_key(topic)
        bound = [binding.filter for binding in self._bindings.values() if binding.topic == key]
        if bound:
            shown = ", ".join(quoted(filter) for filter in bound[:SHOWN_BINDINGS_MAX])
            if len(bound) > SHOWN_BINDINGS_MAX:
                shown += f" and {len(bound) - SHOWN_BINDINGS_MAX} more"
            raise RefusedError(
                f"topic {quoted(topic)} has names bound to it by {shown}: a binding needs its "
                "topic; unbind these filters first"
            )
        del self._spellings[key]
        self.version += 1

    def bind(self, filter: str, topic: str) -> bool:
        """Send matching names to a topic from now on; False if exactly this binding exists."""
        check_filter(filter)
        key = self._declared_key(topic)
        order = self._orders.get(filter)
        if order is not None:
            existing = self._bindings[order].topic
            if existing == key:
                return False
            raise RefusedError(
                f"filter {quoted(filter)} is bound to topic {quoted(self._spellings[existing])}: "
                f"a filter has one topic; unbind it before binding it to {quoted(topic)}"
            )
        self.version += 1
        order = self.version  # as good as a counter of its own: it only grows
        self._orders[filter] = order
        self._bindings[order] = Binding(filter, key)
        self._filters.add(filter, order)
        return True

    def unbind(self, filter: str) -> None:
        """Remove a binding; RefusedError if the filter is not bound."""
        order = self._orders.pop(check_filter(filter), None)
        if order is None:
            raise RefusedError(
                f"filter {quoted(filter)} is not bound: only an existing binding can be taken "
                "back; give the filter exactly as it was bound"
            )
        del self._bindings[order]
        self._filters.remove(filter, order)
        self.version += 1

    def _declared_key(self, topic: str) -> str:
        key = topic_key(check_topic(topic))
        if key not in self._spellings:
            raise TopicNotFound(
                f"topic {quoted(topic)} is not declared: only declared topics hold bindings "
                "and records; create it first"
            )
        return key
