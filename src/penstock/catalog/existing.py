"""Whether a topic is still there, asked within the unit of work of a caller."""

from __future__ import annotations

from penstock.catalog.database.interface import Database
from penstock.model.errors import TopicNotFound
from penstock.model.record import TenantId, TopicId


def check_topic(database: Database, tenant: TenantId, topic_id: TopicId) -> None:
    """TopicNotFound if it was deleted meanwhile."""
    if not database.fetch(
        "select 1 from topics where tenant = $1 and topic_id = $2", tenant, topic_id
    ):
        raise topic_not_found(topic_id)


def topic_not_found(topic_id: TopicId) -> TopicNotFound:
    return TopicNotFound(f"no topic has the id {topic_id}: it was deleted, or never created")
