"""Routes: for a name, where it is stored and who reads it now; worked out once, then looked up.

A route holds the placement and the connected readers grouped by encoding, so a run of messages is
encoded at most once for each kind of reader. Routes are forgotten when subscriptions or placement
change. Sessions that are not connected are in no route and cost a publish nothing.

Names are unbounded, so routes are bounded by the memory they take; when it is full they are worked
out anew, and a lookup that hits costs no bookkeeping. Names with the same readers share them.
Compiled by mypyc; the same source runs interpreted.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.deliver.members import Member
from penstock.broker.figures.metrics import Metrics
from penstock.broker.session.session import Session, Subscription
from penstock.broker.share.share import Share
from penstock.broker.topic.topics import Topic, Topics
from penstock.core.access import (
    BROKER,
    PUBLISH,
    RECEIVE,
    SUBSCRIBE,
    Authorise,
    Principal,
    authorise,
)
from penstock.core.delivery.run import Encoding, Run
from penstock.core.naming.names import topic_key
from penstock.core.naming.trie import FilterTrie
from penstock.model.limits import MIB

BYTES_MAX: Final = 48 * MIB  # about 100,000 names of 50 characters
# What things take, measured and rounded up; the bound counts with them.
ROUTE_BYTES: Final = 224  # a route with the text of its name, the characters aside
ENTRY_BYTES: Final = 64  # of a route under its name
PUBLISHER_ENTRY_BYTES: Final = 128  # of a route under a publisher and its name
READERS_BYTES: Final = 768  # readers that routes share, the members aside
MEMBER_BYTES: Final = 512
SHARER_BYTES: Final = 160  # a share in a route, and 8 for each of its members
WORK_PER_TURN: Final = 1_000  # for one client: a few ms, then others have their turn
ROUTE_WORK: Final = 4  # of a route, and 1 for each subscription that matches
UNBOUNDED: Final = 1 << 60


class MustWait(Exception):
    """A message has to come again later; nothing was done with it."""


class TopicWanted(MustWait):
    """A name is to have a topic of its own, which has to be created before its first message."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic


class TurnOver(MustWait):
    """A client brought so many new names that the rest of them has to wait for its next turn."""


class Lane:
    """Readers that take the same bytes."""

    __slots__ = ("encoding", "members")

    def __init__(self, encoding: Encoding) -> None:
        self.encoding = encoding
        self.members: list[Member] = []


class Sharers:
    """Members of a share that may have messages of a name: one of them gets each."""

    __slots__ = ("members", "share")

    def __init__(self, share: Share, members: list[Member]) -> None:
        self.share = share
        self.members = members


_NO_SHARES: Final[list[Sharers]] = []  # as most names have it; nobody changes it


class Readers:
    """The sessions that read a name, in the groups in which they are handed its messages.

    Many names have the same ones, so nobody changes them.
    """

    __slots__ = (
        "is_alike",
        "kept",
        "lanes",
        "lanes_later",
        "lanes_weak",
        "members",
        "strong",
        "subscriptions",
    )

    def __init__(self, subscriptions: tuple[Subscription, ...], keeps_qos0: bool) -> None:
        by_session: dict[Session, list[Subscription]] = {}
        for one in subscriptions:
            by_session.setdefault(one.session, []).append(one)
        members = {session: Member(session, mine) for session, mine in by_session.items()}
        self.subscriptions = subscriptions
        self.members = members
        everybody = list(members.values())
        # Those that may have to be handed messages at QoS 0 by their offsets.
        self.kept = [
            one
            for one in everybody
            if one.is_owed or (keeps_qos0 and one.session.vault is not None)
        ]
        others = [one for one in everybody if one not in self.kept] if self.kept else everybody
        self.lanes = _lanes(everybody)  # for messages of QoS 0
        self.lanes_later = _lanes(others) if self.kept else self.lanes  # the same, when durable
        self.lanes_weak = _lanes([one for one in others if one.qos == 0])
        self.strong = [one for one in others if one.qos > 0]
        # All of them receive the same bytes, whoever published them.
        self.is_alike = len(self.lanes) < 2 and not any(one.no_local for one in everybody)


class Route:
    """What becomes of messages of one name."""

    __slots__ = (
        "has_readers",
        "is_single",
        "keeps_qos0",
        "kept",
        "lanes",
        "lanes_later",
        "lanes_weak",
        "log",
        "may_publish",
        "members",
        "name",
        "readers",
        "shares",
        "strong",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        name: str,
        topic: Topic,
        readers: Readers,
        shares: list[Sharers],
        may_publish: bool,
        keeps_qos0: bool,
    ) -> None:
        self.name = name
        self.may_publish = may_publish
        self.topic = topic
        self.topic_id = topic.id
        self.log = topic.log
        self.readers = readers
        self.members = readers.members
        self.shares = shares
        self.keeps_qos0 = keeps_qos0
        self.kept = readers.kept
        self.lanes = readers.lanes
        self.lanes_later = readers.lanes_later
        self.lanes_weak = readers.lanes_weak
        self.strong = readers.strong
        # Allowed, and everybody who reads it takes the same bytes.
        self.is_single = may_publish and readers.is_alike and not shares
        self.has_readers = bool(readers.members or shares)


def _lanes(members: list[Member]) -> list[Lane]:
    lanes: dict[Encoding, Lane] = {}
    for member in members:
        encoding = member.encodings[0]
        lane = lanes.get(encoding)
        if lane is None:
            lane = lanes[encoding] = Lane(encoding)
        lane.members.append(member)
    return list(lanes.values())


def forward(lanes: list[Lane], run: Run) -> int:
    """Hand a run to all readers of the lanes without waiting for acknowledgements; how many."""
    handed = 0
    for lane in lanes:
        data = run.data if run.wire is lane.encoding else lane.encoding.forward_bytes(run)
        for member in lane.members:
            if member.no_local:
                handed += _forward_selected(member, run, data)
                continue
            member.outbox.forward(run.name, run.count, data)
            handed += run.count
    return handed


def _forward_selected(member: Member, run: Run, data: bytes) -> int:
    """As `forward`, for a member that does not want all of its own messages back."""
    reading = member.reading(run)
    if reading is None:
        return 0
    if reading is not member:
        data = reading.encodings[0].forward_bytes(run)
    reading.outbox.forward(run.name, run.count, data)
    return run.count


def offer_selected(member: Member, topic_id: int, offset: int, run: Run) -> int:
    """Offer a run above QoS 0 to a member that does not want all of its own messages back."""
    reading = member.reading(run)
    if reading is None:
        return 0
    encoding = reading.encodings[run.qos]
    if encoding.qos:
        reading.session.offer(topic_id, offset, run, encoding)
    else:
        data = encoding.forward_bytes(run)
        reading.outbox.forward(run.name, run.count, data)
    return run.count


def offer_kept(route: Route, topic_id: int, offset: int, run: Run) -> int:
    """Offer a run to those for whom also QoS 0 may be kept; to how many, times its messages."""
    offered = 0
    for member in route.kept:
        reading = member.reading(run)
        if reading is None:
            continue
        encoding = reading.encodings[run.qos]
        if encoding.qos:
            reading.session.offer(topic_id, offset, run, encoding)
        elif route.keeps_qos0 and reading.session.vault is not None:
            reading.session.offer_plain(topic_id, offset, run, encoding)
        elif run.qos == 0 or not reading.is_owing(topic_id, offset + run.count):
            data = encoding.forward_bytes(run)
            reading.outbox.forward(run.name, run.count, data)
        offered += run.count
    return offered


def spread(shares: list[Sharers], run: Run, metrics: Metrics) -> None:
    """Hand a run of QoS 0 to one member of each share, or some of it to each of several."""
    for one in shares:
        handed = one.share.spread(run, one.members)
        metrics.records_delivered += handed
        if handed < run.count:
            metrics.dropped["queue_full"] += run.count - handed


class _Routes:
    """Routes that were worked out, and about how much memory they take."""

    __slots__ = ("by_name", "by_publisher", "by_topic", "bytes", "readers")

    def __init__(self) -> None:
        self.by_name: dict[str, Route] = {}  # for the broker itself
        self.by_publisher: dict[tuple[Principal, str], Route] = {}
        self.by_topic: dict[tuple[int, str], Route] = {}  # where placement puts the name elsewhere
        self.readers: dict[tuple[Subscription, ...], Readers] = {}
        self.bytes = 0

    def add(self, route: Route) -> None:
        """Hold a route for the broker itself."""
        self.by_name[route.name] = route
        self.bytes += ENTRY_BYTES
        self._count(route)

    def add_for(self, principal: Principal, route: Route) -> None:
        """Hold a route for a publisher; most are those of the broker."""
        self.by_publisher[(principal, route.name)] = route
        self.bytes += PUBLISHER_ENTRY_BYTES
        if self.by_name.get(route.name) is not route:
            self._count(route)

    def add_in(self, route: Route) -> None:
        """Hold a route for records of a topic in which placement does not put their name."""
        self.by_topic[(route.topic_id, route.name)] = route
        self.bytes += PUBLISHER_ENTRY_BYTES
        self._count(route)

    def _count(self, route: Route) -> None:
        self.bytes += ROUTE_BYTES + len(route.name)
        for one in route.shares:
            self.bytes += SHARER_BYTES + 8 * len(one.members)
        readers = route.readers
        if readers.subscriptions not in self.readers:
            self.readers[readers.subscriptions] = readers
            self.bytes += READERS_BYTES + MEMBER_BYTES * len(readers.members)


class RouteMemory:
    """The routes of all tenants together have one bound."""

    def __init__(self) -> None:
        self.routers: list[Router] = []

    def make_room(self) -> None:
        """Before another route is held: all are worked out anew when the memory is full."""
        if sum([router.bytes for router in self.routers]) >= BYTES_MAX:
            for router in self.routers:
                router.drop_routes()


class Router:
    """Subscriptions of connected sessions, and the routes worked out from them."""

    def __init__(
        self,
        topics: Topics,
        authorise: Authorise = authorise,
        memory: RouteMemory | None = None,
        *,
        keeps_qos0: bool = False,
    ) -> None:
        self._memory = RouteMemory() if memory is None else memory
        self._memory.routers.append(self)
        self._topics = topics
        self.placement = topics.placement
        self._authorise = authorise
        self._keeps_qos0 = keeps_qos0
        self._filters: FilterTrie[Subscription] = FilterTrie()
        self._shares: FilterTrie[Share] = FilterTrie()  # those with a connected member
        self._routes = _Routes()
        self._broker = BROKER  # compiled code finds it here sooner than in its module
        self._version = -1  # of the placement that the routes were made from
        self.forgotten = 0  # how often all routes were forgotten
        self.work_left = UNBOUNDED  # for the client whose turn it is: see `TurnOver`
        self.is_empty = True  # nobody who is connected reads anything

    def find(self, name: str, principal: Principal = BROKER) -> Route:
        """The route of a checked name, for messages from this principal.

        TopicWanted where publishing creates topics, and TurnOver when `work_left` is used up; but
        not for the broker itself.
        """
        if self._version != self.placement.version:
            self._forget()
        if principal is self._broker:
            route = self._routes.by_name.get(name)
            return self._add(name) if route is None else route
        route = self._routes.by_publisher.get((principal, name))
        return self._add_for(principal, name) if route is None else route

    def find_in(self, topic: Topic, name: str) -> Route:
        """The route of a name for records that a topic holds: rules may be about the topic."""
        if self._version != self.placement.version:
            self._forget()
        route = self._routes.by_name.get(name)
        if route is None:
            route = self._add(name)
        return route if route.topic is topic else self._elsewhere(topic, name)

    def _elsewhere(self, topic: Topic, name: str) -> Route:
        route = self._routes.by_topic.get((topic.id, name))
        if route is None:
            route = self._make(name, True, topic)
            self._room().add_in(route)
        return route

    def _add(self, name: str) -> Route:
        """Work out the route of a name for the broker itself, which asks nobody."""
        route = self._make(name, True, self._topics.of_name(name))
        self._room().add(route)
        return route

    def _add_for(self, principal: Principal, name: str) -> Route:
        """Work out the route of a name for a publisher."""
        if self.work_left <= 0:
            raise TurnOver()
        topic = self._topics.of_name(name)
        wanted = self._topics.wanted_by(name) if self._topics.automatic_max else ""
        key = topic_key(wanted) if wanted else topic.key
        may_publish = self._authorise(principal, PUBLISH, name, key)
        if may_publish and wanted:
            raise TopicWanted(wanted)
        # Nearly always who publishes makes no difference.
        route = self.find(name) if may_publish else self._make(name, False, topic)
        self._room().add_for(principal, route)
        return route

    def _room(self) -> _Routes:
        """Where another route has room. What was found before stays true, so no new edition."""
        self._memory.make_room()
        return self._routes

    def drop_routes(self) -> None:
        """Give back the memory of all routes; those that are in use stay true."""
        self._routes = _Routes()

    def close(self) -> None:
        self._memory.routers.remove(self)
        self._routes = _Routes()

    @property
    def bytes(self) -> int:
        """About how much memory the routes take."""
        return self._routes.bytes

    def release_unused(self) -> None:
        """Nothing: a lookup is not counted, so nobody knows which routes are unused."""

    @property
    def edition(self) -> int:
        """Another number whenever routes that were found before may no longer be true."""
        if self._version != self.placement.version:
            self._forget()
        return self.forgotten

    def _forget(self) -> None:
        self._version = self.placement.version
        self.forgotten += 1
        self._routes = _Routes()
        self.is_empty = not len(self._filters) and not len(self._shares)

    def _make(self, name: str, may_publish: bool, topic: Topic) -> Route:
        matching = [share for share in self._shares.match(name) if share.owns(topic.id)]
        shares = [self._sharers(share, name, topic.key) for share in matching]
        shares = [one for one in shares if one.members] or _NO_SHARES
        may_publish = may_publish and not topic.refusal and not topic.over_quota
        readers = self._readers(name, topic.key)
        self.work_left -= ROUTE_WORK + len(readers.subscriptions)
        keeps = self._keeps_qos0
        return Route(name, topic, readers, shares=shares, may_publish=may_publish, keeps_qos0=keeps)

    def _readers(self, name: str, topic: str) -> Readers:
        """Who may have messages of a name; names with the same readers have them in common."""
        found: list[Subscription] = []
        allowed: dict[Principal, bool] = {}
        for one in self._filters.match(name):
            outbox = one.session.outbox
            assert outbox is not None, "only connected sessions are routed to"
            principal = outbox.principal
            if principal not in allowed:
                allowed[principal] = self._authorise(principal, RECEIVE, name, topic)
            if allowed[principal] and one.is_granted(principal, self.may_subscribe):
                found.append(one)
        subscriptions = tuple(found)
        readers = self._routes.readers.get(subscriptions)
        return Readers(subscriptions, self._keeps_qos0) if readers is None else readers

    def _sharers(self, share: Share, name: str, topic: str) -> Sharers:
        """Who of a share may have a name; routes have the list in common if all may."""
        share.judge(self.may_subscribe)
        allowed = {one for one in share.granted if self._authorise(one, RECEIVE, name, topic)}
        if allowed == share.principals:
            return Sharers(share, share.members)
        members = [member for member in share.members if member.outbox.principal in allowed]
        return Sharers(share, members)

    def may_subscribe(self, principal: Principal, filter: str) -> bool:
        """May the principal subscribe to a checked filter, without `$share`?"""
        topic = ""
        if principal.grants.has_topics:  # rules about a topic hold if only it has such names
            places = self._topics.placement.places(filter)
            topic = places.pop() if len(places) == 1 else ""
        return self._authorise(principal, SUBSCRIBE, filter, topic)

    def rules_changed(self) -> None:
        """What principals may do is another thing now."""
        self._forget()

    def add(self, subscription: Subscription) -> None:
        self._filters.add(subscription.filter, subscription)
        self._forget()

    def remove(self, subscription: Subscription) -> None:
        self._filters.remove(subscription.filter, subscription)
        self._forget()

    def refresh(self, share: Share) -> None:
        """The members of a share have changed."""
        if share.members:
            self._shares.add(share.filter, share)
        else:
            self._shares.remove(share.filter, share)
        self._forget()

    def __len__(self) -> int:
        return len(self._filters)


__all__ = [
    "Lane",
    "Member",
    "MustWait",
    "Route",
    "Router",
    "Sharers",
    "TopicWanted",
    "TurnOver",
    "forward",
    "offer_kept",
    "offer_selected",
    "spread",
]
