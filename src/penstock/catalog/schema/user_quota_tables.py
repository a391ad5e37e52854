"""How many producers each user registered for a topic, and whose an idempotency key is.

Quotas of users count both. Of what earlier versions stored, producers are nobody's, and
idempotency keys are those of anonymous clients: they are forgotten after a day.
"""

from __future__ import annotations

from typing import Final

USER_QUOTA_TABLES: Final = (
    """
    create table producers_by_owner (
        tenant text not null,
        topic_id bigint not null,
        owner text not null,
        producers bigint not null,
        primary key (tenant, topic_id, owner),
        foreign key (tenant, topic_id) references topics (tenant, topic_id)
            on delete cascade
    )
    """,
    "alter table idempotency_keys add column owner text not null default ''",
    "create index idempotency_keys_by_owner on idempotency_keys (tenant, owner, stored_at)",
)
