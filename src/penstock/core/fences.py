"""Fences: from where on the marked records of a dead node are void in a log that several write to.

Every start of a node is an incarnation. When a node is declared dead, another one appends a fence
to each log, then looks for the marks of the dead node before it. A process that was only frozen may
append after that: a marked record of an incarnation that lies beyond its fence counts for no
reader. Records without marks promise nothing but to be stored, and stay valid.

Invariant: the first fence of an incarnation in a log counts, so everybody who reads the log in
order, or knows the offsets of its fences, comes to the same answer.
"""

from __future__ import annotations

from collections.abc import Mapping


class Fences:
    """The fences of one log."""

    def __init__(self, known: Mapping[int, int] | None = None) -> None:
        self._offsets: dict[int, int] = dict(known or {})  # incarnation -> offset of its fence

    def __bool__(self) -> bool:
        return bool(self._offsets)

    def note(self, incarnation: int, offset: int) -> bool:
        """There is a fence of this incarnation at this offset; False if an earlier one counts."""
        known = self._offsets.get(incarnation)
        if known is not None and known <= offset:
            return False
        self._offsets[incarnation] = offset
        return True

    def offset_of(self, incarnation: int) -> int | None:
        """Where the fence of an incarnation is; None if it has none."""
        return self._offsets.get(incarnation)

    def is_void(self, incarnation: int, offset: int) -> bool:
        """Whether a marked record of this incarnation at this offset counts for nobody."""
        fence = self._offsets.get(incarnation)
        return fence is not None and fence < offset

    def as_dict(self) -> dict[int, int]:
        """Offsets by incarnation."""
        return dict(self._offsets)
