"""Bytes that a door holds for its clients, counted against one bound for all of them together.

Each connection has a `Share` of a `Budget`. Until it is known who a client is, its share belongs to
the budget of strangers, which is small and which all doors have in common; then the share moves to
the budget of known clients. So strangers can use up only what is set aside for strangers.
Compiled by mypyc; the same source runs interpreted.
"""

from __future__ import annotations

from typing import Final

from penstock.model.limits import KIB, MIB

STRANGERS_BYTES_MAX: Final = 32 * MIB  # of all clients that have not logged in, all doors together
STRANGER_BYTES_MAX: Final = 64 * KIB  # of one of them


class Budget:
    """Bytes held, and how many there may be."""

    __slots__ = ("bytes", "bytes_max")

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self.bytes_max = bytes_max


class Share:
    """What one connection holds of a budget. `close` gives back whatever is left of it."""

    __slots__ = ("_budget", "bytes")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.bytes = 0

    def take(self, size: int) -> bool:
        """Count these bytes; False if the budget has no room for them, and they do not count."""
        budget = self._budget
        if budget.bytes + size > budget.bytes_max:
            return False
        budget.bytes += size
        self.bytes += size
        return True

    def give_back(self, size: int) -> None:
        assert size <= self.bytes, "more than was taken"
        self.bytes -= size
        self._budget.bytes -= size

    def move(self, budget: Budget) -> None:
        """Count everything against another budget: now it is known who the client is."""
        if budget is not self._budget:
            self._budget.bytes -= self.bytes
            self._budget = budget
            budget.bytes += self.bytes

    def close(self) -> None:
        self.give_back(self.bytes)
