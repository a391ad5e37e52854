"""Retained messages in the catalog: the newest of each name, as of the checkpoint's levels.

The catalog is where the broker reads them from: the log may drop a record that is still retained.
Functions run inside the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from penstock.catalog.database.interface import Database, Row
from penstock.core.erasure import Erasure
from penstock.model.record import Headers, TenantId


@dataclass(frozen=True, slots=True)
class RetainedRow:
    """The newest retained message of a name."""

    name: str
    topic_id: int
    offset: int
    timestamp: int
    expires_at: int  # 0: never
    qos: int
    kind: int
    publisher: str
    headers: Headers
    payload: bytes
    owner: str | None = None  # the user who published it; None: nobody


@dataclass(frozen=True, slots=True)
class RetainedHead:
    """What the broker has in memory of a retained message: all but what is large."""

    name: str
    topic_id: int
    offset: int
    timestamp: int
    expires_at: int  # 0: never
    publisher: str
    payload_bytes: int
    owner: str | None = None


def head_of(row: RetainedRow) -> RetainedHead:
    return RetainedHead(
        name=row.name,
        topic_id=row.topic_id,
        offset=row.offset,
        timestamp=row.timestamp,
        expires_at=row.expires_at,
        publisher=row.publisher,
        payload_bytes=len(row.payload),
        owner=row.owner,
    )


def load_retained(database: Database, tenant: TenantId) -> list[RetainedHead]:
    rows = database.fetch(
        "select name, topic_id, message_offset, timestamp, expires_at, publisher, length(payload),"
        " owner from retained where tenant = $1",
        tenant,
    )
    return [RetainedHead(*row) for row in rows]


def fetch_retained(database: Database, tenant: TenantId, names: Sequence[str]) -> list[RetainedRow]:
    """The messages of those of the names that have one."""
    found: list[Row] = []
    for name in names:
        found += database.fetch(
            "select name, topic_id, message_offset, timestamp, expires_at, qos, kind,"
            " publisher, headers, payload, owner from retained where tenant = $1 and name = $2",
            tenant,
            name,
        )
    return [_retained(row) for row in found]


def save_retained(
    database: Database,
    tenant: TenantId,
    rows: Sequence[RetainedRow],
    forgotten: Sequence[str],
) -> None:
    """Put what is new or replaced, delete the names that are gone."""
    database.execute_many(
        "delete from retained where tenant = $1 and name = $2",
        [(tenant, name) for name in forgotten],
    )
    database.execute_many(
        "insert into retained (tenant, name, topic_id, message_offset, timestamp, expires_at, qos,"
        " kind, publisher, headers, payload, owner)"
        " select $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12"
        " where exists (select 1 from topics where topic_id = $3)"
        " on conflict (tenant, name) do update set topic_id = excluded.topic_id,"
        " message_offset = excluded.message_offset, timestamp = excluded.timestamp,"
        " expires_at = excluded.expires_at, qos = excluded.qos, kind = excluded.kind,"
        " publisher = excluded.publisher, headers = excluded.headers, payload = excluded.payload,"
        " owner = excluded.owner",
        [
            (
                tenant,
                row.name,
                row.topic_id,
                row.offset,
                row.timestamp,
                row.expires_at,
                row.qos,
                row.kind,
                row.publisher,
                msgspec.json.encode(row.headers).decode(),
                row.payload,
                row.owner,
            )
            for row in rows
        ],
    )


def erase_retained(
    database: Database, tenant: TenantId, topic_id: int, erasure: Erasure, *, dry_run: bool
) -> int:
    """Delete the messages of these records; how many there were."""
    found = [
        head.name
        for head in load_retained(database, tenant)
        if head.topic_id == topic_id and erasure.has(head.name, head.offset, head.timestamp)
    ]
    if not dry_run:
        save_retained(database, tenant, (), found)
    return len(found)


def _retained(row: Row) -> RetainedRow:
    name, topic_id, offset, timestamp, expires_at, qos, kind, publisher, headers, payload, own = row
    pairs = msgspec.json.decode(headers, type=Headers)
    facts = (name, topic_id, offset, timestamp, expires_at, qos, kind, publisher)
    return RetainedRow(*facts, pairs, bytes(payload), own)
