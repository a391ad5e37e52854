"""Joining the nodes of a catalog: brings the tables up to date, then opens it as a node of its own.

One node joins at a time. The lock of a new node is held before anybody can see its row, so that no
other node takes it for dead.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Final

from penstock.catalog.cluster.holdings import install_counting
from penstock.catalog.cluster.nodes import cluster_id, cluster_secret, insert_node, start_lease
from penstock.catalog.cluster.triggers import install_triggers
from penstock.catalog.database.postgres import PostgresDatabase
from penstock.catalog.schema.migrations import MIGRATIONS, bring_up
from penstock.model.clock import Clock

JOINING: Final = "join"  # the part of the schema that who joins holds
JOIN_S_MAX: Final = 60.0  # others may join, or bring the tables up to date, meanwhile
FIRST_LEASE_S: Final = 30.0  # until heartbeats begin; the lock tells sooner of a node that died


@dataclass(frozen=True, slots=True)
class Joined:
    """A node that is live: its incarnation and what all nodes have in common."""

    inc: int
    cluster_id: str
    database: PostgresDatabase
    secret: bytes = field(repr=False)  # nodes sign with it; nobody else ever sees it


def node_part(inc: int) -> str:
    """The part of the schema that a node holds as long as it lives."""
    return f"node {inc}"


def join(
    url: str,
    schema: str,
    version: str,
    clock: Clock,
    proposed_id: str = "",
    node_name: str = "",
    giving_up: threading.Event | None = None,
) -> Joined:
    """A new node; its database belongs to the thread that calls this."""
    joining = PostgresDatabase(
        url, schema, giving_up=giving_up, lock_s_max=JOIN_S_MAX, part=JOINING
    )
    database: PostgresDatabase | None = None
    try:
        with joining.transaction():
            bring_up(MIGRATIONS, joining)
            install_triggers(joining, schema)
            install_counting(joining, schema)
            name = cluster_id(joining, proposed_id)
            secret = cluster_secret(joining)
            inc = insert_node(joining, "", version, clock.now_us(), node_name)
            start_lease(joining, inc, int(FIRST_LEASE_S * 1_000_000))
            database = PostgresDatabase(
                url, schema, giving_up=giving_up, part=node_part(inc), inc=inc
            )
    except BaseException:
        if database is not None:
            database.close()
        raise
    finally:
        joining.close()
    return Joined(inc, name, database, secret)
