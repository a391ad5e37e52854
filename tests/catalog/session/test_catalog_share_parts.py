"""Has each part of a share one owner, and does nothing of it get lost between two of them?"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from penstock.catalog.cluster.joining import Joined, join
from penstock.catalog.cluster.share_parts import (
    LEVEL,
    Dealt,
    OwnedParts,
    PartState,
    Wish,
    attach_share,
    deal_share,
    free_parts_of,
    release_parts,
    remove_unused,
    save_parts,
    see_shares,
)
from penstock.catalog.session.shares import ShareRow
from penstock.model.clock import ManualClock
from penstock.model.record import DEFAULT_TENANT
from tests.postgres_server import PostgresServer

KEY = "$share/g/a/#"
TOPICS = {1: 1, 2: 1, 3: 1, 4: 1}
BEGIN = [(part, 1, 10 * part) for part in TOPICS]


class Node:
    """A node that deals one share."""

    def __init__(self, joined: Joined) -> None:
        self.inc = joined.inc
        self.database = joined.database
        self.share_id = 0

    def attach(self) -> None:
        with self.database.transaction():
            self.share_id = attach_share(self.database, DEFAULT_TENANT, KEY, BEGIN)

    def deal(self, held: set[int] = frozenset(), *, is_member: bool = True) -> Dealt:  # type: ignore[assignment]
        wish = Wish(self.share_id, self.inc, is_member, TOPICS, frozenset(held))
        with self.database.transaction():
            return deal_share(self.database, DEFAULT_TENANT, wish)

    def owned(self, *parts: PartState) -> OwnedParts:
        return OwnedParts(self.share_id, parts)

    def save(self, *parts: PartState) -> None:
        with self.database.transaction():
            save_parts(self.database, DEFAULT_TENANT, self.inc, [self.owned(*parts)])

    def release(self, *parts: PartState) -> None:
        with self.database.transaction():
            release_parts(self.database, DEFAULT_TENANT, self.inc, self.owned(*parts))

    def run(self, sql: str, *values: int | str) -> None:
        with self.database.transaction():
            self.database.execute(sql, *values)

    def owners(self) -> dict[int, int]:
        with self.database.transaction():
            seen = see_shares(self.database, DEFAULT_TENANT)
        return seen[self.share_id].owners if self.share_id in seen else {}


@pytest.fixture
def nodes(postgres: PostgresServer) -> Iterator[tuple[Node, Node]]:
    schema = postgres.new_schema()
    enter = partial(join, postgres.url, schema, "1.0", ManualClock())
    first, second = Node(enter()), Node(enter())
    first.run("insert into tenants (tenant, created_at) values ($1, 0)", DEFAULT_TENANT)
    for part in TOPICS:
        first.run(
            "insert into topics (tenant, topic_id, key, declared, settings, created_at)"
            " values ($1, $2, $3, $3, '{}', 0)",
            *(DEFAULT_TENANT, part, f"t{part}"),
        )
    first.attach()
    second.attach()
    yield first, second
    first.database.close()
    second.database.close()


def state(part: int, offset: int, *rows: ShareRow) -> PartState:
    return PartState(part, 1, offset, rows)


def test_a_share_is_one_however_many_nodes_hold_it(nodes: tuple[Node, Node]) -> None:
    first, second = nodes
    assert first.share_id == second.share_id != 0


def test_the_first_node_with_a_member_gets_all_parts_where_the_share_began(
    nodes: tuple[Node, Node],
) -> None:
    first, _ = nodes
    claimed = first.deal().claimed
    assert [(one.topic_id, one.epoch, one.offset) for one in claimed] == BEGIN
    assert first.owners() == dict.fromkeys(TOPICS, first.inc)


def test_a_second_node_gets_what_the_first_one_released_and_nothing_sooner(
    nodes: tuple[Node, Node],
) -> None:
    first, second = nodes
    first.deal()
    assert not second.deal().claimed
    left = first.deal(set(TOPICS)).left
    assert len(left) == 2
    moved, waiting = min(left), ShareRow(min(left), 95, 1)
    first.release(state(moved, 99, waiting))
    (claimed,) = second.deal().claimed
    assert (claimed.topic_id, claimed.offset) == (moved, 99)
    assert list(claimed.rows) == [waiting]


def test_what_a_node_saves_of_a_part_that_it_released_changes_nothing(
    nodes: tuple[Node, Node],
) -> None:
    first, second = nodes
    first.deal()
    second.deal()
    first.release(*[state(part, 50) for part in TOPICS])
    first.save(*[state(part, 7, ShareRow(part, 6, 1)) for part in TOPICS])
    first.deal(is_member=False)
    claimed = second.deal().claimed
    assert [(one.offset, list(one.rows)) for one in claimed] == [(50, [])] * len(TOPICS)


def test_parts_of_a_dead_node_are_where_it_was_at_its_newest_checkpoint(
    nodes: tuple[Node, Node],
) -> None:
    first, second = nodes
    first.deal()
    first.save(state(1, LEVEL, ShareRow(1, 70, 1)), state(2, 44))
    for part in TOPICS:
        first.run(
            "insert into node_levels (inc, topic_id, epoch, level_offset) values ($1, $2, 1, 80)",
            *(first.inc, part),
        )
    with second.database.transaction():
        free_parts_of(second.database, first.inc)
    claimed = {one.topic_id: one for one in second.deal().claimed}
    assert {part: one.offset for part, one in claimed.items()} == {1: 80, 2: 44, 3: 30, 4: 40}
    assert list(claimed[1].rows) == [ShareRow(1, 70, 1)]


def test_a_message_of_qos_2_stays_with_its_session_when_the_part_moves(
    nodes: tuple[Node, Node],
) -> None:
    first, second = nodes
    first.deal()
    first.run(
        "insert into share_outstanding (tenant, share_id, topic_id, message_offset, qos,"
        " client_id, packet_id, is_released) values ($1, $2, 1, 20, 2, 'client', 5, 0)",
        *(DEFAULT_TENANT, first.share_id),
    )
    first.release(*[state(part, 15) for part in TOPICS])
    first.deal(is_member=False)
    claimed = {one.topic_id: one for one in second.deal().claimed}
    assert [(row.offset, row.qos) for row in claimed[1].rows] == [(20, 2)]


def test_a_share_is_removed_once_nobody_holds_it_and_no_node_has_parts_of_it(
    nodes: tuple[Node, Node],
) -> None:
    first, second = nodes
    first.deal()
    with second.database.transaction():
        remove_unused(second.database, DEFAULT_TENANT)
    assert first.owners()
    first.release(*[state(part, 15) for part in TOPICS])
    with second.database.transaction():
        remove_unused(second.database, DEFAULT_TENANT)
    assert not first.owners()
    assert not first.deal().is_known
