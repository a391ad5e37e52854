"""The tables of roles and rules, and what users of earlier versions become."""

from __future__ import annotations

from typing import Final

ROLE_TABLES: Final = (
    """
    create table roles (
        tenant text not null references tenants (tenant) on delete cascade,
        role text not null,
        created_at bigint not null,
        primary key (tenant, role)
    )
    """,
    """
    create table rules (
        tenant text not null references tenants (tenant) on delete cascade,
        rule_id bigint not null,
        subject_kind text not null,
        subject text not null,
        rule text not null,
        created_at bigint not null,
        primary key (tenant, rule_id),
        unique (tenant, subject_kind, subject, rule)
    )
    """,
    """
    create table user_roles (
        tenant text not null,
        user_name text not null,
        role text not null,
        primary key (tenant, user_name, role),
        foreign key (tenant, user_name) references credentials (tenant, user_name)
            on delete cascade
    )
    """,
    # Until now everybody could do everything: the oldest user of a tenant becomes admin.
    """
    insert into user_roles (tenant, user_name, role)
    select one.tenant, one.user_name,
        case when exists (
            select 1 from credentials older
            where older.tenant = one.tenant
                and (older.created_at < one.created_at
                    or (older.created_at = one.created_at
                        and older.user_name < one.user_name))
        ) then 'client' else 'admin' end
    from credentials one
    """,
    "alter table access_keys add column roles text not null default ''",
)
