"""The answers a client waits for: given in the order they became due, each once it is true.

Receipts of one connection hang on each other, oldest first, so one that waits for nothing has no
container. Compiled by mypyc; the same source runs interpreted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.mqtt.reasons import Reason

PUBACK: Final = 0x40
PUBREC: Final = 0x50
PUBREL: Final = 0x62
PUBCOMP: Final = 0x70


class Receipt:
    """Implements the log's Waiter for messages that are acknowledged together."""

    __slots__ = ("_on_done", "error", "first_byte", "is_done", "next", "packet_ids", "reason")

    def __init__(self, first_byte: int, packet_ids: list[int], on_done: Callable[[], None]) -> None:
        self.first_byte = first_byte
        self.packet_ids = packet_ids
        self.reason = Reason.SUCCESS  # what is said if there is no error
        self.is_done = False
        self.error: Exception | None = None
        self.next: Receipt | None = None  # the one that became due after it
        self._on_done = on_done

    @property
    def has_given_up(self) -> bool:
        return False

    def committed(self, offset: int) -> None:
        self.is_done = True
        self._on_done()

    def refused(self, error: Exception) -> None:
        self.is_done = True
        self.error = error
        self._on_done()
