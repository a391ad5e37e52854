"""Users, the hashes of their passwords and their roles, durable in SQL.

As in the rest of the catalog, a method that returns has stored what it changed, and one that
raises has changed nothing. Passwords never come here, only what argon2 made of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.catalog.access.access_keys import AccessKeys
from penstock.catalog.access.roles import (
    RoleCatalog,
    delete_user_rules,
    load_user_roles,
    put_user_roles,
    user_roles,
)
from penstock.catalog.database.interface import Database
from penstock.catalog.database.thread import Runner
from penstock.core.access import no_such_user
from penstock.model.clock import Clock
from penstock.model.errors import RefusedError
from penstock.model.record import TenantId

REMOVED_PROOF: Final = "removed"  # the login of wills whose users are gone
REMOVED_OWNER: Final = ":removed"  # behind the name of a user who is gone; no name contains ':'


@dataclass(frozen=True, slots=True)
class CredentialRow:
    """A user who can log in."""

    tenant: TenantId
    user: str
    password_hash: str  # argon2's own text, parameters and salt included
    created_at: int  # µs since 1970, UTC
    changed_at: int  # when the password was set
    roles: tuple[str, ...]  # in alphabetical order


class Credentials:
    """The users of all tenants, over the catalog's runner."""

    def __init__(self, runner: Runner, clock: Clock) -> None:
        self.keys = AccessKeys(runner, clock)
        self.roles = RoleCatalog(runner, clock)
        self._runner = runner
        self._clock = clock

    async def load(self) -> list[CredentialRow]:
        """All of them, by tenant and name."""
        return await self._runner.run(_load)

    async def insert(
        self,
        tenant: TenantId,
        user: str,
        password_hash: str,
        roles: Sequence[str],
        first_roles: Sequence[str] | None = None,
    ) -> CredentialRow:
        """Raises RefusedError when the user exists. The first user of a tenant gets `first_roles`.

        Of users who are added at the same time, on any node, one is the first.
        """
        now_us = self._clock.now_us()

        def work(database: Database) -> CredentialRow:
            wait_turn(database)
            is_first = first_roles is not None and not _has_users(database, tenant)
            held = first_roles if is_first and first_roles is not None else roles
            row = CredentialRow(
                tenant=tenant,
                user=user,
                password_hash=password_hash,
                created_at=now_us,
                changed_at=now_us,
                roles=tuple(sorted(set(held))),
            )
            if not database.execute(
                "insert into credentials (tenant, user_name, password_hash, created_at, changed_at)"
                " values ($1, $2, $3, $4, $5) on conflict (tenant, user_name) do nothing",
                row.tenant,
                row.user,
                row.password_hash,
                row.created_at,
                row.changed_at,
            ):
                raise RefusedError(
                    f"user {user!r} already exists: change the password, or choose another name"
                )
            put_user_roles(database, tenant, user, row.roles)
            return row

        return await self._runner.run(work)

    async def update(
        self, tenant: TenantId, user: str, password_hash: str, *, keep_keys: bool = False
    ) -> CredentialRow:
        """Set the password and delete the user's keys; RefusedError when there is no such user."""
        now_us = self._clock.now_us()

        def work(database: Database) -> CredentialRow:
            database.execute(
                "update credentials set password_hash = $3, changed_at = $4"
                " where tenant = $1 and user_name = $2",
                tenant,
                user,
                password_hash,
                now_us,
            )
            created = database.fetch(
                "select created_at from credentials where tenant = $1 and user_name = $2",
                tenant,
                user,
            )
            if not created:
                raise no_such_user(user)
            if not keep_keys:
                database.execute(
                    "delete from access_keys where tenant = $1 and user_name = $2", tenant, user
                )
            roles = user_roles(database, tenant, user)
            return CredentialRow(
                tenant=tenant,
                user=user,
                password_hash=password_hash,
                created_at=created[0][0],
                changed_at=now_us,
                roles=roles,
            )

        return await self._runner.run(work)

    async def delete(self, tenant: TenantId, user: str, *, last_stays: str = "") -> None:
        """With the user's roles, rules and keys; RefusedError when there is no such user.

        A broker that runs gives `last_stays`, what it says instead of removing the last user of
        all tenants: without users everybody on its machine would come in. Of two nodes that remove
        the last two users at the same time the second one is refused.
        """

        def work(database: Database) -> None:
            wait_turn(database)
            if not _delete(database, tenant, user):
                raise no_such_user(user)
            _check_left(database, last_stays)

        await self._runner.run(work)

    async def delete_all(self, tenant: TenantId, *, last_stays: str = "") -> list[str]:
        """All users of a tenant, or none of them; who they were."""

        def work(database: Database) -> list[str]:
            wait_turn(database)
            rows = database.fetch("select user_name from credentials where tenant = $1", tenant)
            users = [user for (user,) in rows]
            for user in users:
                _delete(database, tenant, user)
            if users:
                _check_left(database, last_stays)
            return users

        return await self._runner.run(work)


def wait_turn(database: Database) -> None:
    """Until this transaction ends no other one adds or removes users, on any node.

    So each sees what those before it left. Only a node that joins waits for this row, too.
    """
    database.execute("update counters set next_value = next_value where counter = $1", "node")


def _has_users(database: Database, tenant: TenantId) -> bool:
    return bool(database.fetch("select 1 from credentials where tenant = $1 limit 1", tenant))


def _check_left(database: Database, last_stays: str) -> None:
    if last_stays and not database.fetch("select 1 from credentials limit 1"):
        raise RefusedError(last_stays)


def _delete(database: Database, tenant: TenantId, user: str) -> bool:
    """Delete a user with what belongs to it; False if there is no such user."""
    if not database.execute(
        "delete from credentials where tenant = $1 and user_name = $2", tenant, user
    ):
        return False
    delete_user_rules(database, tenant, user)
    # Sessions of clients that are connected end with their connections.
    database.execute(
        "update sessions set owner = owner || $3,"
        " expiry_s = case when is_connected = 1 then expiry_s else 0 end"
        " where tenant = $1 and owner = $2",
        tenant,
        user,
        REMOVED_OWNER,
    )
    database.execute(
        "update wills set proof = $3 where tenant = $1 and owner = $2",
        tenant,
        user,
        REMOVED_PROOF,
    )
    return True


def _load(database: Database) -> list[CredentialRow]:
    rows = database.fetch(
        "select tenant, user_name, password_hash, created_at, changed_at from credentials"
        " order by tenant, user_name"
    )
    roles = load_user_roles(database)
    return [
        CredentialRow(
            tenant=tenant,
            user=user,
            password_hash=stored,
            created_at=created,
            changed_at=changed,
            roles=roles.get((tenant, user), ()),
        )
        for tenant, user, stored, created, changed in rows
    ]
