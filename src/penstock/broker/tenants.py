"""The tenants of a broker: each has an engine of its own, so that nothing of one meets another.

All of them are opened at the start, the default one first. A tenant that is added is open before
anybody can log in to it; one that is removed is closed before its rows and files go.
"""

from __future__ import annotations

import asyncio
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from penstock.broker.engine import Engine
from penstock.broker.shared import Shared
from penstock.broker.upkeep.snapshots import Snapshots
from penstock.catalog.reports import REPORTS
from penstock.core.naming.names import check_tenant
from penstock.core.quota_settings import QuotaSettings
from penstock.log.files.layout import AREA
from penstock.model.errors import RefusedError
from penstock.model.record import DEFAULT_TENANT, TenantId
from penstock.model.tenants import TenantInfo, no_such_tenant


class TenantListener(Protocol):
    """Who has to do with every tenant: doors that are open."""

    async def begin_tenant(self, engine: Engine) -> None:
        """A tenant was added; its engine is open."""
        ...

    async def end_tenant(self, engine: Engine) -> None:
        """A tenant is being removed: let go of everything of it."""
        ...


class Tenants:
    """The engines, by tenant. Changes happen one at a time."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self.engines: dict[TenantId, Engine] = {}
        self.listeners: list[TenantListener] = []
        self._catalog = shared.catalog.tenants
        self._rows: dict[TenantId, TenantInfo] = {}
        self._turn = asyncio.Lock()
        self.snapshots = Snapshots(shared, self.engines)
        shared.access.tenants = self._rows

    async def open(self) -> None:
        """Open the engines of all tenants; `close` closes those that were opened."""
        await self.snapshots.clean()
        await self.shared.open()
        rows = {row.tenant: row for row in await self._catalog.load()}
        self._rows |= {DEFAULT_TENANT: rows.pop(DEFAULT_TENANT), **rows}
        for tenant in self._rows:
            await self._open(tenant)

    async def _open(self, tenant: TenantId) -> Engine:
        engine = self.engines[tenant] = Engine(self.shared, tenant)
        await engine.open()
        return engine

    async def close(self, *, is_clean: bool = True) -> None:
        """Close all engines, then what they share. Safe to call twice."""
        try:
            await self.snapshots.clean()
            for engine in self.engines.values():
                await engine.close(is_clean=is_clean)
        finally:
            await self.shared.close()

    @property
    def notes(self) -> list[str]:
        """What was found at the start, for people."""
        found = list(self.shared.notes)
        for engine in self.engines.values():
            found += engine.topics.notes
        return found

    def get(self, tenant: str) -> Engine:
        """The engine of a tenant; RefusedError if there is no such tenant."""
        engine = self.engines.get(TenantId(tenant))
        if engine is None:
            raise no_such_tenant(tenant)
        return engine

    def set_quotas(self, quotas: QuotaSettings) -> None:
        """These hold from now on, for tenants that are added later, too."""
        self.shared.settings = replace(self.shared.settings, quotas=quotas)
        for engine in self.engines.values():
            engine.quotas.set(quotas)

    def all(self) -> list[TenantInfo]:
        """The default one first, then by name."""
        rows = sorted(self._rows.values(), key=lambda row: row.tenant)
        return sorted(rows, key=lambda row: row.tenant != DEFAULT_TENANT)

    def find(self, tenant: str) -> TenantInfo:
        """RefusedError if there is no such tenant."""
        row = self._rows.get(TenantId(tenant))
        if row is None:
            raise no_such_tenant(tenant)
        return row

    async def add(
        self, name: str, first_name: str = "", last_name: str = "", email: str = ""
    ) -> TenantInfo:
        """Durable and open on return; RefusedError if the tenant exists."""
        tenant = check_tenant(name)
        async with self._turn:
            row = await self._catalog.insert(tenant, first_name, last_name, email)
            engine = await self._open(tenant)
            for listener in self.listeners:
                await listener.begin_tenant(engine)
            self._rows[tenant] = row
        return row

    async def follow(self) -> None:
        """Take over what other nodes changed: tenants, and the topics and bindings of each."""
        async with self._turn:
            rows = {row.tenant: row for row in await self._catalog.load()}
            for tenant in [one for one in self.engines if one not in rows]:
                await self._let_go(self.engines[tenant])
            for engine in list(self.engines.values()):
                await engine.topics.follow()
            for tenant in [one for one in rows if one not in self.engines]:
                engine = await self._open(tenant)
                for listener in self.listeners:
                    await listener.begin_tenant(engine)
            self._rows.update(rows)

    async def _let_go(self, engine: Engine) -> None:
        """Another node removed a tenant: its rows and topics are gone, or will be."""
        for listener in self.listeners:
            await listener.end_tenant(engine)
        self.shared.access.end_tenant(engine.tenant)
        await engine.topics.follow()
        await engine.close()
        del self.engines[engine.tenant]
        self._rows.pop(engine.tenant, None)

    async def remove(self, name: str, *, purge: bool = False, last_stays: str = "") -> None:
        """Forget a tenant; one with topics, sessions or users only if told to `purge` it.

        `last_stays` is what a broker that runs says if the tenant has the last users of all.
        """
        if name == DEFAULT_TENANT:
            raise RefusedError("tenant 'default' cannot be removed: it is part of every broker")
        async with self._turn:
            engine = self.get(name)
            access = self.shared.access
            if purge:  # before anything else: it is refused if nobody else would be left
                await access.remove_users(engine.tenant, last_stays=last_stays)
            else:
                await self._catalog.check_empty(engine.tenant)
            for listener in self.listeners:
                await listener.end_tenant(engine)
            access.end_tenant(engine.tenant)
            await engine.topics.delete_all()
            await engine.close()
            await self._catalog.delete(engine.tenant)
            if engine.directory is not None:
                await asyncio.to_thread(_remove_files, engine.directory)
            del self.engines[engine.tenant], self._rows[engine.tenant]


def _remove_files(directory: Path) -> None:
    """What is left of a tenant's root once its logs are gone; files of others stay."""
    for name in (AREA, REPORTS):
        shutil.rmtree(directory / name, ignore_errors=True)
    with suppress(OSError):  # not ours, or never made
        directory.rmdir()
