"""Shares: a shared subscription at work, each message to one of its members.

While a share is level with a topic, commits are dealt out to its connected members as they come,
evenly among those with room. When nobody has room it lags like a session: the offset to go on at is
remembered, and the log is its buffer. What is out is known per topic by a Group (core/groups), so
what a member leaves behind goes to another.

Where several nodes have members, a share gives out only the parts that this node owns; the others
do the same with theirs (`dealing.py`). Compiled by mypyc; the same source runs interpreted.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.deliver.members import Member
from penstock.broker.session.session import MaySubscribe, Session
from penstock.core.access import Principal
from penstock.core.delivery.run import Run
from penstock.core.delivery.tags import OFFSET_MASK, TAG_SHIFT
from penstock.core.groups import NOTHING_WAITS, Group, deal

OUT_MAX: Final = 1_000_000  # of one share and topic: a thousand members with full windows
WITHOUT_END: Final = 1 << 30  # room of a member that acknowledges nothing


class Pin:
    """A QoS 2 message that is out to a session that outlives its connection."""

    __slots__ = ("is_released", "tag")

    def __init__(self, tag: int, is_released: bool) -> None:
        self.tag = tag
        self.is_released = is_released


class Share:
    """One `$share/{name}/{filter}`. `lags` lets it catch up with topics."""

    __slots__ = (
        "_behind",
        "_settled",
        "_turn",
        "away",
        "filter",
        "granted",
        "groups",
        "holders",
        "id",
        "is_busy",
        "key",
        "lags",
        "leaving",
        "members",
        "owned",
        "pins",
        "principals",
        "returned",
    )

    def __init__(
        self,
        key: str,
        filter: str,
        behind: set[Share],
        settled: list[tuple[Share, str, int]] | None = None,
    ) -> None:
        """`settled`: as one of several nodes, where to note what clients are done with at QoS 2."""
        self.key = key  # as the clients write it
        self.filter = filter
        self.id = 0  # in the catalog; 0 while it is not there
        self.is_busy = False  # changed since it was saved
        self.members: list[Member] = []  # the connected ones; replaced as a whole
        self.principals: set[Principal] = set()  # theirs
        self.granted: set[Principal] = set()  # those found to be allowed its filter
        self.holders: dict[str, int] = {}  # clients whose session holds it -> QoS
        self.groups: dict[int, Group] = {}  # by topic id
        self.lags: dict[int, int] = {}  # topic id -> the offset to go on at
        self.returned: set[int] = set()  # topic ids with something to be given out again
        self.away: dict[int, int] = {}  # while nobody is connected: where to go on in each topic
        self.pins: dict[str, dict[int, Pin]] = {}  # client -> packet id -> what is out at QoS 2
        # As one of several nodes: the parts that it gives out; None: all of them.
        self.owned: set[int] | None = None if settled is None else set()
        # Parts that go to another node -> the offset to go on at; what is out is still answered.
        self.leaving: dict[int, int] = {}
        self._settled = settled
        self._behind = behind  # of all shares; each puts itself in
        self._turn = 0  # whose turn it is among the members

    @property
    def is_behind(self) -> bool:
        """Does something wait in the log for a member with room?"""
        return bool(self.lags or self.returned)

    @property
    def has_room(self) -> bool:
        """May some member be sent a message right now?"""
        return any(room_for(member, 1) > 0 for member in self.members)

    def lag(self, topic_id: int, offset: int) -> None:
        """Go on from the log in this topic."""
        self.lags[topic_id] = offset
        self.is_busy = True
        self._behind.add(self)

    def group(self, topic_id: int, next_offset: int = 0) -> Group:
        """The group of a topic; a new one begins at `next_offset`."""
        group = self.groups.get(topic_id)
        if group is None:
            group = self.groups[topic_id] = Group(next_offset, OUT_MAX)
        return group

    # Parts, as one of several nodes

    def owns(self, topic_id: int) -> bool:
        """Does this node give out the messages of a part?"""
        return self.owned is None or topic_id in self.owned

    def take_part(self, topic_id: int, offset: int, rows: list[tuple[int, int]]) -> None:
        """This node owns a part now; rows are (offset, QoS): of QoS 1 they are given out again."""
        group = self.groups[topic_id] = Group(offset, OUT_MAX)
        for at, qos in rows:
            if qos == 1:
                group.put_waiting(at)
            else:  # done, or a session has it, which may be anywhere
                group.put_done(at)
        self.leaving[topic_id] = offset

    def go_on(self, topic_id: int) -> None:
        """Give out a part that was about to leave."""
        assert self.owned is not None
        self.owned.add(topic_id)
        self.lag(topic_id, self.leaving.pop(topic_id))
        if self.groups[topic_id].first_waiting != NOTHING_WAITS:
            self.give_back(topic_id)

    def stop_part(self, topic_id: int, end_offset: int) -> None:
        """Give out nothing more of a part; what is out may be answered until it is dropped."""
        assert self.owned is not None
        self.owned.discard(topic_id)
        self.leaving[topic_id] = self.lags.pop(topic_id, end_offset)
        self.returned.discard(topic_id)
        self.is_busy = True

    def is_answered(self, topic_id: int) -> bool:
        """Have members answered all of a part that could be given to others?"""
        group = self.groups.get(topic_id)
        return group is None or all(one.is_pinned for one in group.all_held().values())

    # Giving out

    def spread(self, run: Run, members: list[Member]) -> int:
        """Hand a run of QoS 0 to members that take more now; how many messages."""
        return self._deal(0, 0, run, members, run.count)

    def offer(self, topic_id: int, base_offset: int, run: Run, members: list[Member]) -> int:
        """A run above QoS 0 became durable; give out what finds room, lag with the rest."""
        if topic_id in self.lags:
            return 0  # reading the log will bring it
        given = self.give(topic_id, base_offset, run, members)
        if given < run.count:
            self.lag(topic_id, base_offset + given)
        return given

    def give(self, topic_id: int, base_offset: int, run: Run, members: list[Member]) -> int:
        """Deal out the first messages of a run for which members have room; return how many."""
        group = self.group(topic_id, base_offset)
        count = min(run.count, group.room)
        return self._deal(topic_id, base_offset, run, members, count) if count else 0

    def _deal(
        self, topic_id: int, base_offset: int, run: Run, members: list[Member], count: int
    ) -> int:
        takers, rooms = self._takers(run.qos, members, count)
        given = deal(count, rooms)
        first = 0
        for at, share in enumerate(given):
            if share:
                part = run if share == run.count else run.cut(first, first + share)
                self._give(members[takers[at]], topic_id, base_offset + first, part)
                first += share
        if first:
            last = len(given) - 1 - given[::-1].index(max(given))
            self._turn = takers[last] + 1  # a member that got one more comes last next time
        return first

    def _takers(self, qos: int, members: list[Member], count: int) -> tuple[list[int], list[int]]:
        """Members with room from the one whose turn it is, at most `count`; and their rooms."""
        takers: list[int] = []
        rooms: list[int] = []
        size = len(members)
        for step in range(size):
            at = (self._turn + step) % size
            room = room_for(members[at], qos)
            if room > 0:
                takers.append(at)
                rooms.append(room)
                if len(takers) == count:
                    break
        return takers, rooms

    def _give(self, member: Member, topic_id: int, base_offset: int, run: Run) -> None:
        encoding = member.encodings[run.qos]
        if encoding.qos == 0:
            forward_one(member, run)
            return
        self.is_busy = True
        group = self.groups[topic_id]
        session = member.session
        group.take(session.client_id, base_offset, run.count, is_pinned=encoding.qos == 2)
        session.send(topic_id, base_offset, run, encoding, self)

    def give_again(self, topic_id: int, offset: int, run: Run, members: list[Member]) -> bool:
        """Give one message that came back to another member; False if nobody has room."""
        takers, _ = self._takers(run.qos, members, 1)
        if not takers:
            return False
        self._turn = takers[0] + 1
        self.is_busy = True
        member = members[takers[0]]
        session = member.session
        encoding = member.encodings[run.qos]
        if encoding.qos == 0:
            self.discard(topic_id, offset)
            forward_one(member, run)
        else:
            self.groups[topic_id].retake(session.client_id, offset, is_pinned=encoding.qos == 2)
            self._note(topic_id)
            session.send(topic_id, offset, run, encoding, self)
        return True

    def discard(self, topic_id: int, offset: int) -> None:
        """A returned message is not given to another member."""
        self.groups[topic_id].discard(offset)
        self._note(topic_id)

    def _note(self, topic_id: int) -> None:
        if self.groups[topic_id].first_waiting == NOTHING_WAITS:
            self.returned.discard(topic_id)
        else:
            self.returned.add(topic_id)

    # What sessions say: implements their Giver

    def pin(self, client_id: str, packet_ids: list[int], tag: int) -> None:
        pins = self.pins.setdefault(client_id, {})
        for at, packet_id in enumerate(packet_ids):
            pins[packet_id] = Pin(tag + at, False)

    def settle(self, client_id: str, packet_id: int, tag: int) -> None:
        self.is_busy = True
        group = self.groups.get(tag >> TAG_SHIFT)
        if group is not None:
            group.ack(client_id, tag & OFFSET_MASK)
        pins = self.pins.get(client_id)
        if pins is not None:
            pin = pins.pop(packet_id, None)
            if not pins:
                del self.pins[client_id]
            if pin is not None and self._settled is not None:
                self._settled.append((self, client_id, pin.tag))

    # Members and holders

    def join(self, member: Member) -> None:
        """A session is connected and subscribed, or subscribed anew with other options."""
        others = [one for one in self.members if one.session is not member.session]
        self._set_members([*others, member])

    def member(self, session: Session) -> Member | None:
        """A connected session as a member."""
        for one in self.members:
            if one.session is session:
                return one
        return None

    def part(self, client_id: str) -> None:
        """A session is no longer connected, or no longer subscribed."""
        self._set_members([one for one in self.members if one.session.client_id != client_id])

    def _set_members(self, members: list[Member]) -> None:
        self.members = members
        self.refresh_principals()

    def refresh_principals(self) -> None:
        """Members have come or gone, or a member's principal is another one."""
        self.principals = {member.outbox.principal for member in self.members}
        self.granted.clear()

    def judge(self, may_subscribe: MaySubscribe) -> None:
        """Find out which principals may still subscribe to its filter."""
        for one in self.principals - self.granted:
            if may_subscribe(one, self.filter):
                self.granted.add(one)

    def leave(self, client_id: str) -> None:
        """What is out to a client goes to others, except at QoS 2: that waits for it."""
        self.is_busy = True
        for topic_id, group in self.groups.items():
            if group.leave(client_id):
                self.give_back(topic_id)
        if not self.holders and self.owned is None:
            self.drop_waiting()

    def give_back(self, topic_id: int) -> None:
        """Something of this topic is to be given out again, here or by the node that it goes to."""
        if self.owns(topic_id):
            self.returned.add(topic_id)
            self._behind.add(self)

    def forget(self, client_id: str) -> int:
        """A session is gone: nobody gets what it was being sent at QoS 2; how many those are."""
        self.leave(client_id)
        self.pins.pop(client_id, None)
        return sum([group.forget(client_id) for group in self.groups.values()])

    def drop_waiting(self) -> None:
        """Nobody is left who could be given what came back."""
        for topic_id in list(self.returned):
            for offset in self.groups[topic_id].waiting():
                self.discard(topic_id, offset)

    def forget_topic(self, topic_id: int) -> None:
        """The topic was deleted."""
        self.groups.pop(topic_id, None)
        self.lags.pop(topic_id, None)
        self.away.pop(topic_id, None)
        self.leaving.pop(topic_id, None)
        self.returned.discard(topic_id)
        if self.owned is not None:
            self.owned.discard(topic_id)


def room_for(member: Member, qos: int) -> int:
    """How many messages of a QoS may be sent to a member right now."""
    if qos == 0 or member.qos == 0:
        return WITHOUT_END if member.outbox.has_room else 0
    session = member.session
    return session.window.room if session.has_room else 0


def forward_one(member: Member, run: Run) -> None:
    """Hand a run to one reader without waiting for acknowledgements."""
    encoding = member.encodings[0]
    data = run.data if run.wire is encoding else encoding.forward_bytes(run)
    member.outbox.forward(run.name, run.count, data)
