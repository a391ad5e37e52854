"""The names of one topic that a reader may read, decided once for each name.

A gate follows its principal: when rules change, every name is decided anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.core.access.actions import READ
from penstock.core.access.principals import Principal, authorise

NAMES_MAX: Final = 10_000  # remembered; a full memory starts anew


class Gate:
    """Lets through the names that may be read."""

    __slots__ = ("_grants", "_known", "_principal", "_topic")

    def __init__(self, principal: Principal, topic: str) -> None:
        self._principal = principal
        self._topic = topic
        self._grants = principal.grants
        self._known: dict[str, bool] = {}

    @property
    def is_open(self) -> bool:
        """Does every name pass at the moment?"""
        return self._principal.grants.is_unlimited

    def pass_all(self, names: Iterable[str]) -> bool:
        """Does each of these names pass?"""
        return self.is_open or all(map(self.passes, names))

    def passes(self, name: str) -> bool:
        if self._grants is not self._principal.grants or len(self._known) >= NAMES_MAX:
            self._grants = self._principal.grants
            self._known.clear()
        known = self._known.get(name)
        if known is None:
            known = authorise(self._principal, READ, name, self._topic)
            self._known[name] = known
        return known
