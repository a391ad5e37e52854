"""The topics of a data directory that no broker has open, read without opening it.

To open a directory means to recover every log, to start threads and to write. After a clean close
there is nothing to recover, and a look at the files gives the same answer as a broker would.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec

from penstock.catalog.outside import CatalogPlace, TopicSeen, look, see_topics
from penstock.core.naming.names import topic_slug
from penstock.log.files.directory import keep_closed, read_backends
from penstock.log.files.disk import RealDisk
from penstock.log.files.layout import AREA, find_logs, log_directory, read_facts, tenant_root
from penstock.log.files.recovery import read_closed
from penstock.log.interface import LogIdentity, LogSettings
from penstock.model.errors import PenstockError
from penstock.model.record import DEFAULT_TENANT, TenantId, TopicInfo


def read_topics(path: Path, tenant: TenantId = DEFAULT_TENANT) -> list[TopicInfo] | None:
    """What a broker would list; None if one is open, or would have anything to repair or to tell.

    Nothing is changed. The lock is held while the catalog is read; a broker that is started after
    that shows in the files of the logs.
    """
    root = tenant_root(path, tenant)
    try:
        with keep_closed(path) as is_closed:
            if not is_closed or read_backends(path) is not None or (root / AREA).exists():
                return None
            with look(CatalogPlace(path), is_closed=True) as fetch:
                seen = {_identity(tenant, one): one for one in see_topics(fetch, tenant)}
        if not seen and tenant != DEFAULT_TENANT:
            return None  # perhaps there is no such tenant
        logs = {one for one in find_logs(RealDisk(), path) if one.tenant == tenant}
        if seen.keys() != logs:
            return None
        return [_describe(path, *pair) for pair in seen.items()]
    except (PenstockError, OSError, sqlite3.DatabaseError, msgspec.DecodeError):
        return None  # a broker knows what to do about it, or what to say


def _identity(tenant: TenantId, seen: TopicSeen) -> LogIdentity:
    return LogIdentity(tenant, seen.topic_id, topic_slug(seen.declared))


def _describe(path: Path, identity: LogIdentity, seen: TopicSeen) -> TopicInfo:
    """PenstockError where a broker would find damage."""
    directory = log_directory(path, identity)
    read_facts(RealDisk(), directory)
    segments = read_closed(RealDisk(), directory)
    settings = msgspec.json.decode(seen.settings, type=LogSettings)
    return TopicInfo(
        topic=seen.declared,
        id=seen.topic_id,
        first_offset=segments[0].base_offset,
        end_offset=segments[-1].end_offset,
        bytes=sum([one.body.length for one in segments]),
        retention_age=settings.retention_age_s,
        retention_bytes=settings.retention_bytes,
        durability=settings.durability,
        epoch=segments[-1].body.header.epoch,
        records=segments[-1].end_offset - segments[0].base_offset,
    )
