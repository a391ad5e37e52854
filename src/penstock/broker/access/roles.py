"""Roles and rules of all tenants: built in, declared in the settings, and added by commands.

Kept in memory and in step with the catalog. What is declared in the settings is read-only here.
The rules of a role or a user are compiled once, when they are first asked for; a change compiles
anew only those of the role or the user that it is about.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from penstock.catalog.access.roles import (
    OF_EVERYBODY,
    OF_ROLE,
    OF_USER,
    RoleCatalog,
    RoleRow,
    RuleRow,
)
from penstock.core.access import (
    BUILT_IN,
    Grants,
    Role,
    Rule,
    RuleSet,
    check_role_name,
    condense,
    parse_rule,
)
from penstock.core.naming.names import quoted
from penstock.model.errors import RefusedError
from penstock.model.record import DEFAULT_TENANT, TenantId

DECLARED: Final = 0  # the id of rules that are declared in the settings

Subject = tuple[TenantId, str, str]  # whose rules: tenant, kind, and name of a role or a user


class DeclaredRole(NamedTuple):
    """`[[roles]]` of the settings."""

    name: str
    rules: tuple[Rule, ...]
    tenant: TenantId = DEFAULT_TENANT


class DeclaredRule(NamedTuple):
    """`[[rules]]` of the settings: of a role, of a user, or of everybody."""

    rule: Rule
    role: str = ""
    user: str = ""
    tenant: TenantId = DEFAULT_TENANT


@dataclass(frozen=True, slots=True)
class KnownRole:
    """A role as people see it."""

    role: Role
    is_built_in: bool
    is_declared: bool

    @property
    def kind(self) -> Literal["built-in", "declared", "added"]:
        if self.is_built_in:
            return "built-in"
        return "declared" if self.is_declared else "added"


@dataclass(frozen=True, slots=True)
class KnownRule:
    """A rule that belongs to a role, a user or everybody; `rule_id` is 0 if it is declared."""

    tenant: TenantId
    rule_id: int
    subject_kind: str
    subject: str
    rule: Rule

    @property
    def role(self) -> str:
        return self.subject if self.subject_kind == OF_ROLE else ""

    @property
    def user(self) -> str:
        return self.subject if self.subject_kind == OF_USER else ""

    @property
    def of(self) -> Subject:
        return self.tenant, self.subject_kind, self.subject


class Roles:
    """A listener is called after every change that is durable.

    `on_user_change` hears of a change of one user's own rules, `on_change` of any other one, with
    the tenant it is in (None: in all); before it, `on_remove` hears which role is gone. What is
    awaited has reached everybody (`wait_settled`).
    """

    def __init__(
        self,
        catalog: RoleCatalog,
        on_change: Callable[[TenantId | None], None],
        on_user_change: Callable[[TenantId, str], None],
        on_remove: Callable[[str, TenantId], None],
        wait_settled: Callable[[TenantId | None], Awaitable[None]],
    ) -> None:
        self._wait_settled = wait_settled
        self._catalog = catalog
        self._on_change = on_change
        self._on_user_change = on_user_change
        self._on_remove = on_remove  # hears which role users have lost
        self._roles: dict[tuple[TenantId, str], RoleRow] = {}
        self._rules: dict[tuple[TenantId, int], KnownRule] = {}
        self._declared_roles: dict[tuple[TenantId, str], DeclaredRole] = {}
        self._declared_rules: list[KnownRule] = []
        self._sets: dict[Subject, RuleSet | None] = {}
        self._by_subject: dict[Subject, list[Rule]] | None = None
        self._grants: dict[tuple[TenantId, tuple[str, ...]], Grants] = {}

    async def load(self) -> None:
        roles, rules = await self._catalog.load()
        self._roles = {(row.tenant, row.role): row for row in roles}
        self._rules = {(row.tenant, row.rule_id): _known(row) for row in rules}
        self._forget_all()

    def declare(self, roles: Iterable[DeclaredRole], rules: Iterable[DeclaredRule]) -> None:
        """What the settings say, instead of what they said before."""
        declared: dict[tuple[TenantId, str], DeclaredRole] = {}
        for role in roles:
            if role.name in BUILT_IN:
                raise RefusedError(f"role {quoted(role.name)} is built in: choose another name")
            if (role.tenant, role.name) in declared:
                raise RefusedError(f"role {quoted(role.name)} is declared twice: declare it once")
            declared[role.tenant, role.name] = role
        self._declared_roles = declared
        self._declared_rules = [
            KnownRule(one.tenant, DECLARED, *_subject(one.role, one.user), one.rule)
            for one in rules
        ]
        self._forget_all()
        self._on_change(None)

    # What there is

    def all(self, tenant: TenantId = DEFAULT_TENANT) -> list[KnownRole]:
        """The built-in ones first, then by name."""
        names = {name for one, name in (*self._roles, *self._declared_roles) if one == tenant}
        return [self.get(name, tenant) for name in (*BUILT_IN, *sorted(names - set(BUILT_IN)))]

    def get(self, name: str, tenant: TenantId = DEFAULT_TENANT) -> KnownRole:
        """A role with all its rules; RefusedError when it does not exist."""
        self.check(name, tenant)
        own = self._subject_rules().get((tenant, OF_ROLE, name), [])
        built_in = BUILT_IN.get(name)
        role = Role(name, tuple(own)) if built_in is None else built_in
        return KnownRole(role, built_in is not None, (tenant, name) in self._declared_roles)

    def check(self, name: str, tenant: TenantId = DEFAULT_TENANT) -> str:
        """The name of a role that exists; else RefusedError."""
        key = (tenant, name)
        if name not in BUILT_IN and key not in self._roles and key not in self._declared_roles:
            raise RefusedError(
                f"there is no role {quoted(name)} (names are case-sensitive): see "
                "`penstock role list`"
            )
        return name

    def rules(self, tenant: TenantId = DEFAULT_TENANT) -> list[KnownRule]:
        """All rules of a tenant, of roles too: those of the settings first, then by number."""
        return [one for one in self._all_rules() if one.tenant == tenant]

    # Changes

    async def add(
        self, name: str, rules: Sequence[Rule], tenant: TenantId = DEFAULT_TENANT
    ) -> None:
        """A new role, durable on return."""
        self._check_changeable(check_role_name(name), tenant)
        texts = [str(rule) for rule in rules]
        role, rows = await self._catalog.insert_role(tenant, name, texts)
        self._roles[tenant, name] = role
        self._take((tenant, OF_ROLE, name), rows)
        await self._wait_settled(tenant)

    async def replace(
        self, name: str, rules: Sequence[Rule], tenant: TenantId = DEFAULT_TENANT
    ) -> None:
        """The role has exactly these rules from now on; durable on return."""
        self._check_changeable(self.check(name, tenant), tenant)
        rows = await self._catalog.replace_rules(tenant, name, [str(rule) for rule in rules])
        self._drop({(tenant, OF_ROLE, name)})
        self._take((tenant, OF_ROLE, name), rows)
        await self._wait_settled(tenant)

    async def remove(self, name: str, tenant: TenantId = DEFAULT_TENANT) -> None:
        """The role and its rules; users who have it lose it."""
        self._check_changeable(name, tenant)
        await self._catalog.delete_role(tenant, name)
        self._roles.pop((tenant, name), None)
        self._drop({(tenant, OF_ROLE, name)})
        self._on_remove(name, tenant)
        self._on_change(tenant)
        await self._wait_settled(tenant)

    async def add_rules(
        self,
        rules: Sequence[Rule],
        *,
        role: str = "",
        user: str = "",
        tenant: TenantId = DEFAULT_TENANT,
    ) -> list[KnownRule]:
        """Rules of a role or a user, or of everybody if both are ''; durable on return."""
        if role:
            self._check_changeable(self.check(role, tenant), tenant)
        subject = _subject(role, user)
        rows = await self._catalog.insert_rules(tenant, subject, [str(rule) for rule in rules])
        taken = self._take((tenant, *subject), rows)
        await self._wait_settled(tenant)
        return taken

    async def remove_rule(self, rule_id: int, tenant: TenantId = DEFAULT_TENANT) -> None:
        if rule_id == DECLARED:
            raise RefusedError(
                "the rule is declared in the settings file: remove it there, and run "
                "`penstock reload`"
            )
        await self._catalog.delete_rule(tenant, rule_id)
        gone = self._rules.pop((tenant, rule_id), None)
        if gone is not None:
            self._changed(self._take_back(gone))
            await self._wait_settled(tenant)

    def forget_users(self, users: Collection[str], tenant: TenantId) -> None:
        """The users and their own rules are gone from the catalog."""
        known = self._subject_rules()
        self._drop({key for user in users if known.get(key := (tenant, OF_USER, user))})

    def _drop(self, subjects: Collection[Subject]) -> None:
        """Forget the stored rules of these, at the cost of looking at all rules once."""
        gone = [key for key, one in self._rules.items() if one.of in subjects] if subjects else ()
        for key in gone:
            self._take_back(self._rules.pop(key))
        for subject in subjects:
            self._forget(subject)

    def _take(self, subject: Subject, rows: Iterable[RuleRow]) -> list[KnownRule]:
        taken = [_known(row) for row in rows]
        own = self._subject_rules().setdefault(subject, [])
        for one in taken:
            self._rules[one.tenant, one.rule_id] = one
            own.append(one.rule)
        self._changed(subject)
        return taken

    def _take_back(self, gone: KnownRule) -> Subject:
        """A stored rule is gone; whose it was. It did not hold if the settings have the role."""
        is_held = not gone.role or (gone.tenant, gone.role) not in self._declared_roles
        if is_held and self._by_subject is not None:
            self._by_subject[gone.of].remove(gone.rule)
        return gone.of

    def _check_changeable(self, name: str, tenant: TenantId) -> None:
        if name in BUILT_IN:
            raise RefusedError(
                f"role {quoted(name)} is built in and cannot be changed: add a role of your own"
            )
        if (tenant, name) in self._declared_roles:
            raise RefusedError(
                f"role {quoted(name)} is declared in the settings file: change it there, and run "
                "`penstock reload`"
            )

    def _changed(self, subject: Subject) -> None:
        """The rules of a subject have changed, here and in the catalog."""
        self._forget(subject)
        tenant, kind, name = subject
        if kind == OF_USER:
            self._on_user_change(tenant, name)
        else:
            self._on_change(tenant)

    def _forget(self, subject: Subject) -> None:
        self._sets.pop(subject, None)
        if subject[1] != OF_USER:
            self._grants.clear()

    def _forget_all(self) -> None:
        self._sets.clear()
        self._grants.clear()
        self._by_subject = None

    # What they come to

    def grants(self, tenant: TenantId, user: str, roles: tuple[str, ...]) -> Grants:
        """What somebody with these roles may do; shared by all who have no rules of their own."""
        found = self._grants.get((tenant, roles))
        if found is None:
            sets = self._role_sets(tenant, roles)
            found = self._grants[tenant, roles] = Grants(sets, condense(sets))
        own = self._set(tenant, OF_USER, user) if user else None
        return found if own is None else Grants([*found.sets, own], [*found.condensed, own])

    def _role_sets(self, tenant: TenantId, roles: tuple[str, ...]) -> list[RuleSet]:
        wanted = [(OF_ROLE, role) for role in roles] + [(OF_EVERYBODY, "")]
        found = [self._set(tenant, *subject) for subject in wanted]
        return [one for one in found if one is not None]

    def _set(self, tenant: TenantId, kind: str, subject: str) -> RuleSet | None:
        """The compiled rules of a subject; None if it has none."""
        if kind == OF_ROLE and subject in BUILT_IN:
            return _BUILT_IN_SETS[subject]
        key = (tenant, kind, subject)
        if key not in self._sets:
            rules = self._subject_rules().get(key)
            self._sets[key] = RuleSet(f"{kind} {subject}".strip(), rules) if rules else None
        return self._sets[key]

    def _subject_rules(self) -> dict[Subject, list[Rule]]:
        """The rules that hold, in the order of `rules`; kept in step with every change."""
        if self._by_subject is None:
            self._by_subject = {}
            for one in self._all_rules():
                self._by_subject.setdefault(one.of, []).append(one.rule)
        return self._by_subject

    def _all_rules(self) -> list[KnownRule]:
        """A role that the settings declare has the rules declared there, and no others."""
        declared = self._declared_roles
        of_roles = [
            KnownRule(role.tenant, DECLARED, OF_ROLE, role.name, rule)
            for role in declared.values()
            for rule in role.rules
        ]
        stored = [
            one
            for one in self._rules.values()
            if one.subject_kind != OF_ROLE or (one.tenant, one.subject) not in declared
        ]
        return self._declared_rules + of_roles + stored


_BUILT_IN_SETS: Final = {name: RuleSet.of_role(role) for name, role in BUILT_IN.items()}


def _subject(role: str, user: str) -> tuple[str, str]:
    if role and user:
        raise RefusedError("a rule belongs to a role or to a user: give one of them")
    if role:
        return OF_ROLE, role
    return (OF_USER, user) if user else (OF_EVERYBODY, "")


def _known(row: RuleRow) -> KnownRule:
    return KnownRule(row.tenant, row.rule_id, row.subject_kind, row.subject, parse_rule(row.rule))
