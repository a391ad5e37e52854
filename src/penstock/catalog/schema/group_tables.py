"""The tables of groups: how far each is, its settings, and which dead letters were redriven."""

from __future__ import annotations

from typing import Final

GROUP_TABLE: Final = (
    """
    create table groups (
        tenant text not null,
        topic_id bigint not null,
        group_name text not null,
        epoch bigint not null,
        next_offset bigint not null,
        open_offsets text not null,
        saved_at bigint not null,
        primary key (tenant, topic_id, group_name),
        foreign key (tenant, topic_id) references topics (tenant, topic_id)
            on delete cascade
    )
    """,
)

GROUP_SETTINGS: Final = (
    # Groups from earlier versions go on with what was fixed there.
    "alter table groups add column lease_us bigint not null default 30000000",
    "alter table groups add column deliveries_max bigint not null default 5",
    """
    create table redrives (
        tenant text not null,
        topic_id bigint not null,
        dead_topic_id bigint not null,
        done text not null,
        mark text not null,
        under_way text not null,
        epoch bigint not null,
        end_offset bigint not null,
        primary key (tenant, topic_id),
        foreign key (tenant, topic_id) references topics (tenant, topic_id)
            on delete cascade
    )
    """,
)

# The partition that the dead letters under way are put into.
REDRIVE_COLUMNS: Final = ("alter table redrives add column partition bigint not null default 0",)
