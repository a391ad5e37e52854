"""What the parts of a broker tell while a trace is on. `engine.watch` is None the rest of the time.

A connection has the same in `watch`, so that a message costs nothing while nobody looks: there is
one comparison for each run that is handed to a client, or that a client acknowledges.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from penstock.core.delivery.run import Run
from penstock.log.interface import Waiter

if TYPE_CHECKING:
    from penstock.broker.session.session import Session
    from penstock.broker.topic.topics import Topic


Places = Mapping[int, Sequence[int]]  # partition -> offsets


class Traced(Protocol):
    """What a trace wants to know of a record that is read."""

    @property
    def offset(self) -> int: ...

    @property
    def partition(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def qos(self) -> int: ...


class Watch(Protocol):
    """Hears what becomes of messages; a session may be None on its way out."""

    def forwarded(self, session: Session | None, name: str, count: int) -> None:
        """Messages of QoS 0 were handed to a client's connection."""
        ...

    def sent(
        self, session: Session | None, name: str, packet_ids: list[int], qos: int, again: bool
    ) -> None:
        """Messages that the client has to acknowledge were handed to its connection."""
        ...

    def acknowledged(self, session: Session, packet_ids: list[int]) -> None:
        """The client is done with messages; their ids are still in its window."""
        ...

    def rejected(self, session: Session, packet_id: int) -> None:
        """The client answered a QoS 2 message with an error; its id is still in its window."""
        ...

    def dropped(
        self, session: Session | None, name: str, count: int, reason: str, offset: int = -1
    ) -> None:
        """Messages do not reach a client; an offset of -1 is not known."""
        ...

    def lost(self, reader: str, topic: Topic, name: str, places: range, reason: str) -> None:
        """Stored messages of one name do not reach a share, or a group has given them up."""
        ...

    def read(self, reader: str, topic: str, records: Iterable[Traced], detail: str = "") -> None:
        """Records were handed to a consumer, a page, a stream or a reader of a group."""
        ...

    def settled(self, reader: str, topic: Topic, places: Places, detail: str = "") -> None:
        """A reader of a group acknowledged records, or gave them back, as the detail says."""
        ...

    def left(self, client_id: str) -> None:
        """A client disconnected: shared subscriptions give others what it had at QoS 1."""
        ...

    def ended(self, client_id: str, reason: str) -> None:
        """A session ended for good, with what was sent to it and waited for it."""
        ...

    def share_ended(self, share: str) -> None:
        """No session holds a shared subscription any more: what waited for it is dropped."""
        ...

    def refused(self, publisher: str, run: Run, reason: str, error: Exception) -> None:
        """Messages were not accepted from their publisher."""
        ...


class Watched:
    """Implements the log's Waiter while a trace is on: hears of messages that cannot be written."""

    __slots__ = ("_runs", "_waiter", "_watch")

    def __init__(self, watch: Watch, runs: Sequence[Run], waiter: Waiter) -> None:
        self._watch = watch
        self._runs = runs
        self._waiter = waiter

    @property
    def has_given_up(self) -> bool:
        return self._waiter.has_given_up

    def committed(self, offset: int) -> None:
        self._waiter.committed(offset)

    def refused(self, error: Exception) -> None:
        for run in self._runs:
            self._watch.refused(run.publisher, run, "log_unavailable", error)
        self._waiter.refused(error)
