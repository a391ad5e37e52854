"""The rows of nodes: units of work for a transaction of the catalog.

A node is `live` from the moment it joins; `dead` once another node found that it no longer renews
its lease; `gone` when it left, or when everything that it had was given back. Times of leases are
those of the database server, so that clocks of machines may differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from secrets import token_hex
from typing import Final
from uuid import uuid4

from penstock.catalog.database.interface import Database

LIVE: Final = "live"
DEAD: Final = "dead"
GONE: Final = "gone"

SECRET: Final = "secret"  # the row of `cluster` with what nodes sign for each other with
CLUSTER_ID: Final = "id"  # the row of `cluster` that says whose topics of Kafka these are
SERVER_US: Final = "(extract(epoch from clock_timestamp()) * 1000000)::bigint"

_NODES: Final = (
    "select n.inc, n.name, n.state, n.address, n.version, n.is_draining, n.recoverer, n.joined_at,"
    " (select count(*) from sessions s where s.owner_inc = n.inc and s.is_connected = 1),"
    f" coalesce(l.clients, 0), coalesce(l.expires, 0) - {SERVER_US}, n.http_address, n.has_slots"
    " from nodes n left join leases l on l.inc = n.inc"
)


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One life of a node."""

    inc: int
    name: str
    state: str
    address: str  # for people and clients: where its doors are
    version: str
    is_draining: bool
    recoverer: int | None  # the incarnation that gives its sessions back, if it is dead
    joined_at: int  # µs since 1970, UTC
    sessions: int  # of clients that are connected to it
    clients: int  # connected, as of its newest heartbeat
    lease_us: int  # until its lease runs out; below 0 once it has
    http_address: str  # a URL, for other nodes; empty: it serves no HTTP
    has_slots: bool  # False: of a version that serves consumers and groups of a whole tenant


def insert_node(database: Database, address: str, version: str, now_us: int, name: str = "") -> int:
    """A new incarnation, live; its lease begins with the first heartbeat."""
    database.execute("update counters set next_value = next_value + 1 where counter = $1", "node")
    ((following,),) = database.fetch("select next_value from counters where counter = $1", "node")
    inc = int(following) - 1
    database.execute(
        "insert into nodes (inc, state, address, version, joined_at, name, has_slots)"
        " values ($1, $2, $3, $4, $5, $6, 1)",
        *(inc, LIVE, address, version, now_us, name or f"node-{inc}"),
    )
    return inc


def start_lease(database: Database, inc: int, lease_us: int) -> None:
    database.execute(
        f"insert into leases (inc, expires) values ($1, {SERVER_US} + $2)", inc, lease_us
    )


def cluster_id(database: Database, proposed: str = "") -> str:
    """Under which name all nodes claim their topics in Kafka; the first node chooses it."""
    database.execute(
        "insert into cluster (name, value) values ($1, $2) on conflict (name) do nothing",
        *(CLUSTER_ID, proposed or uuid4().hex),
    )
    ((found,),) = database.fetch("select value from cluster where name = $1", CLUSTER_ID)
    return str(found)


def cluster_secret(database: Database) -> bytes:
    """What nodes sign requests with that they pass on; the first node chooses it."""
    database.execute(
        "insert into cluster (name, value) values ($1, $2) on conflict (name) do nothing",
        *(SECRET, token_hex(32)),
    )
    ((found,),) = database.fetch("select value from cluster where name = $1", SECRET)
    return bytes.fromhex(found)


def list_nodes(database: Database) -> list[NodeRow]:
    """All that have not gone, oldest first."""
    rows = database.fetch(f"{_NODES} where n.state <> $1 order by n.inc", GONE)
    return [
        NodeRow(
            inc=inc,
            name=name,
            state=state,
            address=address,
            version=version,
            is_draining=bool(draining),
            recoverer=recoverer,
            joined_at=joined_at,
            sessions=sessions,
            clients=clients,
            lease_us=lease_us,
            http_address=http_address,
            has_slots=bool(has_slots),
        )
        for (
            inc,
            name,
            state,
            address,
            version,
            draining,
            recoverer,
            joined_at,
            sessions,
            clients,
            lease_us,
            http_address,
            has_slots,
        ) in rows
    ]


def claim_recovery(
    database: Database, dead_inc: int, inc: int, *, is_overdue: bool = False
) -> bool:
    """Be the node that recovers a dead one, unless a live node already is; whether we are.

    `is_overdue`: also if a live node is at it, which may not reach Kafka. It hears of that when it
    has finished, and changes nothing.
    """
    return bool(
        database.execute(
            "update nodes set recoverer = $2 where inc = $1 and state = $3"
            " and ($5 = 1 or recoverer is null or recoverer = $2 or recoverer not in"
            " (select inc from nodes where state = $4))",
            *(dead_inc, inc, DEAD, LIVE, int(is_overdue)),
        )
    )


def mark_gone(database: Database, inc: int) -> None:
    """Nothing belongs to this incarnation any more."""
    database.execute("update nodes set state = $2 where inc = $1", inc, GONE)
    database.execute("delete from leases where inc = $1", inc)
    database.execute("delete from node_levels where inc = $1", inc)
