"""Roles, rules, and which users have which roles, durable in SQL.

The catalog does not read the rules: they are texts. A rule belongs to a role, to a user, or to
everybody of its tenant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.catalog.database.interface import Database
from penstock.catalog.database.thread import Runner
from penstock.core.access import no_such_user
from penstock.model.clock import Clock
from penstock.model.errors import RefusedError
from penstock.model.record import TenantId

OF_ROLE: Final = "role"
OF_USER: Final = "user"
OF_EVERYBODY: Final = "everybody"  # then the subject is ''


@dataclass(frozen=True, slots=True)
class RoleRow:
    tenant: TenantId
    role: str
    created_at: int  # µs since 1970, UTC


@dataclass(frozen=True, slots=True)
class RuleRow:
    """A rule of a tenant, numbered in the order of adding; no number is given twice."""

    tenant: TenantId
    rule_id: int
    subject_kind: str
    subject: str
    rule: str
    created_at: int  # µs since 1970, UTC


class RoleCatalog:
    """The roles and rules of all tenants, over the catalog's runner."""

    def __init__(self, runner: Runner, clock: Clock) -> None:
        self._runner = runner
        self._clock = clock

    async def load(self) -> tuple[list[RoleRow], list[RuleRow]]:
        """All of them, as of one moment; rules in the order of adding."""
        return await self._runner.run(_load)

    async def insert_role(
        self, tenant: TenantId, role: str, rules: Sequence[str]
    ) -> tuple[RoleRow, list[RuleRow]]:
        """Raises RefusedError when the role exists."""
        row = RoleRow(tenant, role, self._clock.now_us())

        def work(database: Database) -> list[RuleRow]:
            if not database.execute(
                "insert into roles (tenant, role, created_at) values ($1, $2, $3)"
                " on conflict (tenant, role) do nothing",
                row.tenant,
                row.role,
                row.created_at,
            ):
                raise RefusedError(
                    f"role {role!r} already exists: remove it first, or add rules to it with "
                    "`penstock rule add`"
                )
            return _insert_rules(database, tenant, (OF_ROLE, role), rules, row.created_at)

        return row, await self._runner.run(work)

    async def delete_role(self, tenant: TenantId, role: str) -> None:
        """With its rules, and from all users who have it; RefusedError when it does not exist."""

        def work(database: Database) -> None:
            if not database.execute(
                "delete from roles where tenant = $1 and role = $2", tenant, role
            ):
                raise _no_role(role)
            _delete_rules(database, tenant, (OF_ROLE, role))
            database.execute("delete from user_roles where tenant = $1 and role = $2", tenant, role)

        await self._runner.run(work)

    async def insert_rules(
        self, tenant: TenantId, subject: tuple[str, str], rules: Sequence[str]
    ) -> list[RuleRow]:
        """Rules of a subject (kind, name); raises RefusedError when it has one of them."""
        now_us = self._clock.now_us()
        return await self._runner.run(
            lambda database: _insert_rules(database, tenant, subject, rules, now_us)
        )

    async def replace_rules(
        self, tenant: TenantId, role: str, rules: Sequence[str]
    ) -> list[RuleRow]:
        """A role has exactly these rules; raises RefusedError when it does not exist."""
        now_us = self._clock.now_us()

        def work(database: Database) -> list[RuleRow]:
            if not database.fetch(
                "select 1 from roles where tenant = $1 and role = $2", tenant, role
            ):
                raise _no_role(role)
            _delete_rules(database, tenant, (OF_ROLE, role))
            return _insert_rules(database, tenant, (OF_ROLE, role), rules, now_us)

        return await self._runner.run(work)

    async def delete_rule(self, tenant: TenantId, rule_id: int) -> None:
        """Raises RefusedError when there is no such rule."""

        def work(database: Database) -> None:
            if not database.execute(
                "delete from rules where tenant = $1 and rule_id = $2", tenant, rule_id
            ):
                raise RefusedError(f"there is no rule {rule_id}: see `penstock rule list`")

        await self._runner.run(work)

    async def set_user_roles(self, tenant: TenantId, user: str, roles: Sequence[str]) -> None:
        """Raises RefusedError when there is no such user."""

        def work(database: Database) -> None:
            if not database.fetch(
                "select 1 from credentials where tenant = $1 and user_name = $2", tenant, user
            ):
                raise no_such_user(user)
            put_user_roles(database, tenant, user, roles)

        await self._runner.run(work)


def put_user_roles(database: Database, tenant: TenantId, user: str, roles: Sequence[str]) -> None:
    """Give a user exactly these roles, within the unit of work of a caller."""
    database.execute("delete from user_roles where tenant = $1 and user_name = $2", tenant, user)
    for role in dict.fromkeys(roles):
        database.execute(
            "insert into user_roles (tenant, user_name, role) values ($1, $2, $3)",
            tenant,
            user,
            role,
        )


def delete_user_rules(database: Database, tenant: TenantId, user: str) -> None:
    """Delete the rules of a user's own, within the unit of work of a caller."""
    _delete_rules(database, tenant, (OF_USER, user))


def user_roles(database: Database, tenant: TenantId, user: str) -> tuple[str, ...]:
    """The roles of one user, in alphabetical order."""
    rows = database.fetch(
        "select role from user_roles where tenant = $1 and user_name = $2 order by role",
        tenant,
        user,
    )
    return tuple(role for (role,) in rows)


def load_user_roles(database: Database) -> dict[tuple[TenantId, str], tuple[str, ...]]:
    """The roles of all users who have one, in alphabetical order."""
    found: dict[tuple[TenantId, str], tuple[str, ...]] = {}
    for tenant, user, role in database.fetch(
        "select tenant, user_name, role from user_roles order by tenant, user_name, role"
    ):
        found[tenant, user] = (*found.get((tenant, user), ()), role)
    return found


def _delete_rules(database: Database, tenant: TenantId, subject: tuple[str, str]) -> None:
    database.execute(
        "delete from rules where tenant = $1 and subject_kind = $2 and subject = $3",
        tenant,
        *subject,
    )


def _no_role(role: str) -> RefusedError:
    return RefusedError(
        f"there is no role {role!r} (names are case-sensitive): see `penstock role list`"
    )


def _insert_rules(
    database: Database,
    tenant: TenantId,
    subject: tuple[str, str],
    rules: Sequence[str],
    now_us: int,
) -> list[RuleRow]:
    next_id = _reserve_ids(database, tenant, len(rules))
    rows = [RuleRow(tenant, next_id + at, *subject, rule, now_us) for at, rule in enumerate(rules)]
    for row in rows:
        if not database.execute(
            "insert into rules (tenant, rule_id, subject_kind, subject, rule, created_at)"
            " values ($1, $2, $3, $4, $5, $6)"
            " on conflict (tenant, subject_kind, subject, rule) do nothing",
            row.tenant,
            row.rule_id,
            row.subject_kind,
            row.subject,
            row.rule,
            row.created_at,
        ):
            owner = f"{row.subject_kind} {row.subject}".strip()
            raise RefusedError(f"{owner} already has the rule {row.rule!r}: give each rule once")
    return rows


def _reserve_ids(database: Database, tenant: TenantId, count: int) -> int:
    """The first of so many ids that no rule of the tenant ever had."""
    database.execute(
        "update tenants set next_rule_id = next_rule_id + $2 where tenant = $1", tenant, count
    )
    ((following,),) = database.fetch("select next_rule_id from tenants where tenant = $1", tenant)
    return int(following) - count


def _load(database: Database) -> tuple[list[RoleRow], list[RuleRow]]:
    roles = database.fetch("select tenant, role, created_at from roles order by tenant, role")
    rules = database.fetch(
        "select tenant, rule_id, subject_kind, subject, rule, created_at from rules"
        " order by tenant, rule_id"
    )
    return [RoleRow(*row) for row in roles], [RuleRow(*row) for row in rules]
