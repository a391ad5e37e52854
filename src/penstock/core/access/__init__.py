"""Who somebody is, and what that allows: actions, rules, roles, principals and the one decision.

`authorise` decides, and only it: a rule that denies wins, and what no rule allows is denied. It
looks at four things: who (a Principal), the action, a name (or the filter of a subscription), and
the topic that holds the name. Whoever remembers an answer remembers it by principal and name, and
forgets it when the rules change.
"""

from penstock.core.access.actions import (
    ACTIONS,
    MANAGE,
    PUBLISH,
    READ,
    RECEIVE,
    SUBSCRIBE,
    check_action,
)
from penstock.core.access.gate import Gate
from penstock.core.access.grants import FULL, NOTHING, Decision, Grants, RuleSet, condense
from penstock.core.access.principals import (
    BROKER,
    NOBODY,
    Authorise,
    Principal,
    authorise,
    check_new_user,
    check_user,
    decide,
    denial,
    may_read_some,
    no_such_user,
)
from penstock.core.access.roles import (
    ADMIN,
    BUILT_IN,
    CLIENT,
    OPERATOR,
    READER,
    Role,
    check_role_name,
    is_role_name,
)
from penstock.core.access.rules import Rule, parse_rule

__all__ = [
    "ACTIONS",
    "ADMIN",
    "BROKER",
    "BUILT_IN",
    "CLIENT",
    "FULL",
    "MANAGE",
    "NOBODY",
    "NOTHING",
    "OPERATOR",
    "PUBLISH",
    "READ",
    "READER",
    "RECEIVE",
    "SUBSCRIBE",
    "Authorise",
    "Decision",
    "Gate",
    "Grants",
    "Principal",
    "Role",
    "Rule",
    "RuleSet",
    "authorise",
    "check_action",
    "check_new_user",
    "check_role_name",
    "check_user",
    "condense",
    "decide",
    "denial",
    "is_role_name",
    "may_read_some",
    "no_such_user",
    "parse_rule",
]
