"""The answers a client waits for: given in the order they became due, each once it is true.

Compiled by mypyc; the same source runs interpreted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from penstock.mqtt.reasons import Reason

PUBACK: Final = 0x40
PUBREC: Final = 0x50
PUBREL: Final = 0x62
PUBCOMP: Final = 0x70


class Receipt:
    """Implements the log's Waiter for messages that are acknowledged together."""

    __slots__ = ("_on_done", "error", "first_byte", "is_done", "packet_ids", "reason")

    def __init__(self, first_byte: int, packet_ids: list[int], on_done: Callable[[], None]) -> None:
        self.first_byte = first_byte
        self.packet_ids = packet_ids
        self.reason = Reason.SUCCESS  # what is said if there is no error
        self.is_done = False
        self.error: Exception | None = None
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


class Receipts:
    """All receipts of one connection that were not given yet."""

    __slots__ = ("_due", "_on_done", "pubacks", "unacked")

    def __init__(self, on_done: Callable[[], None]) -> None:
        self._due: deque[Receipt] = deque()
        self._on_done = on_done
        self.unacked = 0  # packets without an answer
        self.pubacks = 0  # those of them that are messages of QoS 1

    @property
    def is_empty(self) -> bool:
        return not self._due

    def add(self, first_byte: int, packet_ids: list[int]) -> Receipt:
        """An answer to be given when it is done, after all that were added before."""
        receipt = Receipt(first_byte, packet_ids, self._on_done)
        self._due.append(receipt)
        self._count(receipt, len(packet_ids))
        return receipt

    def take(self) -> Receipt | None:
        """The next one, if it is done."""
        due = self._due
        if not due or not due[0].is_done:
            return None
        receipt = due.popleft()
        self._count(receipt, -len(receipt.packet_ids))
        return receipt

    def _count(self, receipt: Receipt, change: int) -> None:
        self.unacked += change
        if receipt.first_byte == PUBACK:
            self.pubacks += change
