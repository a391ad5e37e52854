"""Sessions: what one client subscribed to, and how far it is.

While a session is level with a topic, commits are handed to it as they come. When its window or its
connection is full it lags: the offset to go on at is remembered, and the log is its buffer (law 4).
Compiled by mypyc; the same source runs interpreted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from penstock.broker.trace.watch import Watch
from penstock.core.access import Grants, Principal
from penstock.core.delivery.rule import Want
from penstock.core.delivery.run import Encoding, Run, pieces
from penstock.core.delivery.tags import NO_FEED, PLACE_SHIFT, TAG_SHIFT
from penstock.core.delivery.window import Window
from penstock.core.naming.overlaps import Overlaps
from penstock.core.where import Where
from penstock.model.will import NO_WILL

NO_TOPIC: Final = 0  # topic id of messages that are not stored yet
NEVER_EXPIRES: Final = 0xFFFF_FFFF  # seconds a session outlives its connection


class Outbox(Protocol):
    """A door's side of delivery: one connection."""

    principal: Principal
    watch: Watch | None  # hears what becomes of its messages while a trace is on

    @property
    def has_room(self) -> bool:
        """False while too much waits to be sent."""
        ...

    def fits(self, size: int) -> bool:
        """Would `forward` take this many bytes more and drop nothing?"""
        ...

    def encoding(
        self, qos: int, retain_as_published: bool, identifiers: tuple[int, ...]
    ) -> Encoding: ...

    def forward(self, name: str, count: int, data: bytes) -> None:
        """Encoded messages without acknowledgement; dropped and counted when there is no room."""
        ...

    def send(
        self, run: Run, first: int, packet_ids: list[int], encoding: Encoding, dup: bool
    ) -> None:
        """Messages [first, first + len(packet_ids)) of a run, to be acknowledged."""
        ...

    def release(self, packet_ids: list[int]) -> None:
        """Tell the client that these QoS 2 messages will not be sent again."""
        ...

    def close(self) -> None: ...


class Vault(Protocol):
    """Where a persistent session writes down what must be durable before it leaves."""

    def send(
        self, session: Session, tag: int, run: Run, ids: list[int], encoding: Encoding
    ) -> None:
        """QoS 2 messages: stored as outstanding, then sent; others after those before them."""
        ...

    def release(self, session: Session, packet_ids: list[int]) -> None:
        """QoS 2 messages the client has: stored as released, then PUBREL."""
        ...

    def touch(self, session: Session) -> None:
        """The session is not level with its topics: save where it stands."""
        ...


class Giver(Protocol):
    """A shared subscription, as a session sees it that is a member of it."""

    def pin(self, client_id: str, packet_ids: list[int], tag: int) -> None:
        """QoS 2 messages are out to a session that outlives its connection."""
        ...

    def settle(self, client_id: str, packet_id: int, tag: int) -> None:
        """The client is done with a message."""
        ...


class OwnFeed:
    """What a subscription with `from` or `where` has besides its filter: its own position."""

    __slots__ = ("id", "lags", "names", "subscription", "where")

    def __init__(self, subscription: Subscription, feed_id: int, where: Where | None) -> None:
        self.subscription = subscription
        self.id = feed_id  # of this session, never NO_FEED
        self.where = where
        self.lags: dict[int, int] = {}  # topic id -> the offset to go on at; level with the others
        self.names: dict[tuple[int, str], bool] = {}  # topic id, name -> wanted and allowed?

    def place(self, topic_id: int) -> int:
        """Where its messages come from, as the window's tags tell."""
        return self.id << PLACE_SHIFT | topic_id


MaySubscribe = Callable[[Principal, str], bool]


class Subscription:
    """One filter of a session and its options."""

    __slots__ = (
        "feed",
        "filter",
        "identifier",
        "judged_by",
        "no_local",
        "owed",
        "qos",
        "retain_as_published",
        "session",
        "share",
        "since",
    )

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
        # The end of each topic when it was made; a topic born later counts from 0.
        self.since: dict[int, int] = {}
        # Of QoS 0, in place of one above it while the session lagged: topic id -> up to which
        # offset what is published above QoS 0 comes from the log, in order; the rest at once.
        self.owed: dict[int, int] | None = None
        self.feed: OwnFeed | None = None  # then `since` means nothing
        self.share: Giver | None = None  # neither then; `filter` is all of $share/…
        self.judged_by: Grants | None = None  # what its filter was last found allowed by

    @property
    def is_plain(self) -> bool:
        """Does it go by routes, and by the session's position in each topic?"""
        return self.feed is None and self.share is None

    def is_granted(self, principal: Principal, may_subscribe: MaySubscribe) -> bool:
        """May its filter still be subscribed to? Asked again when rules have changed."""
        grants = principal.grants
        if self.judged_by is not grants:
            if not may_subscribe(principal, self.filter):
                return False
            self.judged_by = grants
        return True

    def want(self, topic_id: int = NO_TOPIC) -> Want:
        """As it counts for what is stored in a topic; without one, for new messages."""
        since = self.since.get(topic_id, 0)
        owed_until = 0 if self.owed is None else self.owed.get(topic_id, 0)
        as_published = self.retain_as_published
        return Want(
            self.qos,
            since,
            self.no_local,
            retain_as_published=as_published,
            identifier=self.identifier,
            owed_until=owed_until,
        )


class Session:
    """One client's subscriptions and its window. `outbox` is None while it is not connected."""

    __slots__ = (
        "client_id",
        "expiry_s",
        "feed_id_last",
        "from_offsets",
        "incarnation",
        "is_resending",
        "lags",
        "opened",
        "opening",
        "outbox",
        "overlaps",
        "released",
        "resent",
        "room_waiters",
        "shared",
        "shares",
        "stalled",
        "storing",
        "subscriptions",
        "twice",
        "vault",
        "will_delay_s",
        "will_id",
        "window",
    )

    def __init__(self, client_id: str, outbox: Outbox | None, window_max: int) -> None:
        self.client_id = client_id
        self.outbox = outbox
        self.window = Window(window_max)
        self.subscriptions: dict[str, Subscription] = {}
        self.overlaps: Overlaps | None = None  # of its filters, once it has many
        self.lags: dict[int, int] = {}  # topic id -> the offset to go on at
        self.from_offsets: dict[int, int] = {}  # the same for all topics, until it is attached
        self.twice: set[int] = set()  # packet ids out at QoS 2
        # Sets that most sessions never need are made when they are: an empty one has 216 bytes.
        self.released: set[int] | None = None  # those of them that wait for PUBCOMP
        self.opened: dict[int, int] = {}  # QoS 2 packet ids received -> topic id
        self.opening: set[int] | None = None  # those of `opened` whose message is not durable yet
        self.is_resending = False  # what was out goes first, whatever comes meanwhile
        # Tasks with something to send that found no room; woken whenever there may be some.
        self.room_waiters: list[asyncio.Future[None]] | None = None
        self.resent: frozenset[int] = frozenset()  # tags of what was out when the client came back
        self.feed_id_last = NO_FEED  # never given again: rows of an ended feed may still be stored
        self.stalled: dict[OwnFeed, int] = {}  # feeds that found no room, and for which QoS
        self.shares: set[Giver] | None = None  # whose member it is, while connected
        self.shared: dict[int, Giver] = {}  # packet ids of what came from there
        self.vault: Vault | None = None  # only of a session that outlives its connection
        self.storing = 0  # how many times the vault has yet to store before it sends
        self.incarnation = 0
        self.expiry_s = 0
        self.will_id = NO_WILL
        self.will_delay_s = 0

    @property
    def has_room(self) -> bool:
        """May another message be sent right now?"""
        outbox = self.outbox
        if outbox is None or self.is_resending:
            return False
        return self.window.room > 0 and outbox.has_room

    @property
    def is_behind(self) -> bool:
        """May something wait for room in the window or the connection?"""
        return bool(self.lags or self.stalled or self.shares or self.room_waiters)

    async def wait_room(self) -> None:
        """Suspends until there may be room again, or the connection is gone; then look again."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.room_waiters is None:
            self.room_waiters = []
        self.room_waiters.append(waiter)
        await waiter

    def wake(self) -> None:
        """There may be room, or the connection is closed: wake everyone who waits."""
        waiters, self.room_waiters = self.room_waiters, None
        if waiters is not None:
            for one in waiters:
                if not one.done():
                    one.set_result(None)

    def offer(self, topic_id: int, base_offset: int, run: Run, encoding: Encoding) -> None:
        """A run became durable at `base_offset`; send what fits, lag behind with the rest."""
        if topic_id in self.lags:
            return  # reading the log will bring it
        sent = 0
        outbox = self.outbox
        has_room = outbox is not None and not self.is_resending and self.window.room > 0
        if has_room and outbox is not None and outbox.has_room:
            sent = self.send(topic_id, base_offset, run, encoding)
        if sent < run.count:
            self.lags[topic_id] = base_offset + sent
            if self.vault is not None:
                self.vault.touch(self)

    def offer_plain(self, topic_id: int, base_offset: int, run: Run, encoding: Encoding) -> None:
        """As `offer`, for messages at QoS 0 that are kept for the session."""
        if topic_id in self.lags:
            return
        sent = self.forward(run, encoding)
        if sent < run.count:
            self.lags[topic_id] = base_offset + sent
            if self.vault is not None:
                self.vault.touch(self)

    def forward(self, run: Run, encoding: Encoding) -> int:
        """Send the first messages of a QoS 0 run for which there is room; return how many."""
        for first, piece in pieces(run):
            outbox = self.outbox
            if outbox is None or not self.has_room:
                return first
            data = piece.data if piece.wire is encoding else encoding.forward_bytes(piece)
            if not outbox.fits(len(data)):
                return first
            outbox.forward(run.name, piece.count, data)
        return run.count

    @property
    def feeds(self) -> list[OwnFeed]:
        return [one.feed for one in self.subscriptions.values() if one.feed is not None]

    def take_feed_id(self) -> int:
        self.feed_id_last += 1
        return self.feed_id_last

    def send(
        self, place: int, base_offset: int, run: Run, encoding: Encoding, share: Giver | None = None
    ) -> int:
        """Send a run from its beginning, as many messages as the window takes; how many.

        `place` is the topic's id, or what the feed makes of it.
        """
        outbox = self.outbox
        assert outbox is not None
        room = self.window.room
        count = run.count if run.count < room else room
        tag = place << TAG_SHIFT | base_offset
        ids = self.window.take(tag, count)
        if encoding.qos == 2:
            self.twice.update(ids)
        vault = self.vault
        if share is not None:
            for packet_id in ids:
                self.shared[packet_id] = share
            if encoding.qos == 2 and vault is not None:
                share.pin(self.client_id, ids, tag)
        if vault is not None:
            if share is None:
                vault.touch(self)
            if encoding.qos == 2 or self.storing:  # nothing overtakes what is being stored
                vault.send(self, tag, run, ids, encoding)
                return count
        outbox.send(run, 0, ids, encoding, False)
        return count

    def is_sent(self, place: int, offset: int) -> bool:
        """Is this message among those that were out when the client came back?"""
        return place << TAG_SHIFT | offset in self.resent

    def is_released(self, packet_id: int) -> bool:
        """Does a QoS 2 message wait for PUBCOMP?"""
        return self.released is not None and packet_id in self.released

    def note_released(self, packet_ids: list[int]) -> None:
        """The client has these QoS 2 messages."""
        if self.released is None:
            self.released = set()
        self.released.update(packet_ids)

    def acknowledge(self, packet_ids: list[int]) -> None:
        """The client is done with these messages; their packet ids are free."""
        shared = self.shared
        for packet_id in packet_ids:
            tag = self.window.release(packet_id)
            if shared:
                share = shared.pop(packet_id, None)
                if share is not None:
                    share.settle(self.client_id, packet_id, tag)
        if self.twice:
            self.twice.difference_update(packet_ids)
            if self.released is not None:
                self.released.difference_update(packet_ids)

    def received(self, packet_ids: list[int]) -> None:
        """The client has these QoS 2 messages: they are never sent again."""
        outbox = self.outbox
        assert outbox is not None
        if self.vault is None:
            self.note_released([one for one in packet_ids if one in self.twice])
            outbox.release(packet_ids)
            return
        fresh: list[int] = []
        repeated: list[int] = []  # released before, or not out at all: there is nothing to store
        for packet_id in packet_ids:
            if packet_id not in self.twice:
                repeated.append(packet_id)
            elif not self.is_released(packet_id):
                self.note_released([packet_id])
                fresh.append(packet_id)
            elif not self.storing:  # else its PUBREL may be on its way
                repeated.append(packet_id)
        if fresh:
            self.vault.release(self, fresh)
        if repeated:
            outbox.release(repeated)
