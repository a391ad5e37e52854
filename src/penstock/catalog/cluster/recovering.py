"""Giving back what a dead node had: one transaction, after its fence is in every log.

What the node had stored in the logs and not yet in the catalog is known by its marks between its
newest checkpoint and the fence. They are saved in the transaction that frees its sessions, so
whoever claims a session next finds everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.catalog.cluster.holdings import forget_holdings
from penstock.catalog.cluster.nodes import DEAD, mark_gone
from penstock.catalog.cluster.share_parts import free_parts_of
from penstock.catalog.database.interface import Database
from penstock.catalog.queue.keys import KeyRow, save_keys
from penstock.catalog.session.feeds import recover_feeds_of
from penstock.catalog.session.saving import save_opened
from penstock.catalog.session.wills import delete_wills
from penstock.model.record import TenantId


@dataclass(slots=True)
class FoundMarks:
    """The marks of a dead node, and of others whose sessions it had since, as each log has them."""

    # (incarnation of the session, topic id, packet id) -> whether it is open now
    packet_ids: dict[tuple[int, int, int], bool] = field(default_factory=dict)
    wills: set[int] = field(default_factory=set)
    keys: dict[TenantId, list[KeyRow]] = field(default_factory=dict)


def node_levels(database: Database, inc: int) -> dict[int, tuple[int, int]]:
    """(epoch, offset) by topic id: how far a node was at its newest checkpoint."""
    rows = database.fetch(
        "select topic_id, epoch, level_offset from node_levels where inc = $1", inc
    )
    return {topic_id: (epoch, offset) for topic_id, epoch, offset in rows}


def all_fences(database: Database) -> dict[int, dict[int, int]]:
    """Offsets of fences, by topic id and incarnation."""
    found: dict[int, dict[int, int]] = {}
    for inc, topic_id, offset in database.fetch("select inc, topic_id, fence_offset from fences"):
        found.setdefault(topic_id, {})[inc] = offset
    return found


def give_back(
    database: Database,
    dead_inc: int,
    inc: int,
    fences: Mapping[int, int],
    found: FoundMarks,
    now_us: int,
) -> bool:
    """Free everything of a dead node; False if another node has recovered it."""
    if not database.fetch(
        "select 1 from nodes where inc = $1 and state = $2 and recoverer = $3 for update",
        *(dead_inc, DEAD, inc),
    ):
        return False
    _place_sessions(database, dead_inc)
    free_parts_of(database, dead_inc)
    _save_packet_ids(database, dead_inc, found)
    database.execute(
        "update sessions set is_connected = 0, owner_inc = null, disconnected_at = $2"
        " where owner_inc = $1",
        *(dead_inc, now_us),
    )
    delete_wills(database, sorted(found.wills))
    database.execute(
        "update wills set node_inc = $2, claim_inc = null where node_inc = $1", dead_inc, inc
    )
    for tenant, keys in found.keys.items():
        save_keys(database, tenant, keys)
    database.execute_many(
        "insert into fences (inc, topic_id, fence_offset) select $1, $2, $3"
        " where exists (select 1 from topics where topic_id = $2)"
        " on conflict (inc, topic_id) do nothing",
        [(dead_inc, topic_id, offset) for topic_id, offset in sorted(fences.items())],
    )
    database.execute("delete from claims where owner_inc = $1", dead_inc)
    forget_holdings(database, dead_inc)
    mark_gone(database, dead_inc)
    return True


def _place_sessions(database: Database, dead_inc: int) -> None:
    """A session without a position of its own stands where its node was."""
    database.execute(
        "insert into session_positions (tenant, client_id, topic_id, epoch, next_offset)"
        " select s.tenant, s.client_id, l.topic_id, l.epoch, l.level_offset"
        " from sessions s join topics t on t.tenant = s.tenant"
        " join node_levels l on l.topic_id = t.topic_id and l.inc = s.owner_inc"
        " where s.owner_inc = $1 and s.is_connected = 1"
        " on conflict (tenant, client_id, topic_id) do nothing",
        dead_inc,
    )
    recover_feeds_of(database, dead_inc)


def _save_packet_ids(database: Database, dead_inc: int, found: FoundMarks) -> None:
    rows = database.fetch(
        "select incarnation, tenant, client_id from sessions where owner_inc = $1", dead_inc
    )
    for incarnation, tenant, client_id in rows:
        mine = {
            key[1:]: is_open for key, is_open in found.packet_ids.items() if key[0] == incarnation
        }
        opened = [(client_id, *key) for key, is_open in mine.items() if is_open]
        released = [(client_id, *key) for key, is_open in mine.items() if not is_open]
        save_opened(database, tenant, opened, released, dead_inc)
