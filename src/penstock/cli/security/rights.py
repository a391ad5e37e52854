"""The roles and rules that commands work on: of a running broker, or of a closed directory.

Both have the same methods, so commands need not know which they have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote, urlencode

from penstock.broker.access import Access, KnownRole, KnownRule, Question, answer
from penstock.cli.remote import RunningBroker
from penstock.cli.security.accounts import ClosedDirectory
from penstock.config import storage_settings
from penstock.core.access import parse_rule
from penstock.model.errors import RefusedError


class OneRole(NamedTuple):
    role: str
    kind: str
    rules: tuple[str, ...]


class OneRule(NamedTuple):
    """`rule_id` is 0 for a rule in the settings file; without role and user it is everybody's."""

    rule_id: int
    rule: str
    role: str
    user: str


class Verdict(NamedTuple):
    is_allowed: bool
    rule: str  # '' if no rule says anything
    source: str


class Rights(Protocol):
    """Changes are durable on return; RefusedError says why a change is rejected."""

    def roles(self) -> list[OneRole]: ...

    def role(self, name: str) -> OneRole: ...

    def add_role(self, name: str, rules: Sequence[str]) -> None: ...

    def remove_role(self, name: str) -> None: ...

    def rules(self) -> list[OneRule]: ...

    def rule(self, rule_id: int) -> OneRule: ...

    def add_rules(self, rules: Sequence[str], role: str, user: str) -> list[OneRule]: ...

    def remove_rule(self, rule_id: int) -> None: ...

    def check(self, question: Question) -> Verdict: ...


class DirectoryRights:
    """Of a data directory that no broker has open."""

    def __init__(self, closed: ClosedDirectory) -> None:
        self._closed = closed
        self._tenant = closed.tenant
        self._with = closed.run

    def roles(self) -> list[OneRole]:
        async def work(access: Access) -> list[OneRole]:
            return [_role(one) for one in access.roles.all(self._tenant)]

        return self._with(work)

    def role(self, name: str) -> OneRole:
        async def work(access: Access) -> OneRole:
            return _role(access.roles.get(name, self._tenant))

        return self._with(work)

    def add_role(self, name: str, rules: Sequence[str]) -> None:
        parsed = [parse_rule(text) for text in rules]
        self._with(lambda access: access.roles.add(name, parsed, self._tenant))

    def remove_role(self, name: str) -> None:
        self._with(lambda access: access.roles.remove(name, self._tenant))

    def rules(self) -> list[OneRule]:
        async def work(access: Access) -> list[OneRule]:
            return [_rule(one) for one in access.roles.rules(self._tenant)]

        return self._with(work)

    def rule(self, rule_id: int) -> OneRule:
        for one in self.rules():
            if one.rule_id == rule_id:
                return one
        raise RefusedError(f"there is no rule {rule_id}: see `penstock rule list`")

    def add_rules(self, rules: Sequence[str], role: str, user: str) -> list[OneRule]:
        parsed = [parse_rule(text) for text in rules]
        tenant = self._tenant

        async def work(access: Access) -> list[OneRule]:
            if user:
                access.user(user, tenant)
            added = await access.roles.add_rules(parsed, role=role, user=user, tenant=tenant)
            return [_rule(one) for one in added]

        return self._with(work)

    def remove_rule(self, rule_id: int) -> None:
        self._with(lambda access: access.roles.remove_rule(rule_id, self._tenant))

    def check(self, question: Question) -> Verdict:
        """Needs the topics too, so the whole directory is opened."""
        from penstock.app.aio import AsyncBroker

        async def run() -> Verdict:
            async with AsyncBroker(self._closed.path, **storage_settings()) as broker:
                engine = broker.tenants.get(self._tenant)
                self._closed.declare(engine.access)
                found = answer(engine.access, engine.topics.placement, self._tenant, question)
                return Verdict(found.is_allowed, str(found.rule or ""), found.source)

        return asyncio.run(run())


class BrokerRights:
    """Of a running broker, over HTTP; what changes holds at once."""

    def __init__(self, broker: RunningBroker) -> None:
        self._ask = broker.ask

    def roles(self) -> list[OneRole]:
        return [_told_role(one) for one in self._ask("GET", "/v1/roles")["roles"]]

    def role(self, name: str) -> OneRole:
        return _told_role(self._ask("GET", _path(name)))

    def add_role(self, name: str, rules: Sequence[str]) -> None:
        self._ask("PUT", _path(name), {"rules": list(rules)}, **{"If-None-Match": "*"})

    def remove_role(self, name: str) -> None:
        self._ask("DELETE", _path(name))

    def rules(self) -> list[OneRule]:
        return [_told_rule(one) for one in self._ask("GET", "/v1/rules")["rules"]]

    def rule(self, rule_id: int) -> OneRule:
        return _told_rule(self._ask("GET", f"/v1/rules/{rule_id}"))

    def add_rules(self, rules: Sequence[str], role: str, user: str) -> list[OneRule]:
        body = {"rules": list(rules), "role": role, "user": user}
        return [_told_rule(one) for one in self._ask("POST", "/v1/rules", body)["rules"]]

    def remove_rule(self, rule_id: int) -> None:
        self._ask("DELETE", f"/v1/rules/{rule_id}")

    def check(self, question: Question) -> Verdict:
        given = {key: value for key, value in question._asdict().items() if value or key == "user"}
        found = self._ask("GET", f"/v1/access/check?{urlencode(given)}")
        return Verdict(found["allowed"], found["rule"] or "", found["source"])


def _role(one: KnownRole) -> OneRole:
    return OneRole(one.role.name, one.kind, tuple(str(rule) for rule in one.role.rules))


def _rule(one: KnownRule) -> OneRule:
    return OneRule(one.rule_id, str(one.rule), one.role, one.user)


def _told_role(one: dict[str, Any]) -> OneRole:
    return OneRole(one["role"], one["kind"], tuple(one["rules"]))


def _told_rule(one: dict[str, Any]) -> OneRule:
    return OneRule(one["id"], one["rule"], one.get("role", ""), one.get("user", ""))


def _path(role: str) -> str:
    return f"/v1/roles/{quote(role, safe='')}"
