"""What rules say about a name: compiled once for each role, shared by everybody who has the role.

A placeholder is a `+` in the tree of filters and a comparison afterwards, so nothing is copied for
a principal. A value that is empty or contains `/`, `+` or `#` equals no level, so it matches no
rule.

A subscription is judged by its filter: a rule counts if it covers the filter, that is, if it
matches every name that the filter matches. So a subscription that is wider than what is allowed is
denied, one inside a denied filter is denied, and one that only overlaps a denied filter is allowed:
each message is judged again when it is delivered (`receive`).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from penstock.core.access.actions import ACTIONS, READ, SUBSCRIBE
from penstock.core.access.roles import ADMIN, BUILT_IN, OPERATOR, Role
from penstock.core.access.rules import PLACEHOLDERS, Rule
from penstock.core.naming.names import overlaps, topic_key
from penstock.core.naming.trie import FilterTrie

_BITS: Final = {action: 1 << at for at, action in enumerate(ACTIONS)}
_SOME_LEVEL: Final = "\0"  # stands for a wildcard of a subscription; no rule and no name has it


class Subject(Protocol):
    """Whose values the placeholders stand for."""

    @property
    def user(self) -> str: ...

    @property
    def client_id(self) -> str: ...

    @property
    def tenant(self) -> str: ...


class Decision(NamedTuple):
    """The answer, and the rule that decided: None if no rule says anything."""

    is_allowed: bool
    rule: Rule | None
    source: str  # what the rule belongs to: "role client", "user bob", "everybody"


class _Clause:
    """A rule as it is matched."""

    __slots__ = ("bits", "placeholders", "rule")

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.bits = sum(_BITS[action] for action in rule.actions)
        levels = rule.filter.split("/")
        self.placeholders = tuple(
            (at, level[1]) for at, level in enumerate(levels) if level in PLACEHOLDERS
        )

    def fits(self, subject: Subject, levels: list[str]) -> bool:
        """Whether the levels of a name are the subject's own where the rule says so."""
        for at, letter in self.placeholders:
            value = _value(subject, letter)
            if not value or value != levels[at] or value == _SOME_LEVEL:
                return False
        return True


class RuleSet:
    """Rules that belong together; never changed."""

    __slots__ = (
        "_names",
        "_own_first",
        "_topics",
        "clauses",
        "has_denials",
        "is_full",
        "mentions_client",
        "reads_names",
        "source",
    )

    def __init__(self, source: str, rules: Iterable[Rule], *, is_full: bool = False) -> None:
        self.source = source
        self.is_full = is_full
        self.clauses = [_Clause(rule) for rule in rules]
        self._names: FilterTrie[_Clause] = FilterTrie()
        self._own_first: FilterTrie[_Clause] = FilterTrie()  # those that begin with a placeholder
        self._topics: dict[str, list[_Clause]] = {}
        for clause in self.clauses:
            rule = clause.rule
            if rule.topic:
                self._topics.setdefault(topic_key(rule.topic), []).append(clause)
                continue
            filter = _with_wildcards(rule.filter)
            self._names.add(filter, clause)
            if clause.placeholders and clause.placeholders[0][0] == 0:
                self._own_first.add(filter, clause)
        self.has_denials = any(not one.rule.allows for one in self.clauses)
        self.mentions_client = any(
            letter == "c" for one in self.clauses for _, letter in one.placeholders
        )
        # Whether some filter over names is allowed to be read.
        self.reads_names = any(
            one.rule.allows and one.rule.filter and READ in one.rule.actions for one in self.clauses
        )

    @classmethod
    def of_role(cls, role: Role) -> RuleSet:
        return cls(f"role {role.name}", role.rules, is_full=role.is_full)

    @property
    def has_topics(self) -> bool:
        return bool(self._topics)

    def of_name(self, subject: Subject, name: str, topic: str) -> list[_Clause]:
        """The clauses about a name, or about the topic that holds it."""
        found = self._matching(subject, name)
        return found + self._topics.get(topic, []) if topic else found

    def of_filter(self, subject: Subject, filter: str, topic: str) -> list[_Clause]:
        """The clauses that cover a filter: they match every name that it matches."""
        levels = [_SOME_LEVEL if level == "+" else level for level in filter.split("/")]
        if levels[-1] == "#":
            # What matches both the parent and something below it ends with '#' and matches all.
            parent = levels[:-1] or [_SOME_LEVEL]
            above = set(self._matching(subject, "/".join(parent)))
            below = self._matching(subject, "/".join((*parent, _SOME_LEVEL)))
            found = [clause for clause in below if clause in above]
        else:
            found = self._matching(subject, "/".join(levels))
        return found + self._topics.get(topic, []) if topic else found

    def about(self, subject: Subject, action: str, name: str, topic: str) -> list[_Clause]:
        """The clauses that count for an action; `name` is a filter if the action is SUBSCRIBE."""
        if self.is_full:
            return self.clauses
        if action == SUBSCRIBE:
            return self.of_filter(subject, name, topic)
        return self.of_name(subject, name, topic)

    def of_topic(self, topic: str) -> Sequence[_Clause]:
        """The clauses about a topic as a whole."""
        return self._topics.get(topic, ())

    def _matching(self, subject: Subject, name: str) -> list[_Clause]:
        found = self._names.match(name)
        if name.startswith("$") and len(self._own_first):
            # A wildcard hides such names and a placeholder does not.
            found += self._own_first.match("-" + name[1:])
        if any(clause.placeholders for clause in found):
            levels = name.split("/")
            found = [clause for clause in found if clause.fits(subject, levels)]
        return found


class Grants:
    """Everything that the roles and rules of a principal say. Never changed."""

    __slots__ = (
        "_reads_names",
        "condensed",
        "has_topics",
        "is_admin",
        "is_operator",
        "is_unlimited",
        "mentions_client",
        "sets",
    )

    def __init__(self, sets: Sequence[RuleSet], condensed: Sequence[RuleSet] | None = None) -> None:
        self.sets = tuple(sets)
        self.condensed = self.sets if condensed is None else tuple(condensed)  # see `condense`
        sources = [one.source for one in sets if one.is_full]
        self.is_operator = f"role {OPERATOR}" in sources
        self.is_admin = self.is_operator or f"role {ADMIN}" in sources
        has_denials = any(one.has_denials for one in sets)
        self.is_unlimited = self.is_admin and not has_denials  # nothing has to be looked up
        self.mentions_client = any(one.mentions_client for one in sets)
        self.has_topics = any(one.has_topics for one in sets)
        self._reads_names = any(one.reads_names for one in sets)

    def decide(self, subject: Subject, action: str, name: str, topic: str) -> Decision:
        """May this be done? `name` is a filter if the action is SUBSCRIBE."""
        bit = _BITS[action]
        allowed: Decision | None = None
        for one in self.sets:
            for clause in one.about(subject, action, name, topic):
                if not clause.bits & bit:
                    continue
                if not clause.rule.allows:
                    return Decision(False, clause.rule, one.source)
                if allowed is None:
                    allowed = Decision(True, clause.rule, one.source)
        return allowed or Decision(False, None, "")

    def allows(self, subject: Subject, action: str, name: str, topic: str) -> bool:
        """As `decide`, sooner: which rule decides does not matter."""
        bit = _BITS[action]
        is_allowed = False
        for one in self.condensed:
            for clause in one.about(subject, action, name, topic):
                if clause.bits & bit:
                    if not clause.rule.allows:
                        return False
                    is_allowed = True
        return is_allowed

    def denies(self, subject: Subject, action: str, name: str, topic: str) -> bool:
        """Whether a rule denies it; not so if no rule says anything."""
        bit = _BITS[action]
        return any(
            clause.bits & bit and not clause.rule.allows
            for one in self.condensed
            for clause in one.about(subject, action, name, topic)
        )

    def allows_all(
        self, subject: Subject, action: str, filter: str, topics: Container[str]
    ) -> bool:
        """Whether rules over names allow an action with every name that a filter matches.

        These topics may hold such names: nothing may be denied that is about one of them either.
        """
        bit = _BITS[action]
        for clause in (one for own in self.sets for one in own.clauses if one.bits & bit):
            rule = clause.rule
            if not rule.allows and (
                topic_key(rule.topic) in topics
                if rule.topic
                else overlaps(_with_wildcards(rule.filter), filter)
            ):
                return False
        return any(
            clause.bits & bit and clause.rule.allows
            for one in self.sets
            for clause in (one.clauses if one.is_full else one.of_filter(subject, filter, ""))
        )

    def may_read_some(self, topic: str) -> bool:
        """Whether a topic may hold something that can be read; its records are judged one by one.

        A rule about the topic decides; else any filter over names that `read` is allowed for.
        """
        bit = _BITS[READ]
        about_topic = [
            clause.rule.allows
            for one in self.sets
            for clause in one.of_topic(topic)
            if clause.bits & bit
        ]
        if about_topic:
            return all(about_topic)
        return self._reads_names


def condense(sets: Sequence[RuleSet]) -> list[RuleSet]:
    """Sets that decide as these do, with one lookup: rules about the same thing are one rule."""
    full = [one for one in sets if one.is_full]
    others = [one for one in sets if not one.is_full]
    if len(others) < 2:
        return list(sets)
    actions: dict[tuple[bool, str, str], set[str]] = {}
    for one in others:
        for clause in one.clauses:
            rule = clause.rule
            actions.setdefault((rule.allows, rule.filter, rule.topic), set()).update(rule.actions)
    rules = [
        Rule(allows, tuple(action for action in ACTIONS if action in found), filter, topic)
        for (allows, filter, topic), found in actions.items()
    ]
    return [*full, RuleSet("", rules)]


def _with_wildcards(filter: str) -> str:
    return "/".join("+" if level in PLACEHOLDERS else level for level in filter.split("/"))


def _value(subject: Subject, letter: str) -> str:
    if letter == "u":
        return subject.user
    return subject.client_id if letter == "c" else subject.tenant


NOTHING: Final = Grants(())
FULL: Final = Grants((RuleSet.of_role(BUILT_IN[OPERATOR]),))
