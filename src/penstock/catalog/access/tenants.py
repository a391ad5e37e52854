"""Tenants, durable in SQL: who each is, and that nothing of it is left when it is removed."""

from __future__ import annotations

from typing import Final

from penstock.catalog.access.credentials import wait_turn
from penstock.catalog.database.interface import Database
from penstock.catalog.database.thread import Runner
from penstock.core.naming.names import AUDIT_TOPIC
from penstock.model.clock import Clock
from penstock.model.errors import RefusedError
from penstock.model.record import TenantId
from penstock.model.tenants import TenantInfo, no_such_tenant

# All tables with rows of a tenant, those that others refer to last. Rows of other tables go with
# theirs: positions with sessions, keys with users.
_TABLES: Final = (
    "wills",
    "retained",
    "shares",
    "sessions",
    "pipeline_runs",
    "topics",
)
# What keeps a tenant from being removed without `purge`, as people call it. The audit topic does
# not: nobody can delete it.
_DATA: Final = (
    ("topic", f"topics where declared <> '{AUDIT_TOPIC}' and"),
    ("session", "sessions where"),
    ("user", "credentials where"),
)


class TenantList:
    """All tenants, over the catalog's runner."""

    def __init__(self, runner: Runner, clock: Clock) -> None:
        self._runner = runner
        self._clock = clock

    async def load(self) -> list[TenantInfo]:
        """All of them, by name."""
        return await self._runner.run(_load)

    async def ensure(self, tenant: TenantId) -> None:
        """Make the tenant unless it is there."""
        row = TenantInfo(tenant, "", "", "", self._clock.now_us())
        await self._runner.run(lambda database: _insert(database, row))

    async def insert(
        self, tenant: TenantId, first_name: str, last_name: str, email: str
    ) -> TenantInfo:
        """Raises RefusedError when the tenant exists."""
        row = TenantInfo(tenant, first_name, last_name, email, self._clock.now_us())

        def work(database: Database) -> None:
            if not _insert(database, row):
                raise RefusedError(f"tenant {tenant!r} already exists: choose another name")

        await self._runner.run(work)
        return row

    async def check_empty(self, tenant: TenantId) -> None:
        """Raises RefusedError while the tenant has topics, sessions or users."""
        await self._runner.run(lambda database: _check_empty(database, tenant))

    async def delete(self, tenant: TenantId) -> None:
        """Forget the tenant and every row of it; RefusedError when there is no such tenant.

        Its users were removed before, and a broker saw to it that they were not the last ones.
        So it is refused if there are users again, who may be the last ones now.
        """

        def work(database: Database) -> None:
            wait_turn(database)
            if database.fetch("select 1 from credentials where tenant = $1 limit 1", tenant):
                raise RefusedError(
                    f"users were added to tenant {tenant!r} while it was being removed: restart "
                    "this broker, then remove the tenant once more"
                )
            for table in _TABLES:
                database.execute(f"delete from {table} where tenant = $1", tenant)
            if not database.execute("delete from tenants where tenant = $1", tenant):
                raise no_such_tenant(tenant)

        await self._runner.run(work)


def _load(database: Database) -> list[TenantInfo]:
    rows = database.fetch(
        "select tenant, first_name, last_name, email, created_at from tenants order by tenant"
    )
    return [TenantInfo(*row) for row in rows]


def _insert(database: Database, row: TenantInfo) -> int:
    return database.execute(
        "insert into tenants (tenant, first_name, last_name, email, created_at)"
        " values ($1, $2, $3, $4, $5) on conflict (tenant) do nothing",
        row.tenant,
        row.first_name,
        row.last_name,
        row.email,
        row.created_at,
    )


def _check_empty(database: Database, tenant: TenantId) -> None:
    found = []
    for noun, rows in _DATA:
        ((count,),) = database.fetch(f"select count(*) from {rows} tenant = $1", tenant)
        if count:
            found.append(f"{count} {noun}{'s' if count > 1 else ''}")
    if found:
        raise RefusedError(
            f"tenant {tenant!r} has {' and '.join(found)}: remove them first, or give --purge to"
            " delete the tenant with everything in it"
        )
