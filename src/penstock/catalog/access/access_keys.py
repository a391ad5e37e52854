"""Keys that programs log in with instead of a password, durable in SQL.

Only a digest is kept. A key is 256 random bits, so a plain SHA-256 of it tells nobody anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.catalog.database.interface import Database
from penstock.catalog.database.thread import Runner
from penstock.core.access import no_such_user
from penstock.model.clock import Clock
from penstock.model.errors import RefusedError
from penstock.model.record import TenantId


@dataclass(frozen=True, slots=True)
class AccessKeyRow:
    """A key of a user. `key_id` is the beginning of its digest: enough to name it."""

    tenant: TenantId
    key_id: str
    user: str
    digest: str  # SHA-256, hexadecimal
    created_at: int  # µs since 1970, UTC
    roles: tuple[str, ...] = ()  # fewer than the user's; empty: the user's


class AccessKeys:
    """The keys of all users, over the catalog's runner."""

    def __init__(self, runner: Runner, clock: Clock) -> None:
        self._runner = runner
        self._clock = clock

    async def load(self) -> list[AccessKeyRow]:
        def work(database: Database) -> list[AccessKeyRow]:
            rows = database.fetch(
                "select tenant, key_id, user_name, digest, created_at, roles from access_keys"
                " order by tenant, user_name, created_at"
            )
            return [
                AccessKeyRow(
                    tenant=tenant,
                    key_id=key_id,
                    user=user,
                    digest=digest,
                    created_at=created_at,
                    roles=tuple(roles.split()),
                )
                for tenant, key_id, user, digest, created_at, roles in rows
            ]

        return await self._runner.run(work)

    async def insert(
        self,
        tenant: TenantId,
        user: str,
        key_id: str,
        digest: str,
        *,
        roles: Sequence[str] = (),
    ) -> AccessKeyRow:
        """Raises RefusedError when there is no such user, or the id is taken."""
        row = AccessKeyRow(
            tenant=tenant,
            key_id=key_id,
            user=user,
            digest=digest,
            created_at=self._clock.now_us(),
            roles=tuple(roles),
        )

        def work(database: Database) -> None:
            if not database.fetch(
                "select 1 from credentials where tenant = $1 and user_name = $2", tenant, user
            ):
                raise no_such_user(user)
            if not database.execute(
                "insert into access_keys (tenant, key_id, user_name, digest, created_at, roles)"
                " values ($1, $2, $3, $4, $5, $6) on conflict (tenant, key_id) do nothing",
                row.tenant,
                row.key_id,
                row.user,
                row.digest,
                row.created_at,
                " ".join(row.roles),
            ):
                raise RefusedError(f"key id {key_id} is already in use: create another key")

        await self._runner.run(work)
        return row

    async def delete(self, tenant: TenantId, key_id: str) -> None:
        """Raises RefusedError when there is no such key."""

        def work(database: Database) -> None:
            if not database.execute(
                "delete from access_keys where tenant = $1 and key_id = $2", tenant, key_id
            ):
                raise RefusedError(f"there is no key {key_id!r}: see `penstock key list`")

        await self._runner.run(work)
