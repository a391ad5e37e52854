"""What tenants and users hold of their quotas, counted for all nodes together; leases of groups.

The count of a kind is the sum of its rows. Each is written by one process or one connection alone
(`stripe`), so that nodes never wait for each other to count.
"""

from __future__ import annotations

from typing import Final

HOLDING_TABLES: Final = (
    """
    create table holdings (
        tenant text not null,
        kind text not null,
        holder text not null,
        stripe bigint not null,
        amount bigint not null,
        primary key (tenant, kind, holder, stripe)
    )
    """,
    # Who holds what of a group, for the node that goes on with it.
    "alter table groups add column leases text not null default '[]'",
    # 1: it serves consumers and groups by slots of topics, not all of a tenant.
    "alter table nodes add column has_slots bigint not null default 0",
)
