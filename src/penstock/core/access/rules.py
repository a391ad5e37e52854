"""One rule of access, as people write it: `allow publish sensors/%u/#`.

A rule is `allow` or `deny`, actions with commas between them, and what it is about: a filter over
names, or `topic:NAME` for a topic and all names in it. `%u`, `%c` and `%t` stand for the user, the
client id and the tenant of whoever is asked about; each is a whole level. `str(rule)` is the
text that `parse_rule` reads again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.core.access.actions import ACTIONS
from penstock.core.naming.names import check_filter, check_topic, quoted
from penstock.model.errors import RefusedError

ALLOW: Final = "allow"
DENY: Final = "deny"
TOPIC_PREFIX: Final = "topic:"
PLACEHOLDERS: Final = ("%u", "%c", "%t")
RULE_CHARS_MAX: Final = 4_096

_EXAMPLE: Final = "'allow publish sensors/%u/#'"


@dataclass(frozen=True, slots=True)
class Rule:
    """Either `filter` or `topic` is set; the other is ''."""

    allows: bool
    actions: tuple[str, ...]  # in the order of ACTIONS
    filter: str
    topic: str

    def __str__(self) -> str:
        verb = ALLOW if self.allows else DENY
        target = self.filter or TOPIC_PREFIX + self.topic
        return f"{verb} {','.join(self.actions)} {target}"


def parse_rule(text: str) -> Rule:
    """The rule that a text says; RefusedError names what is wrong with it."""
    if not isinstance(text, str) or len(text) > RULE_CHARS_MAX:
        raise RefusedError(
            f"rule {quoted(text)} is not a text of at most {RULE_CHARS_MAX:,} characters: "
            f"write it as in {_EXAMPLE}"
        )
    parts = text.strip().split(None, 2)
    if len(parts) < 3:
        raise RefusedError(
            f"rule {quoted(text)} is incomplete: write allow or deny, the actions, and a filter or "
            f"topic:NAME, as in {_EXAMPLE}"
        )
    verb, actions, target = parts
    if verb not in (ALLOW, DENY):
        raise RefusedError(
            f"rule {quoted(text)} begins with {quoted(verb)}: begin with 'allow' or 'deny'"
        )
    asked = _actions(text, actions)
    if target.startswith(TOPIC_PREFIX):
        return Rule(verb == ALLOW, asked, "", check_topic(target[len(TOPIC_PREFIX) :]))
    _check_placeholders(text, check_filter(target))
    return Rule(verb == ALLOW, asked, target, "")


def _actions(text: str, words: str) -> tuple[str, ...]:
    asked = words.split(",")
    for one in asked:
        if one not in ACTIONS:
            raise RefusedError(
                f"rule {quoted(text)} has the action {quoted(one)}, which does not exist: use "
                f"{', '.join(ACTIONS)}, with commas and no spaces between them"
            )
    return tuple(action for action in ACTIONS if action in asked)


def _check_placeholders(text: str, filter: str) -> None:
    for level in filter.split("/"):
        for placeholder in PLACEHOLDERS:
            if placeholder in level and level != placeholder:
                raise RefusedError(
                    f"rule {quoted(text)} has {placeholder!r} inside the level {quoted(level)}: a "
                    f"placeholder must be a whole level, as in 'a/{placeholder}/b'"
                )
