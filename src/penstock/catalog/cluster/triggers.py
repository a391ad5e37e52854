"""Triggers that tell all nodes which tables have changed, when the change is committed.

PostgreSQL loses no notification as long as a connection lives. A node whose connection was lost
reads everything again.
"""

from __future__ import annotations

from typing import Final

from penstock.catalog.database.interface import Database
from penstock.postgres.locks import lock_key

# Tables whose rows every node has in memory. Sessions and positions are read when they are needed.
WATCHED: Final = (
    "tenants",
    "topics",
    "bindings",
    "credentials",
    "access_keys",
    "roles",
    "rules",
    "user_roles",
    "nodes",
    "share_members",
    "share_parts",
)
ASK: Final = "ask "  # begins what a node asks another for, instead of the name of a table
_FUNCTION: Final = """
    create or replace function tell_nodes() returns trigger language plpgsql as $body$
    begin
        perform pg_notify(tg_argv[0], tg_table_name);
        return null;
    end
    $body$
"""


def channel(schema: str) -> str:
    """Where nodes hear of changes: one for each schema of a database."""
    return f"penstock_{lock_key(schema, 'changes') & 0xFFFF_FFFF_FFFF:012x}"


def install_triggers(database: Database, schema: str) -> None:
    """Inside the transaction of a node that joins; those that are there stay."""
    rows = database.fetch(
        "select c.relname from pg_trigger t join pg_class c on c.oid = t.tgrelid"
        " join pg_namespace n on n.oid = c.relnamespace"
        " where n.nspname = $1 and t.tgname = 'tell_nodes'",
        schema,
    )
    found = {row[0] for row in rows}
    missing = [table for table in WATCHED if table not in found]
    if missing:
        database.execute(_FUNCTION)
    for table in missing:
        database.execute(
            f"create trigger tell_nodes after insert or update or delete on {table}"
            f" for each statement execute function tell_nodes('{channel(schema)}')"
        )
