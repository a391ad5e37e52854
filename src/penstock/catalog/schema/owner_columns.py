"""Who made a topic, a consumer, a group or a retained message: quotas of users count them."""

from __future__ import annotations

from typing import Final

# null: nobody, as for what earlier versions or the broker itself made.
OWNER_COLUMNS: Final = tuple(
    f"alter table {table} add column owner text"
    for table in ("topics", "consumers", "groups", "retained")
)
