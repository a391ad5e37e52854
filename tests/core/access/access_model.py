"""What rules mean, written as plainly as possible: the model that the compiled rules must equal."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.access import PUBLISH, SUBSCRIBE, Principal, Rule
from penstock.core.naming.names import covers, matches, topic_key


def naive_decision(
    rules: Sequence[Rule], principal: Principal, action: str, name: str, topic: str
) -> bool:
    """Deny wins; what no rule allows is denied; nobody publishes in the broker's own name."""
    if action == PUBLISH and name.split("/")[0] in ("$SYS", "$audit"):
        return False
    speaking = [one for one in rules if speaks(one, principal, action, name, topic)]
    return bool(speaking) and all(rule.allows for rule in speaking)


def speaks(rule: Rule, principal: Principal, action: str, name: str, topic: str) -> bool:
    """Whether a rule says anything about this."""
    if action not in rule.actions:
        return False
    if rule.topic:
        return topic_key(rule.topic) == topic
    filter = filled_in(rule.filter, principal)
    if filter is None:
        return False
    return covers(filter, name) if action == SUBSCRIBE else matches(filter, name)


def filled_in(filter: str, principal: Principal) -> str | None:
    """The filter with the values of its placeholders; None if a value is no level of its own."""
    values = {"%u": principal.user, "%c": principal.client_id, "%t": principal.tenant}
    levels = []
    for level in filter.split("/"):
        value = values.get(level, level)
        if level in values and (not value or any(char in value for char in "/+#")):
            return None
        levels.append(value)
    return "/".join(levels)
