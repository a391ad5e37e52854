"""The login that a will was left with, and the number of a tenant's next rule."""

from __future__ import annotations

from typing import Final

LOGIN_COLUMNS: Final = (
    # Of a will from earlier versions: empty, so that what its owner may counts.
    "alter table wills add column proof text not null default ''",
    "alter table wills add column roles text not null default ''",
    "alter table wills add column credential text not null default ''",
    "alter table tenants add column next_rule_id bigint not null default 1",
    """
    update tenants set next_rule_id = coalesce(
        (select max(rule_id) + 1 from rules where rules.tenant = tenants.tenant), 1
    )
    """,
)
