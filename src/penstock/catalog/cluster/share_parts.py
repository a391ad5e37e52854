"""Shares whose members are on several nodes: each part of a share belongs to one node at a time.

A part is claimed only from null, by a node that has members, in a transaction that holds the row of
the share; so two nodes never decide at the same time. Its position and what is to be given out
again are saved before it is released, and loaded where it is claimed. Of an owned part no position
is stored while the node is level with the log: then the level of the node counts.

A message that is out at QoS 2 belongs to the session that is being sent it, and so to the node of
that session, whoever owns the part: only that node changes its row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.catalog.cluster.nodes import LIVE
from penstock.catalog.database.interface import Database
from penstock.catalog.database.thread import Runner
from penstock.catalog.session.shares import ShareRow
from penstock.core.dealing import NOBODY, deal_parts
from penstock.model.record import TenantId

LEVEL: Final = -1  # as an offset: no position of its own, the share is level with the log

_HAS_HOLDERS: Final = (
    "exists (select 1 from subscriptions s where s.tenant = shares.tenant"
    " and substr(s.filter, 2, 6) = 'share/' and s.filter = shares.filter)"
)
_PUT_POSITION: Final = (
    "insert into share_positions (tenant, share_id, topic_id, epoch, next_offset)"
    " select $1, $2, $3, $4, $5 where exists (select 1 from topics where topic_id = $3)"
    " on conflict (tenant, share_id, topic_id) do update set epoch = excluded.epoch,"
    " next_offset = excluded.next_offset"
)
Position = tuple[int, int, int]  # topic id, epoch, next offset


@dataclass(frozen=True, slots=True)
class PartState:
    """Where a share is in a part that this node owns."""

    topic_id: int
    epoch: int
    offset: int  # the next one; LEVEL: that of the node
    rows: Sequence[ShareRow]  # of QoS 0 and 1: see `catalog.session.shares`


@dataclass(frozen=True, slots=True)
class OwnedParts:
    """What a node saves of a share."""

    share_id: int
    parts: Sequence[PartState]


@dataclass(frozen=True, slots=True)
class SettledPin:
    """A message that was out at QoS 2 and is done."""

    share_id: int
    topic_id: int
    offset: int
    client_id: str


@dataclass(frozen=True, slots=True)
class StoredPin:
    """A message of a share that a session is being sent at QoS 2."""

    share_id: int
    filter: str  # all of $share/{name}/{filter}
    row: ShareRow


@dataclass(frozen=True, slots=True)
class Wish:
    """What a node asks for when it deals a share."""

    share_id: int
    inc: int
    is_member: bool  # the node has connected members
    topics: Mapping[int, int]  # the parts that it knows -> the topic of each
    held: frozenset[int]  # the parts that it has in memory
    ends: Sequence[Position] = ()  # where to begin if nobody is kept anything: members at QoS 0


@dataclass(slots=True)
class Dealt:
    """What became of a wish."""

    is_known: bool = True  # False: the share is not in the catalog
    claimed: list[PartState] = field(default_factory=list)  # rows of every QoS
    kept: set[int] = field(default_factory=set)  # of those it held: stay here
    left: set[int] = field(default_factory=set)  # of those it held: are to go to another node


@dataclass(slots=True)
class Seen:
    """Who has what of one share."""

    members: set[int] = field(default_factory=set)
    owners: dict[int, int] = field(default_factory=dict)  # part -> incarnation or NOBODY


def attach_share(
    database: Database, tenant: TenantId, filter: str, positions: Sequence[Position]
) -> int:
    """The id of a share that a session is about to hold; it begins at `positions` if nobody does.

    Its row stays locked until the subscription is stored, so that nobody removes it meanwhile.
    """
    share_id = _lock_share(database, tenant, filter)
    if share_id is None:
        database.fetch("select 1 from tenants where tenant = $1 for no key update", tenant)
        share_id = _lock_share(database, tenant, filter)
    if share_id is None:
        ((share_id,),) = database.fetch(
            "select coalesce(max(share_id), 0) + 1 from shares where tenant = $1", tenant
        )
        database.execute(
            "insert into shares (tenant, share_id, filter, is_live) values ($1, $2, $3, 0)",
            *(tenant, share_id, filter),
        )
    elif database.fetch(
        f"select 1 from shares where tenant = $1 and share_id = $2 and {_HAS_HOLDERS}",
        *(tenant, share_id),
    ):
        return share_id
    _move_unowned(database, tenant, share_id, positions)
    return share_id


def _lock_share(database: Database, tenant: TenantId, filter: str) -> int | None:
    rows = database.fetch(
        "select share_id from shares where tenant = $1 and filter = $2"
        " order by share_id limit 1 for update",
        *(tenant, filter),
    )
    return rows[0][0] if rows else None


def _move_unowned(
    database: Database, tenant: TenantId, share_id: int, positions: Sequence[Position]
) -> None:
    """Go on at these positions, except in parts that a node still has."""
    owned = {
        row[0]
        for row in database.fetch(
            "select topic_id from share_parts where tenant = $1 and share_id = $2"
            " and owner_inc is not null",
            *(tenant, share_id),
        )
    }
    free = [one for one in positions if one[0] not in owned]
    database.execute_many(
        "delete from share_outstanding where tenant = $1 and share_id = $2 and topic_id = $3"
        " and qos < 2",
        [(tenant, share_id, topic_id) for topic_id, _, _ in free],
    )
    database.execute_many(_PUT_POSITION, [(tenant, share_id, *one) for one in free])


def see_shares(database: Database, tenant: TenantId) -> dict[int, Seen]:
    """All shares of a tenant, without locking anything."""
    found: dict[int, Seen] = {}
    for share_id, inc in database.fetch(
        "select m.share_id, m.inc from share_members m join nodes n on n.inc = m.inc"
        " where m.tenant = $1 and n.state = $2 and n.is_draining = 0",
        *(tenant, LIVE),
    ):
        found.setdefault(share_id, Seen()).members.add(inc)
    for share_id, topic_id, inc in database.fetch(
        "select share_id, topic_id, coalesce(owner_inc, 0) from share_parts where tenant = $1",
        tenant,
    ):
        found.setdefault(share_id, Seen()).owners[topic_id] = inc
    return found


def deal_share(database: Database, tenant: TenantId, wish: Wish) -> Dealt:
    """Claim the parts that are this node's to serve and nobody has; say which it should leave."""
    key = (tenant, wish.share_id)
    if not database.fetch(
        "select 1 from shares where tenant = $1 and share_id = $2 for update", *key
    ):
        return Dealt(is_known=False)
    _note_member(database, tenant, wish)
    members = database.fetch(
        "select m.inc from share_members m join nodes n on n.inc = m.inc"
        " where m.tenant = $1 and m.share_id = $2 and n.state = $3 and n.is_draining = 0",
        *(*key, LIVE),
    )
    found = database.fetch(
        "select topic_id, coalesce(owner_inc, 0) from share_parts"
        " where tenant = $1 and share_id = $2",
        *key,
    )
    owners = dict.fromkeys(wish.topics, NOBODY)
    owners |= {topic_id: inc for topic_id, inc in found if topic_id in owners}
    plan = deal_parts(owners, wish.topics, {row[0] for row in members})
    dealt = Dealt()
    for topic_id, inc in owners.items():
        is_ours = plan.get(topic_id) == wish.inc
        if topic_id in wish.held:
            (dealt.kept if is_ours else dealt.left).add(topic_id)
        elif inc == wish.inc or (inc == NOBODY and is_ours):
            dealt.claimed.append(_claim(database, tenant, wish, topic_id))
    return dealt


def _note_member(database: Database, tenant: TenantId, wish: Wish) -> None:
    """Whether this node has members; the first ones at QoS 0 begin at the end of every part."""
    key = (tenant, wish.share_id)
    if not wish.is_member:
        database.execute(
            "delete from share_members where tenant = $1 and share_id = $2 and inc = $3",
            *(*key, wish.inc),
        )
        return
    others = database.fetch(
        "select inc from share_members where tenant = $1 and share_id = $2", *key
    )
    if (wish.inc,) in [tuple(row) for row in others]:
        return
    database.execute(
        "insert into share_members (tenant, share_id, inc) values ($1, $2, $3)", *key, wish.inc
    )
    if not others and wish.ends and not _keeps_messages(database, tenant, wish.share_id):
        _move_unowned(database, tenant, wish.share_id, wish.ends)


def _keeps_messages(database: Database, tenant: TenantId, share_id: int) -> bool:
    """Does a session hold the share above QoS 0?"""
    return bool(
        database.fetch(
            "select 1 from shares h join subscriptions s on s.tenant = h.tenant"
            " and substr(s.filter, 2, 6) = 'share/' and s.filter = h.filter"
            " where h.tenant = $1 and h.share_id = $2 and s.qos > 0 limit 1",
            *(tenant, share_id),
        )
    )


def _claim(database: Database, tenant: TenantId, wish: Wish, topic_id: int) -> PartState:
    key = (tenant, wish.share_id, topic_id)
    database.execute(
        "insert into share_parts (tenant, share_id, topic_id, owner_inc)"
        " select $1, $2, $3, $4 where exists (select 1 from topics where topic_id = $3)"
        " on conflict (tenant, share_id, topic_id) do update set owner_inc = excluded.owner_inc"
        " where share_parts.owner_inc is null",
        *(*key, wish.inc),
    )
    positions = database.fetch(
        "select epoch, next_offset from share_positions"
        " where tenant = $1 and share_id = $2 and topic_id = $3",
        *key,
    )
    epoch, offset = positions[0] if positions else (0, 0)  # of a part born since: from its start
    rows = database.fetch(
        "select message_offset, qos from share_outstanding"
        " where tenant = $1 and share_id = $2 and topic_id = $3 order by message_offset",
        *key,
    )
    found = [ShareRow(topic_id, message_offset, qos) for message_offset, qos in rows]
    return PartState(topic_id, epoch, offset, found)


def save_parts(database: Database, tenant: TenantId, inc: int, owned: Sequence[OwnedParts]) -> None:
    """Replace what is stored of parts that this node owns; nothing happens to others."""
    for one in owned:
        rows = database.fetch(
            "select topic_id from share_parts"
            " where tenant = $1 and share_id = $2 and owner_inc = $3",
            *(tenant, one.share_id, inc),
        )
        ours = {row[0] for row in rows}
        _save(database, tenant, one.share_id, [part for part in one.parts if part.topic_id in ours])


def _save(database: Database, tenant: TenantId, share_id: int, parts: Sequence[PartState]) -> None:
    keys = [(tenant, share_id, part.topic_id) for part in parts]
    database.execute_many(
        "delete from share_positions where tenant = $1 and share_id = $2 and topic_id = $3", keys
    )
    database.execute_many(
        "delete from share_outstanding where tenant = $1 and share_id = $2 and topic_id = $3"
        " and qos < 2",
        keys,
    )
    database.execute_many(
        _PUT_POSITION,
        [
            (tenant, share_id, part.topic_id, part.epoch, part.offset)
            for part in parts
            if part.offset != LEVEL
        ],
    )
    database.execute_many(
        "insert into share_outstanding"
        " (tenant, share_id, topic_id, message_offset, qos, client_id, packet_id, is_released)"
        " select $1, $2, $3, $4, $5, '', 0, 0"
        " where exists (select 1 from topics where topic_id = $3)"
        " on conflict (tenant, share_id, topic_id, message_offset) do nothing",
        [
            (tenant, share_id, row.topic_id, row.offset, row.qos)
            for part in parts
            for row in part.rows
        ],
    )


def release_parts(database: Database, tenant: TenantId, inc: int, owned: OwnedParts) -> None:
    """Save where a share is in these parts, and let other nodes claim them."""
    save_parts(database, tenant, inc, [owned])
    database.execute_many(
        "update share_parts set owner_inc = null where tenant = $1 and share_id = $2"
        " and topic_id = $3 and owner_inc = $4",
        [(tenant, owned.share_id, part.topic_id, inc) for part in owned.parts],
    )


def free_parts_of(database: Database, dead_inc: int) -> None:
    """Release what a dead node had; without a position of its own a share is where its node was."""
    database.execute(
        "insert into share_positions (tenant, share_id, topic_id, epoch, next_offset)"
        " select p.tenant, p.share_id, l.topic_id, l.epoch, l.level_offset"
        " from share_parts p join node_levels l on l.topic_id = p.topic_id and l.inc = p.owner_inc"
        " where p.owner_inc = $1 on conflict (tenant, share_id, topic_id) do nothing",
        dead_inc,
    )
    database.execute("update share_parts set owner_inc = null where owner_inc = $1", dead_inc)
    database.execute("delete from share_members where inc = $1", dead_inc)


# Messages that are out at QoS 2


def load_pins(database: Database, tenant: TenantId, client_id: str) -> list[StoredPin]:
    """What a session was being sent of shares."""
    rows = database.fetch(
        "select o.share_id, h.filter, o.topic_id, o.message_offset, o.packet_id, o.is_released"
        " from share_outstanding o join shares h"
        " on h.tenant = o.tenant and h.share_id = o.share_id"
        " where o.tenant = $1 and o.client_id = $2 and o.qos = 2"
        " order by o.share_id, o.topic_id, o.message_offset",
        *(tenant, client_id),
    )
    return [
        StoredPin(
            share_id,
            filter,
            ShareRow(
                topic_id=topic_id,
                offset=offset,
                qos=2,
                client_id=client_id,
                packet_id=packet_id,
                is_released=bool(is_released),
            ),
        )
        for share_id, filter, topic_id, offset, packet_id, is_released in rows
    ]


def end_pins(database: Database, tenant: TenantId, client_id: str) -> None:
    """A session is gone: nobody else may have what it was being sent (MQTT 5 §4.8.2)."""
    database.execute(
        "update share_outstanding set qos = 0, client_id = ''"
        " where tenant = $1 and client_id = $2 and qos = 2",
        *(tenant, client_id),
    )


def settle_pins(database: Database, tenant: TenantId, settled: Sequence[SettledPin]) -> None:
    """Messages that sessions of this node are done with."""
    database.execute_many(
        "update share_outstanding set qos = 0, client_id = ''"
        " where tenant = $1 and share_id = $2 and topic_id = $3 and message_offset = $4"
        " and client_id = $5 and qos = 2",
        [(tenant, one.share_id, one.topic_id, one.offset, one.client_id) for one in settled],
    )


# Shares that nobody needs, or that come from a broker without nodes


def remove_unused(database: Database, tenant: TenantId) -> None:
    """Remove the shares that no session holds, once no node has parts of them."""
    database.execute(
        "update share_outstanding set qos = 0, client_id = ''"
        " where tenant = $1 and qos = 2 and not exists"
        " (select 1 from sessions s where s.tenant = share_outstanding.tenant"
        " and s.client_id = share_outstanding.client_id)",
        tenant,
    )
    unused = (
        f"not {_HAS_HOLDERS} and not exists (select 1 from share_outstanding o"
        " where o.tenant = shares.tenant and o.share_id = shares.share_id and o.qos = 2)"
        " and not exists (select 1 from share_parts p where p.tenant = shares.tenant"
        " and p.share_id = shares.share_id and p.owner_inc is not null)"
    )
    found = database.fetch(
        f"select share_id from shares where tenant = $1 and {unused} order by share_id for update",
        tenant,
    )
    # Looked at again: a session may have begun to hold it until its row could be locked.
    database.execute_many(
        f"delete from shares where tenant = $1 and share_id = $2 and {unused}",
        [(tenant, share_id) for (share_id,) in found],
    )


def place_live_shares(database: Database, tenant: TenantId) -> None:
    """Shares that a broker without nodes left: they are where its newest checkpoint was."""
    database.execute(
        "insert into share_positions (tenant, share_id, topic_id, epoch, next_offset)"
        " select s.tenant, s.share_id, l.topic_id, l.epoch, l.level_offset"
        " from shares s join topics t on t.tenant = s.tenant"
        " join levels l on l.topic_id = t.topic_id where s.tenant = $1 and s.is_live = 1"
        " on conflict (tenant, share_id, topic_id) do nothing",
        tenant,
    )
    database.execute("update shares set is_live = 0 where tenant = $1 and is_live = 1", tenant)


def drop_member(database: Database, inc: int) -> None:
    """A node has left."""
    database.execute("delete from share_members where inc = $1", inc)


class PartCatalog:
    """The parts of a tenant's shares, as a node sees them; every method is one unit of work."""

    def __init__(self, runner: Runner, tenant: TenantId, inc: int) -> None:
        self._runner = runner
        self._tenant = tenant
        self._inc = inc

    async def see(self) -> dict[int, Seen]:
        return await self._runner.run(lambda database: see_shares(database, self._tenant))

    async def attach(self, filter: str, positions: Sequence[Position]) -> int:
        """The id of a share that a session of this node holds."""
        return await self._runner.run(
            lambda database: attach_share(database, self._tenant, filter, positions)
        )

    async def deal(self, wish: Wish) -> Dealt:
        return await self._runner.run(lambda database: deal_share(database, self._tenant, wish))

    async def release(self, owned: OwnedParts) -> None:
        await self._runner.run(
            lambda database: release_parts(database, self._tenant, self._inc, owned)
        )

    async def remove_unused(self) -> None:
        await self._runner.run(lambda database: remove_unused(database, self._tenant))
