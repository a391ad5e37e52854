"""Sessions: what one client subscribed to, and how far it is.

While a session is level with a topic, commits are handed to it as they come. When its window or its
connection is full it lags: the offset to go on at is remembered, and the log is its buffer (law 4).
Compiled by mypyc; the same source runs interpreted.
"""

from __future__ import annotations

from typing import Final, Protocol

from penstock.broker.runs import Encoding, Run
from penstock.core.window import Window

TAG_SHIFT: Final = 48  # a window's tag is topic id << TAG_SHIFT | offset


class Outbox(Protocol):
    """A door's side of delivery: one connection."""

    @property
    def has_room(self) -> bool:
        """False while too much waits to be sent."""
        ...

    def encoding(
        self, qos: int, retain_as_published: bool, identifiers: tuple[int, ...]
    ) -> Encoding: ...

    def forward(self, run: Run, data: bytes) -> None:
        """Messages without acknowledgement; dropped and counted when there is no room."""
        ...

    def send(
        self, run: Run, first: int, packet_ids: list[int], encoding: Encoding, dup: bool
    ) -> int:
        """Messages [first, first + len(packet_ids)) of a run, to be acknowledged; bytes sent."""
        ...


class Subscription:
    """One filter of a session and its options."""

    __slots__ = ("filter", "identifier", "no_local", "qos", "retain_as_published", "session")

    def __init__(
        self,
        session: Session,
        filter: str,
        qos: int,
        no_local: bool = False,
        retain_as_published: bool = False,
        identifier: int = 0,
    ) -> None:
        self.session = session
        self.filter = filter
        self.qos = qos
        self.no_local = no_local
        self.retain_as_published = retain_as_published
        self.identifier = identifier  # 0: none


class Session:
    """One client's subscriptions and its window. `outbox` is None while it is not connected."""

    __slots__ = ("client_id", "lags", "outbox", "subscriptions", "window")

    def __init__(self, client_id: str, outbox: Outbox | None, window_max: int) -> None:
        self.client_id = client_id
        self.outbox = outbox
        self.window = Window(window_max)
        self.subscriptions: dict[str, Subscription] = {}
        self.lags: dict[int, int] = {}  # topic id -> the offset to go on at

    @property
    def has_room(self) -> bool:
        """May another message be sent right now?"""
        outbox = self.outbox
        return outbox is not None and self.window.room > 0 and outbox.has_room

    def offer(self, topic_id: int, base_offset: int, run: Run, encoding: Encoding) -> None:
        """A run became durable at `base_offset`; send what fits, lag behind with the rest."""
        if topic_id in self.lags:
            return  # reading the log will bring it
        sent = 0
        if self.has_room:
            sent = self.send(topic_id, base_offset, run, 0, encoding)
        if sent < run.count:
            self.lags[topic_id] = base_offset + sent

    def send(
        self, topic_id: int, base_offset: int, run: Run, first: int, encoding: Encoding
    ) -> int:
        """Send messages of a run from `first` on, as many as the window takes; how many."""
        outbox = self.outbox
        assert outbox is not None
        room = self.window.room
        count = run.count - first
        if count > room:
            count = room
        ids = self.window.take(topic_id << TAG_SHIFT | base_offset + first, count)
        outbox.send(run, first, ids, encoding, False)
        return count
