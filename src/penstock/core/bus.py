"""The bus, dry: integer ids, who subscribed to what, and the ring of what waits to be published.

An id has 16 bits: the high byte is the group, the low byte the topic. Group 0 reaches everybody who
subscribed to the topic; another group reaches only those who subscribed with that group.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Generic, TypeVar

from penstock.model.errors import AlreadySubscribed, NotSubscribed, RefusedError
from penstock.model.limits import MIB, PAYLOAD_BYTES_MAX
from penstock.model.messages import check_payload_size

GROUPS: Final = 256
TOPICS: Final = 256
EVERYBODY: Final = 0  # the group that reaches every subscriber of a topic
RING_MAX: Final = 256  # what waits to be published; beyond it publishing is refused
PEEK_BYTES_MAX: Final = 4 * MIB  # handed out at once; a single message may be larger
PROCESSES_MAX: Final = 64

P = TypeVar("P")  # whatever stands for a process


def split_id(id: int) -> tuple[int, int]:
    """(group, topic) of an id; RefusedError if the id is invalid."""
    if isinstance(id, bool) or not isinstance(id, int) or not 0 <= id < GROUPS * TOPICS:
        raise RefusedError(
            f"{id!r} is not a bus id: use a whole number from 0 to {GROUPS * TOPICS - 1}, "
            "256 × group + topic"
        )
    return id >> 8, id & 0xFF


def join_id(group: int, topic: int) -> int:
    return group << 8 | topic


class BusTable(Generic[P]):
    """Who subscribed to which topic, and with which group; at most once each."""

    def __init__(self, processes_max: int = PROCESSES_MAX) -> None:
        self._processes_max = processes_max
        self._groups: dict[int, dict[P, int]] = {}  # topic -> process -> group
        self._counts: dict[P, int] = {}  # topics of each process

    def subscribe(self, process: P, id: int) -> None:
        """AlreadySubscribed when the process has the topic, whatever the group."""
        group, topic = split_id(id)
        groups = self._groups.setdefault(topic, {})
        known = groups.get(process)
        if known is not None:
            raise AlreadySubscribed(
                f"this process has subscribed to bus topic {topic} (group {known}): "
                "unsubscribe first, a process has one handler for each topic"
            )
        if process not in self._counts and len(self._counts) >= self._processes_max:
            raise RefusedError(
                f"{self._processes_max} processes are already on the bus: increase [bus] "
                "processes_max"
            )
        groups[process] = group
        self._counts[process] = self._counts.get(process, 0) + 1

    def unsubscribe(self, process: P, id: int) -> None:
        _, topic = split_id(id)
        if self._groups.get(topic, {}).pop(process, None) is None:
            raise NotSubscribed(f"this process has not subscribed to bus topic {topic}")
        self._counts[process] -= 1
        if not self._counts[process]:
            del self._counts[process]

    def drop(self, process: P) -> None:
        """A process that is gone is subscribed to nothing."""
        self._counts.pop(process, None)
        for groups in self._groups.values():
            groups.pop(process, None)

    def reached_by(self, id: int) -> list[P]:
        """The processes whose handlers a message calls, in the order they subscribed."""
        wanted, topic = split_id(id)
        groups = self._groups.get(topic, {})
        return [one for one, group in groups.items() if wanted in (EVERYBODY, group)]


class Ring:
    """What was published and waits for the broker's loop; refuses when it is full."""

    def __init__(
        self, count_max: int = RING_MAX, *, payload_bytes_max: int = PAYLOAD_BYTES_MAX
    ) -> None:
        self._count_max = count_max
        self._payload_bytes_max = payload_bytes_max
        self._waiting: deque[tuple[int, bytes]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, id: int, data: bytes) -> None:
        """RefusedError when it is full, or the message too large: nothing was published."""
        split_id(id)
        check_payload_size(len(data), self._payload_bytes_max)
        if len(self._waiting) >= self._count_max:
            raise RefusedError(
                f"{self._count_max} messages wait on the bus: nothing was published, try again"
            )
        self._waiting.append((id, data))

    def peek(self) -> list[tuple[int, bytes]]:
        """What is stored next, oldest first; it stays until `drop_first`."""
        first: list[tuple[int, bytes]] = []
        size = 0
        for id, data in self._waiting:
            size += len(data)
            if first and size > PEEK_BYTES_MAX:
                break
            first.append((id, data))
        return first

    def drop_first(self, count: int) -> None:
        """The oldest `count` have been published."""
        for _ in range(count):
            self._waiting.popleft()
