"""All shares, who holds them, and what the catalog has to know of them.

A share is there as long as a session holds it, connected or not; one that nobody holds is kept on
only while something of it is out at QoS 2, which must reach its session. Only shares that a session
holds which outlives its connection are in the catalog.

As one of several nodes, only what connected sessions hold is here, and every share is in the
catalog, which numbers it (`dealing.py`). What a session was being sent at QoS 2 comes and goes with
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from penstock.broker.engine import Engine
from penstock.broker.share.share import Pin, Share
from penstock.broker.tasks import Spawn
from penstock.catalog.cluster.share_parts import (
    LEVEL,
    OwnedParts,
    PartState,
    SettledPin,
    StoredPin,
)
from penstock.catalog.session.saving import Checkpoint
from penstock.catalog.session.shares import ShareCatalog, ShareRow, ShareState, StoredShare
from penstock.core.delivery.tags import make_tag, offset_of, topic_id_of
from penstock.core.groups import Group
from penstock.core.naming.names import split_share


class Shares:
    """The shares by what clients write: `$share/{name}/{filter}`."""

    def __init__(
        self,
        engine: Engine,
        catalog: ShareCatalog,
        spawn: Spawn,
    ) -> None:
        self._engine = engine
        self._catalog = catalog
        self._spawn = spawn
        self.behind: set[Share] = set()  # those that are, or were a moment ago
        self._by_key: dict[str, Share] = {}
        self._of: dict[str, set[Share]] = {}  # client -> what it holds or is being sent
        self._next_id = 1
        self._taken: list[Share] = []  # by the checkpoint that is being saved
        self._is_node = engine.shared.node is not None
        # As a node: what clients are done with at QoS 2, until a checkpoint has saved it.
        self._settled: list[tuple[Share, str, int]] = []
        self._settling: list[tuple[Share, str, int]] = []

    def __len__(self) -> int:
        return len(self._by_key)

    def all(self) -> list[Share]:
        return list(self._by_key.values())

    def find(self, key: str) -> Share | None:
        return self._by_key.get(key)

    def refresh_principals(self) -> None:
        """Principals of connected members may be others than they were."""
        for share in self._by_key.values():
            share.refresh_principals()

    # Holding

    def hold(self, key: str, client_id: str, qos: int) -> Share:
        """A session subscribes; a share that nobody held begins at the end of every topic."""
        share = self._by_key.get(key)
        if share is None:
            share = self._by_key[key] = self._make(key)
        if not share.holders and not self._is_node:
            share.away = self._engine.topics.ends()
        share.holders[client_id] = qos
        share.is_busy = True
        self._of.setdefault(client_id, set()).add(share)
        return share

    def _make(self, key: str) -> Share:
        settled = self._settled if self._is_node else None
        return Share(key, split_share(key)[1], self.behind, settled)

    def let_go(self, share: Share, client_id: str) -> None:
        """A session unsubscribes; what is out to it stays so."""
        share.holders.pop(client_id, None)
        share.is_busy = True
        if client_id not in share.pins:
            self._of.get(client_id, set()).discard(share)
        self._tidy(share)

    def gone(self, client_id: str, why: str = "the session ended") -> None:
        """A session has ended for good."""
        if self._engine.watch is not None:
            self._engine.watch.ended(client_id, why)
        for share in self._of.pop(client_id, ()):
            self.forget(share, client_id)

    def forget(self, share: Share, client_id: str) -> None:
        """A session that held a share, or was being sent something of it, has ended for good."""
        dropped = share.forget(client_id)
        if dropped:
            self._engine.metrics.dropped["session_ended"] += dropped
        share.holders.pop(client_id, None)
        self._tidy(share)

    def depart(self, client_id: str) -> None:
        """As a node: a session may go on at another one, with what it is being sent at QoS 2."""
        for share in self._of.pop(client_id, ()) if self._is_node else ():
            share.forget(client_id)
            share.holders.pop(client_id, None)
            self._tidy(share)

    def _tidy(self, share: Share) -> None:
        if share.holders or self._by_key.get(share.key) is not share:
            return
        if self._is_node:
            return  # parts may be on their way: `dealing.py` drops it
        if self._engine.watch is not None:
            self._engine.watch.share_ended(share.key)
        share.drop_waiting()
        share.lags.clear()
        self.behind.discard(share)
        if not share.pins:
            del self._by_key[share.key]
            if share.id:
                self._spawn(self._catalog.remove(share.id))

    def drop_unused(self, share: Share) -> None:
        """As a node: forget a share that no session holds here, once its parts are released.

        While nothing is being dealt.
        """
        if not (share.holders or share.pins or share.owned or share.leaving):
            self.behind.discard(share)
            self._by_key.pop(share.key, None)

    def pinned(self, client_id: str) -> Iterator[tuple[Share, int, Pin]]:
        """What a session that comes back was being sent at QoS 2: share, packet id, pin."""
        for share in self._of.get(client_id, ()):
            for packet_id, pin in share.pins.get(client_id, {}).items():
                yield share, packet_id, pin

    def forget_topic(self, topic_id: int) -> None:
        for share in self._by_key.values():
            share.forget_topic(topic_id)

    # The catalog

    async def load(self, found: Sequence[StoredShare]) -> None:
        """Take over what the catalog knows; nobody is connected."""
        for stored in found:
            state = stored.state
            share = Share(state.filter, split_share(state.filter)[1], self.behind)
            share.id = state.share_id
            share.holders = dict(stored.holders)
            share.is_busy = True
            for topic_id, epoch, offset in state.positions:
                topic = self._engine.topics.by_id(topic_id)
                if topic is not None:
                    share.away[topic_id] = await topic.log.clamp(epoch, offset)
            for row in state.rows:
                self._restore(share, row)
            self._by_key[share.key] = share
            for client_id in (*share.holders, *share.pins):
                self._of.setdefault(client_id, set()).add(share)
            self._next_id = max(self._next_id, share.id + 1)

    def _restore(self, share: Share, row: ShareRow) -> None:
        topic = self._engine.topics.by_id(row.topic_id)
        if topic is None or row.offset >= topic.log.bounds().end:
            return  # lost with its topic, or by a crash that cut the log
        group = share.group(row.topic_id, share.away.get(row.topic_id, 0))
        if row.qos == 0:
            group.put_done(row.offset)
        elif row.qos == 1:
            group.put_waiting(row.offset)
            share.give_back(row.topic_id)
        else:
            self._restore_pin(share, group, row)

    def _restore_pin(self, share: Share, group: Group, row: ShareRow) -> None:
        """Of a packet id that was used again only one message can be out: the others are done.

        A message that is done was released, unless it was refused; then it came before the other.
        """
        pins = share.pins.setdefault(row.client_id, {})
        known = pins.get(row.packet_id)
        if known is not None and row.is_released:
            group.put_done(row.offset)
            return
        if known is not None:
            share.groups[topic_id_of(known.tag)].ack(row.client_id, offset_of(known.tag))
        group.put_pinned(row.client_id, row.offset)
        pins[row.packet_id] = Pin(make_tag(row.topic_id, row.offset), row.is_released)

    def take_pins(self, client_id: str, found: Sequence[StoredPin]) -> None:
        """As a node: a session begins here that was being sent something at QoS 2."""
        for known_share in self._of.get(client_id, ()):
            known_share.pins.pop(client_id, None)
        for one in found:
            share = self._by_key.get(one.filter)
            if share is None:
                share = self._by_key[one.filter] = self._make(one.filter)
            share.id = one.share_id
            self._of.setdefault(client_id, set()).add(share)
            pins = share.pins.setdefault(client_id, {})
            known, row = pins.get(one.row.packet_id), one.row
            tag = make_tag(row.topic_id, row.offset)
            if known is not None and row.is_released:
                self._settled.append((share, client_id, tag))
                continue
            if known is not None:
                self._settled.append((share, client_id, known.tag))
            pins[row.packet_id] = Pin(tag, row.is_released)

    def settled_by(self, client_id: str) -> list[SettledPin]:
        """What a session is done with, and the catalog may not know yet."""
        both = [*self._settling, *self._settled]
        return [_settled_pin(one) for one in both if one[1] == client_id]

    def owned_parts(self, share: Share, topic_ids: Iterable[int]) -> OwnedParts:
        """Where a share is in parts that this node owns, as the catalog keeps it."""
        parts = []
        for topic_id in topic_ids:
            topic = self._engine.topics.by_id(topic_id)
            group = share.groups.get(topic_id)
            if topic is None:
                continue
            offset = share.leaving.get(topic_id, share.lags.get(topic_id, LEVEL))
            rows = [] if group is None else group_rows(topic_id, group)
            parts.append(PartState(topic_id, topic.log.epoch, offset, rows))
        return OwnedParts(share.id, parts)

    def first_states(self, fresh: Sequence[Share]) -> list[ShareState]:
        """All rows to store for these shares; no rows for a share that was removed since."""
        if self._is_node:
            places = self.ends()
            return [ShareState(0, share.key, False, places, ()) for share in fresh]
        there = [share for share in fresh if self._by_key.get(share.key) is share]
        return [self._state(share, is_whole=True) for share in there]

    def ends(self) -> list[tuple[int, int, int]]:
        """The end of every part as a position: its id, epoch and offset."""
        topics = self._engine.topics.all()
        return [(topic.id, topic.log.epoch, topic.log.bounds().end) for topic in topics]

    def number(self, share: Share) -> bool:
        """A share belongs in the catalog, from the next checkpoint on; False if it is there.

        As a node it is always asked for: only the catalog knows.
        """
        if self._is_node:
            return True
        if share.id:
            return False
        share.id = self._next_id
        self._next_id += 1
        return True

    def take_changes(self, point: Checkpoint) -> bool:
        if self._is_node:
            return self._take_parts(point)
        for share in list(self._by_key.values()):
            self._tidy(share)
            if share.id and share.is_busy and share.key in self._by_key:
                self._taken.append(share)
                share.is_busy = False
        point.shares = [self._state(share) for share in self._taken]
        return bool(self._taken)

    def _take_parts(self, point: Checkpoint) -> bool:
        self._settling, self._settled[:] = self._settled[:], []
        point.settled = [_settled_pin(one) for one in self._settling]
        for share in self._by_key.values():
            if share.id and share.is_busy and share.owned is not None:
                self._taken.append(share)
                share.is_busy = False
                point.parts.append(self.owned_parts(share, [*share.owned, *share.leaving]))
        return bool(self._taken or self._settling)

    def settle(self, *, is_saved: bool) -> None:
        if not is_saved:
            for share in self._taken:
                share.is_busy = True
            self._settled[:0] = self._settling
        self._taken = []
        self._settling = []

    def _state(self, share: Share, *, is_whole: bool = False) -> ShareState:
        """Where a share stands; `is_whole` says so of topics at whose level it is, too."""
        offsets = share.away
        if share.members:
            offsets = self._engine.topics.ends() | share.lags if is_whole else share.lags
        positions = []
        for topic_id, offset in offsets.items():
            topic = self._engine.topics.by_id(topic_id)
            if topic is not None:
                positions.append((topic_id, topic.log.epoch, offset))
        return ShareState(share.id, share.key, bool(share.members), positions, share_rows(share))


def share_rows(share: Share) -> list[ShareRow]:
    """What is out, and what must not be given out again."""
    rows = [
        pin_row(client_id, packet_id, pin)
        for client_id, pins in share.pins.items()
        for packet_id, pin in pins.items()
    ]
    pinned = {(row.topic_id, row.offset) for row in rows}
    for topic_id, group in share.groups.items():
        found = group_rows(topic_id, group)
        rows += [row for row in found if row.qos or (topic_id, row.offset) not in pinned]
    return rows


def group_rows(topic_id: int, group: Group) -> list[ShareRow]:
    """What is to be given out again, and what must not be, whatever became of it."""
    again = group.to_give_again()
    done = group.ahead().difference(again)
    rows = [ShareRow(topic_id, offset, 1) for offset in again]
    return rows + [ShareRow(topic_id, offset, 0) for offset in done]


def _settled_pin(settled: tuple[Share, str, int]) -> SettledPin:
    share, client_id, tag = settled
    return SettledPin(share.id, topic_id_of(tag), offset_of(tag), client_id)


def pin_row(client_id: str, packet_id: int, pin: Pin) -> ShareRow:
    topic_id, offset = topic_id_of(pin.tag), offset_of(pin.tag)
    return ShareRow(
        topic_id=topic_id,
        offset=offset,
        qos=2,
        client_id=client_id,
        packet_id=packet_id,
        is_released=pin.is_released,
    )
