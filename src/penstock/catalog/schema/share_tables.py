"""The tables of shares whose members are on several nodes."""

from __future__ import annotations

from typing import Final

SHARE_TABLES: Final = (
    # Nobody has filled it before this version.
    "drop table share_parts",
    # Which node gives out the messages of a part; null: none, so that any node may claim it.
    """
    create table share_parts (
        tenant text not null,
        share_id bigint not null,
        topic_id bigint not null references topics (topic_id) on delete cascade,
        owner_inc bigint,
        primary key (tenant, share_id, topic_id),
        foreign key (tenant, share_id) references shares (tenant, share_id) on delete cascade
    )
    """,
    "create index share_parts_by_node on share_parts (owner_inc)",
    # Which nodes have a connected member of a share.
    """
    create table share_members (
        tenant text not null,
        share_id bigint not null,
        inc bigint not null,
        primary key (tenant, share_id, inc),
        foreign key (tenant, share_id) references shares (tenant, share_id) on delete cascade
    )
    """,
    "create index share_pins on share_outstanding (tenant, client_id) where qos = 2",
    "create index subscriptions_shared on subscriptions (tenant, filter)"
    " where substr(filter, 2, 6) = 'share/'",
)
