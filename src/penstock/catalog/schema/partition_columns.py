"""Which partition of its topic a row of `topics` is; those with a number above 0 are no topics.

The key of such a row is that of its topic, a slash, which no topic's name has, and its number.
"""

from __future__ import annotations

from typing import Final

PARTITION_COLUMNS: Final = (
    "alter table topics add column partition bigint not null default 0",
    "drop view all_topics",
    """
    create view all_topics as
    select topics.declared as topicname,
           topics.topic_id as topicid,
           coalesce(ordinals.consumers, 0) as consumers,
           coalesce(ordinals.producers, 0) as producers,
           coalesce(levels.level_offset, 0) as tailid
    from topics
    left join ordinals
        on ordinals.tenant = topics.tenant and ordinals.topic_id = topics.topic_id
    left join levels on levels.topic_id = topics.topic_id
    where topics.tenant = 'default' and topics.partition = 0
    """,
)
