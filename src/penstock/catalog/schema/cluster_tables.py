"""The tables of several nodes on one catalog: who is there, and what belongs to whom.

An incarnation (`inc`) is one life of a node and is never used again. Leases are apart from `nodes`,
so that heartbeats never wait for transactions, each of which locks the row of its own node.
"""

from __future__ import annotations

from typing import Final

CLUSTER_TABLES: Final = (
    "insert into counters (counter, next_value) values ('node', 1)",
    """
    create table cluster (
        name text not null primary key,
        value text not null
    )
    """,
    """
    create table nodes (
        inc bigint not null primary key,
        state text not null,
        address text not null,
        version text not null,
        is_draining bigint not null default 0,
        recoverer bigint,
        joined_at bigint not null
    )
    """,
    """
    create table leases (
        inc bigint not null primary key references nodes (inc) on delete cascade,
        expires bigint not null
    )
    """,
    """
    create table node_levels (
        inc bigint not null references nodes (inc) on delete cascade,
        topic_id bigint not null references topics (topic_id) on delete cascade,
        epoch bigint not null,
        level_offset bigint not null,
        primary key (inc, topic_id)
    )
    """,
    """
    create table fences (
        inc bigint not null references nodes (inc) on delete cascade,
        topic_id bigint not null references topics (topic_id) on delete cascade,
        fence_offset bigint not null,
        primary key (inc, topic_id)
    )
    """,
    """
    create table share_parts (
        tenant text not null references tenants (tenant) on delete cascade,
        share_id bigint not null,
        topic_id bigint not null references topics (topic_id) on delete cascade,
        owner_inc bigint,
        primary key (tenant, share_id, topic_id)
    )
    """,
    """
    create table view_levels (
        topic_id bigint not null primary key references topics (topic_id) on delete cascade,
        owner_inc bigint,
        epoch bigint not null,
        level_offset bigint not null
    )
    """,
    # Which node has a session open; null: none, so that any node may claim it.
    "alter table sessions add column owner_inc bigint",
    "create index sessions_by_node on sessions (owner_inc)",
    # Which node fires a will; which one has begun to, and where the log ended at that time.
    "alter table wills add column node_inc bigint",
    "alter table wills add column claim_inc bigint",
    "alter table wills add column claim_offset bigint",
)

NODE_COLUMNS: Final = (
    "alter table nodes add column name text not null default ''",
    # With the heartbeat, which writes this row anyway.
    "alter table leases add column clients bigint not null default 0",
    # What one node at a time works with: a consumer, a group, a shared subscription.
    """
    create table claims (
        tenant text not null references tenants (tenant) on delete cascade,
        kind text not null,
        name text not null,
        owner_inc bigint not null,
        primary key (tenant, kind, name)
    )
    """,
    "create index claims_by_node on claims (owner_inc)",
)

HTTP_ADDRESSES: Final = (
    # Where other nodes pass requests on to; empty: nowhere.
    "alter table nodes add column http_address text not null default ''",
)
