"""Logs that the catalog does not know, settled once at the start, for all tenants together.

Such a log was being created or deleted when the process ended: nobody was told of it, or everybody
was told that it is gone, so it is removed. A log with an id that the catalog never gave out is
another matter (a catalog that was lost or restored): it is taken back in, with its tenant.
"""

from __future__ import annotations

from penstock.broker.topic.topic import identity_of, topic_rows
from penstock.catalog.catalog import Catalog
from penstock.core.naming.names import check_tenant
from penstock.log.interface import LogIdentity, LogStore
from penstock.model.clock import Clock
from penstock.model.errors import CorruptError, InvalidName
from penstock.model.record import TopicId


async def settle_strays(catalog: Catalog, store: LogStore, clock: Clock) -> list[str]:
    """What to tell people about it."""
    notes: list[str] = []
    known = {identity_of(row) for row in await catalog.all_topics()}
    # Asked for once: adopting a log moves the number past others that have yet to be adopted.
    next_id = await catalog.peek_topic_id()
    for identity in store.list():
        if identity in known:
            continue
        if identity.topic_id < next_id:
            await store.delete(identity)
        else:
            notes += await _adopt(catalog, store, clock, identity)
    return notes


async def _adopt(
    catalog: Catalog, store: LogStore, clock: Clock, identity: LogIdentity
) -> list[str]:
    """Take in a log; why not, if nobody can tell what it is."""
    try:
        tenant = check_tenant(identity.tenant)
        declared, settings = await store.describe(identity)
    except (CorruptError, InvalidName) as broken:
        return [f"{broken}; the log is left in place and not used"]
    await catalog.tenants.ensure(tenant)
    topic_id = TopicId(identity.topic_id)
    rows = topic_rows(tenant, topic_id, declared, settings, clock.now_us())
    await catalog.adopt_topic(*rows)
    return []
