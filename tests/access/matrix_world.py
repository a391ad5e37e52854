"""A broker with two tenants whose users, roles and rules were generated, and the model of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from penstock.broker.access import KEY_USER, key_id_of
from penstock.core.access import parse_rule
from penstock.model.record import TenantId
from tests.access.matrix_clients import Asker, Record, Who, enter, publish_mqtt_5
from tests.access.readers import Login
from tests.access.rule_model import TOPICS, USERS, Generator, Rule, Spot, place
from tests.doors.hosted import Hosted

NAMES: Final = 36
WILDCARDS: Final = 20
ADMIN: Final = "alice"


class RulesWorld:
    """What users may do changes here, in the broker and in the model alike."""

    def __init__(self, broker: Hosted, seed: int) -> None:
        self.broker = broker
        self.asker = Asker(broker)
        self.generator = Generator(seed)
        self.policies = {tenant: self.generator.policy(tenant) for tenant in USERS}
        policies = list(self.policies.values())
        self.names = self.generator.names_near(policies, NAMES)
        self.wildcards = ["#", *self.generator.wildcards_near(self.names, WILDCARDS)]
        self.placed = [place(name) for name in self.names]
        self.misplaced = [  # only HTTP can store a name in another topic
            Spot(topic, name)
            for topic, name in zip(TOPICS * 3, self.names[2:], strict=False)
            if place(name).topic != topic
        ]
        self.people: list[Who] = []
        self.admins: dict[str, Who] = {}  # by tenant
        self.decisions: Counter[str] = Counter()
        self.allowed = 0  # of these decisions
        self.mistakes: list[str] = []
        self.moment = "at first"
        self._set_up()

    # Changes

    def _run(self, work: Callable[[Any], Any]) -> Any:
        """Something that suspends, with the broker's access."""
        return self.broker.run(lambda server: work(server.broker.engine.access))

    def _set_up(self) -> None:
        self.broker.run(
            lambda server: server.broker.tenants.add("acme", "A", "B", "c@acme.example")
        )
        for tenant, policy in self.policies.items():
            self.admins[tenant] = self._add_user(tenant, ADMIN)
            self.add_rules(tenant, [], policy.everybody)
            for role in ("first", "second", "third"):
                self._add_role(tenant, role, policy.roles[role])
            for user in USERS[tenant]:
                self.people.append(self._add_user(tenant, user))
                self.set_roles(tenant, user, policy.held[user])
                self.add_rules(tenant, [], policy.own[user], user)
            for topic in TOPICS[:2]:
                self.admin(tenant, "PUT", f"/v1/topics/{topic}", {})
        key = self._run(lambda access: access.make_key("bob"))
        self.people.append(Who("bob-key", "default", "bob", Login(KEY_USER, key)))

    def _add_role(self, tenant: str, role: str, rules: list[Rule]) -> None:
        parsed = [parse_rule(str(rule)) for rule in rules]
        self._run(lambda access: access.roles.add(role, parsed, TenantId(tenant)))

    def _add_user(self, tenant: str, user: str) -> Who:
        secret = f"of {tenant}/{user}"
        self._run(lambda access: access.add_user(user, secret.encode(), tenant=TenantId(tenant)))
        return Who(user, tenant, user, login_of(tenant, user))

    def add_rules(
        self, tenant: str, known: list[Rule], rules: Sequence[Rule], user: str = ""
    ) -> None:
        """Of a user, or of everybody; `known` are those that the model has."""
        added = [parse_rule(str(rule)) for rule in rules]
        of = TenantId(tenant)
        self._run(lambda access: access.roles.add_rules(added, user=user, tenant=of))
        known += rules

    def remove_rule(self, tenant: str, known: list[Rule], rule: Rule, **of: str) -> None:
        roles, owner = self.broker.exchange.engine.access.roles, TenantId(tenant)
        (wanted,) = of.items()
        found = [
            one.rule_id
            for one in roles.rules(owner)
            if str(one.rule) == str(rule) and getattr(one, wanted[0]) == wanted[1]
        ]
        self._run(lambda access: access.roles.remove_rule(found[0], owner))
        known.remove(rule)

    def replace_role(self, tenant: str, role: str, rules: list[Rule]) -> None:
        parsed = [parse_rule(str(rule)) for rule in rules]
        self._run(lambda access: access.roles.replace(role, parsed, TenantId(tenant)))
        self.policies[tenant].roles[role] = rules

    def remove_role(self, tenant: str, role: str) -> None:
        self._run(lambda access: access.roles.remove(role, TenantId(tenant)))
        for held in self.policies[tenant].held.values():
            if role in held:
                held.remove(role)

    def set_roles(self, tenant: str, user: str, roles: list[str]) -> None:
        self._run(lambda access: access.set_roles(user, roles, TenantId(tenant)))
        self.policies[tenant].held[user] = list(roles)

    def revoke_key(self, who: Who) -> None:
        self._run(lambda access: access.revoke_key(key_id_of(who.login.secret)))
        who.is_alive = False

    def remove_user(self, who: Who) -> None:
        self._run(lambda access: access.remove_user(who.user, TenantId(who.tenant)))
        who.is_alive = False
        policy = self.policies[who.tenant]
        del policy.held[who.user], policy.own[who.user]

    # What the admin of a tenant does and sees

    def admin(self, tenant: str, method: str, path: str, body: Any = b"") -> Any:
        status, answer = self.asker.json(self.admins[tenant].login, method, path, body)
        assert status < 300, answer
        return answer

    def publish(self, tenant: str) -> None:
        """A retained message of every name, and others in topics where the name is not at home."""
        records = [Record(spot, f"{tenant} {self.moment} {spot.name}") for spot in self.placed]
        wire, reason = enter(self.broker, self.admins[tenant].login, "admin")
        assert reason == 0
        assert len(publish_mqtt_5(wire, records, retain=True)) == len(records)
        wire.disconnect()
        for spot in self.misplaced:
            payload = f"{tenant} {self.moment} {spot.name} in {spot.topic}"
            body = {"name": spot.name, "payload": payload}
            self.admin(tenant, "POST", f"/v1/topics/{spot.topic}/records", body)

    def ends(self, tenant: str) -> dict[str, int]:
        """The offset after the last record of each topic."""
        paths = {topic: f"/v1/topics/{topic}/records?from=latest" for topic in TOPICS}
        return {
            topic: self.admin(tenant, "GET", path)["end_offset"] for topic, path in paths.items()
        }

    def stored(self, tenant: str, since: dict[str, int]) -> list[Record]:
        found = []
        for topic, start in since.items():
            path = f"/v1/topics/{topic}/records?from={start}&limit=10000"
            for one in self.admin(tenant, "GET", path)["records"]:
                found.append(Record(Spot(topic, one["name"]), one["payload"]))
        return found

    # Comparing

    def compare(
        self, way: str, who: Who, expected: object, found: object, decisions: int = 1
    ) -> None:
        self.decisions[way] += decisions
        if isinstance(expected, set):
            self.allowed += len(expected)
        if expected != found:
            told = f"expected {expected}, found {found}"
            if isinstance(expected, set) and isinstance(found, set):
                told = f"leaked {sorted(found - expected)}, missing {sorted(expected - found)}"
            self.mistakes.append(f"{self.moment}: {way} of {who.tenant}/{who.label}: {told}")


def login_of(tenant: str, user: str) -> Login:
    name = user if tenant == "default" else f"{tenant}/{user}"
    return Login(name, f"of {tenant}/{user}")
