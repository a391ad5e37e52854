"""What rules mean, in the plainest words, and rules and names that are near each other.

The model shares no code with the broker. A world is generated from a seed: the same seed gives the
same rules, users and names.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

TOPICS: Final = ("orders", "hr", "default")  # a name is in the topic of its first level
END: Final = "end/now"  # everybody may have it: what comes before it has come
FRESH: Final = ("\x01", "\x01/\x01", "\x01/\x01/\x01")  # levels that no rule mentions
USERS: Final = {"default": ("bob", "carl", "dora", "eve", "fred"), "acme": ("bob", "carl")}
LEVELS: Final = ("a", "b", "bob", "carl", "default", "acme", "bob-live", "carl-once", "dora-once")
FIRST_LEVELS: Final = ("orders", "hr", "logs", "bob", "dora", "$odd")
READING: Final = ("subscribe", "receive", "read")


class Rule(NamedTuple):
    allows: bool
    actions: tuple[str, ...]
    target: str  # a filter, or "topic:NAME"

    def __str__(self) -> str:
        return f"{'allow' if self.allows else 'deny'} {','.join(self.actions)} {self.target}"


class Spot(NamedTuple):
    """A name and the topic that holds it."""

    topic: str
    name: str


BUILT_IN: Final = {
    "client": [Rule(True, ("publish", *READING), "#"), Rule(True, READING, "$SYS/#")],
    "reader": [Rule(True, READING, "#"), Rule(True, READING, "$SYS/#")],
}


def place(name: str) -> Spot:
    first = name.split("/")[0]
    return Spot(first if first in TOPICS else "default", name)


def matches(filter: str, name: str) -> bool:
    """MQTT 5 §4.7."""
    if name[0] == "$" and filter[0] in "+#":
        return False
    return _levels_match(filter.split("/"), name.split("/"))


def _levels_match(filter: list[str], name: list[str]) -> bool:
    if filter == ["#"]:
        return True
    if not filter or not name:
        return not filter and not name
    return filter[0] in ("+", name[0]) and _levels_match(filter[1:], name[1:])


def covers(wide: str, narrow: str) -> bool:
    """Whether a filter matches whatever another one matches, tried with levels nobody mentions."""
    one_level = narrow.replace("+", FRESH[0])
    if not narrow.endswith("#"):
        return matches(wide, one_level)
    parent = one_level[:-1].rstrip("/")
    names = [f"{parent}/{more}" for more in FRESH] + [parent] if parent else list(FRESH)
    return all(matches(wide, name) for name in names)


@dataclass
class Policy:
    """The roles, rules and users of a tenant, as they are at a moment."""

    tenant: str
    roles: dict[str, list[Rule]] = field(default_factory=lambda: dict(BUILT_IN))
    held: dict[str, list[str]] = field(default_factory=dict)  # roles of a user
    own: dict[str, list[Rule]] = field(default_factory=dict)  # rules of a user
    everybody: list[Rule] = field(default_factory=list)

    def rules(self, user: str) -> Iterator[Rule]:
        yield from self.everybody
        yield from self.own.get(user, [])
        for role in self.held.get(user, []):
            yield from self.roles[role]

    def allows(self, user: str, action: str, spot: Spot, client_id: str = "") -> bool:
        """Deny wins; what no rule allows is denied."""
        found = [
            rule.allows
            for rule in self.rules(user)
            if action in rule.actions and self._is_about(rule, user, spot, client_id)
        ]
        return bool(found) and all(found)

    def allows_filter(self, user: str, filter: str, client_id: str) -> bool:
        """May the user subscribe? A rule about a topic counts if only it has such names."""
        first = filter.split("/")[0]
        topic = "" if first in ("+", "#") else place(first).topic
        found = []
        for rule in self.rules(user):
            if "subscribe" not in rule.actions:
                continue
            own = self._filled_in(rule.target, user, client_id)
            if rule.target.startswith("topic:"):
                is_about = rule.target == f"topic:{topic}"
            else:
                is_about = own is not None and covers(own, filter)
            if is_about:
                found.append(rule.allows)
        return bool(found) and all(found)

    def may_ask(self, user: str, topic: str) -> bool:
        """May the user ask for records of a topic at all?"""
        reading = [rule for rule in self.rules(user) if "read" in rule.actions]
        about = [rule.allows for rule in reading if rule.target == f"topic:{topic}"]
        if about:
            return all(about)
        return any(rule.allows and not rule.target.startswith("topic:") for rule in reading)

    def _is_about(self, rule: Rule, user: str, spot: Spot, client_id: str) -> bool:
        if rule.target.startswith("topic:"):
            return rule.target == f"topic:{spot.topic}"
        filter = self._filled_in(rule.target, user, client_id)
        return filter is not None and matches(filter, spot.name)

    def _filled_in(self, filter: str, user: str, client_id: str) -> str | None:
        values = {"%u": user, "%c": client_id, "%t": self.tenant}
        levels = [values.get(level, level) for level in filter.split("/")]
        used = [values[level] for level in filter.split("/") if level in values]
        if any(not value or set(value) & set("/+#") for value in used):
            return None
        return "/".join(levels)


class Generator:
    """Rules, names near them, and filters near both."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self._given: set[Rule] = set()

    def name(self) -> str:
        rng = self.rng
        levels = [rng.choice(LEVELS) for _ in range(rng.choice((0, 1, 1, 2, 2, 3)))]
        return "/".join([rng.choice(FIRST_LEVELS), *levels])

    def filter(self) -> str:
        """A name with some levels replaced; only literal levels follow a wildcard in front."""
        levels = self.name().split("/")
        for at in range(1, len(levels)):
            if self.rng.random() < 0.5:
                levels[at] = self.rng.choice(("+", "%u", "%c", "%t", "+"))
        kept = 1
        if self.rng.random() < 0.15:
            levels = [self.rng.choice(("+", "%u")), self.rng.choice(LEVELS), *levels[2:]]
            kept = 2  # or the rule would be about END, too
        if self.rng.random() < 0.5:
            levels = [*levels[: max(kept, len(levels) - 1)], "#"]
        return "/".join(levels)

    def rule(self, *, allows: bool | None = None) -> Rule:
        """Another one each time: the broker refuses a rule that somebody has already."""
        while (rule := self._any_rule(allows)) in self._given:
            pass
        self._given.add(rule)
        return rule

    def _any_rule(self, allows: bool | None) -> Rule:
        rng = self.rng
        verdict = rng.random() < 0.65 if allows is None else allows
        actions = tuple(one for one in ("publish", *READING) if rng.random() < 0.6) or ("read",)
        is_topic = rng.random() < 0.15
        target = f"topic:{rng.choice(TOPICS[:2])}" if is_topic else self.filter()
        return Rule(verdict, actions, target)

    def policy(self, tenant: str) -> Policy:
        policy = Policy(tenant)
        policy.everybody = [Rule(True, READING, "end/#")]
        for role in ("first", "second", "third"):
            policy.roles[role] = [self.rule() for _ in range(7)]
        for at, user in enumerate(USERS[tenant]):
            policy.held[user] = (
                ["first", "second"],
                ["second", "third"],
                ["third"],
                ["client"],
                ["reader", "first"],
            )[at]
            policy.own[user] = [self.rule(allows=at < 2) for _ in range(3)]
        return policy

    def names_near(self, policies: Sequence[Policy], count: int) -> list[str]:
        """Names that rules match, or would match if one level were another."""
        rules = [rule for one in policies for user in one.held for rule in one.rules(user)]
        filters = [rule.target for rule in rules if rule.target[0] not in "#+%"]
        filters = [one for one in filters if not one.startswith(("topic:", "end/", "$SYS"))]
        found: dict[str, None] = dict.fromkeys(TOPICS[:2])
        while len(found) < count:
            levels = self.rng.choice(filters).split("/")
            levels = [self.rng.choice(LEVELS) if one[0] in "+%#" else one for one in levels]
            change = self.rng.random()
            if change < 0.2:
                levels = levels[:-1] or levels
            elif change < 0.4:
                levels.append(self.rng.choice(LEVELS))
            elif change < 0.6 and len(levels) > 1:
                levels[-1] = self.rng.choice(LEVELS)
            found["/".join(levels)] = None
        return list(found)

    def wildcards_near(self, names: Sequence[str], count: int) -> list[str]:
        found: dict[str, None] = {}
        while len(found) < count:
            levels = self.rng.choice(names).split("/")
            at = self.rng.randrange(len(levels))
            if levels[0][0] != "$" or at:
                levels[at:] = ["#"] if self.rng.random() < 0.5 else ["+", *levels[at + 1 :]]
            if "+" in levels or "#" in levels:
                found["/".join(levels)] = None
        return list(found)
