"""Marks of published wills in the logs: which rows of wills the next checkpoint removes."""

from __future__ import annotations

import struct
from typing import Final

from penstock.catalog.session.saving import Checkpoint
from penstock.log.format.marks import MARK_WILL, Mark

_KEY: Final = struct.Struct(">Q")


def will_mark(will_id: int) -> Mark:
    """Beside the message of a will: it is published."""
    return Mark(MARK_WILL, _KEY.pack(will_id), 0)


class WillMarks:
    """A view: the ids of wills that are in the logs and still in the catalog."""

    def __init__(self) -> None:
        self._ids: set[int] = set()
        self._taken: set[int] = set()

    def follow(self, mark: Mark) -> None:
        """A mark found in a log."""
        self._ids.update(_KEY.unpack(mark.key))

    def note(self, will_id: int) -> None:
        """Its mark is in a log; called before the next checkpoint can see that log's end."""
        self._ids.add(will_id)

    def take_changes(self, point: Checkpoint) -> bool:
        self._taken, self._ids = self._ids, set()
        point.wills = list(self._taken)
        return bool(self._taken)

    def settle(self, *, is_saved: bool) -> None:
        if not is_saved:
            self._ids |= self._taken
        self._taken = set()
