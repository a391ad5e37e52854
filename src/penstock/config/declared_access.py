"""`[[roles]]` and `[[rules]]` of the settings file: access for people who keep settings in git.

InvalidSetting names the file, the value and the rule. Whether a user exists is not checked here: a
user may be added later.
"""

from __future__ import annotations

from typing import Any

from penstock.broker.access import DeclaredRole, DeclaredRule
from penstock.config.rows import check_keys, tables
from penstock.core.access import BUILT_IN, Rule, check_role_name, check_user, parse_rule
from penstock.core.naming.names import check_tenant, quoted
from penstock.model.errors import InvalidSetting, RefusedError
from penstock.model.record import DEFAULT_TENANT, TenantId


def read_roles(rows: Any, origin: str) -> tuple[DeclaredRole, ...]:
    found: dict[tuple[TenantId, str], DeclaredRole] = {}
    for row in tables(rows, "roles", origin):
        check_keys(row, "roles", {"name", "rules"}, {"tenant"}, origin)
        try:
            role = DeclaredRole(check_role_name(row["name"]), _rules(row["rules"]), _tenant(row))
            if role.name in BUILT_IN:
                raise RefusedError(f"role {quoted(role.name)} is built in: choose another name")
            if (role.tenant, role.name) in found:
                raise RefusedError(f"role {quoted(role.name)} is declared twice: declare it once")
        except RefusedError as wrong:
            raise InvalidSetting(f"{origin}: [[roles]] {wrong}") from None
        found[role.tenant, role.name] = role
    return tuple(found.values())


def read_rules(rows: Any, roles: tuple[DeclaredRole, ...], origin: str) -> tuple[DeclaredRule, ...]:
    """`roles` are those of the same file; a rule may belong to one of them."""
    declared = {(role.tenant, role.name) for role in roles}
    found = []
    for row in tables(rows, "rules", origin):
        check_keys(row, "rules", {"rule"}, {"role", "user", "tenant"}, origin)
        try:
            one = _declared_rule(row)
            if one.role and (one.tenant, one.role) not in declared:
                raise RefusedError(
                    f"role {quoted(one.role)} is not declared in this file: declare it with "
                    "[[roles]], or add the rule with `penstock rule add --role`"
                )
        except RefusedError as wrong:
            raise InvalidSetting(f"{origin}: [[rules]] {wrong}") from None
        found.append(one)
    return tuple(found)


def _declared_rule(row: dict[str, Any]) -> DeclaredRule:
    if "role" in row and "user" in row:
        raise RefusedError(
            f"rule {quoted(row['rule'])} has both 'role' and 'user': give one of them, or none for "
            "everybody"
        )
    role = check_role_name(row["role"]) if "role" in row else ""
    user = check_user(row["user"]) if "user" in row else ""
    return DeclaredRule(parse_rule(row["rule"]), role, user, _tenant(row))


def _rules(texts: Any) -> tuple[Rule, ...]:
    if not isinstance(texts, list):
        raise RefusedError(f'rules {texts!r} is not a list: write rules = ["allow …"]')
    return tuple(parse_rule(text) for text in texts)


def _tenant(row: dict[str, Any]) -> TenantId:
    return TenantId(check_tenant(row.get("tenant", DEFAULT_TENANT)))
