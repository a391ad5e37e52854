"""The table of known clients.

A row does not refer to its user: it says who used the client id last, also after the user is gone.
"""

from __future__ import annotations

from typing import Final

CLIENT_TABLES: Final = (
    """
    create table clients (
        tenant text not null references tenants (tenant) on delete cascade,
        client_id text not null,
        owner text not null,
        credential_type text not null,
        credential text not null,
        certificate_name text not null,
        last_address text not null,
        first_seen bigint not null,
        last_seen bigint not null,
        primary key (tenant, client_id)
    )
    """,
    "create index clients_by_last_seen on clients (tenant, last_seen, client_id)",
)
