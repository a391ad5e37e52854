"""Roles: named sets of rules, and those that every broker has.

`admin` and `operator` may do everything, also with names that begin with `$`, which no filter with
a leading wildcard matches: an admin within its tenant, an operator in all tenants.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.core.access.rules import Rule, parse_rule
from penstock.core.naming.names import quoted
from penstock.model.errors import InvalidName

OPERATOR: Final = "operator"
ADMIN: Final = "admin"
CLIENT: Final = "client"
READER: Final = "reader"

ROLE_CHARS_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Role:
    """A named set of rules. `is_full`: its rules also hold for names that begin with '$'."""

    name: str
    rules: tuple[Rule, ...]
    is_full: bool = False


def _built_in(name: str, *rules: str, is_full: bool = False) -> Role:
    return Role(name, tuple(parse_rule(rule) for rule in rules), is_full)


_EVERYTHING: Final = "allow publish,subscribe,receive,read,manage #"
_OWN_NAMES: Final = "allow subscribe,receive,read $SYS/#"

BUILT_IN: Final = {
    role.name: role
    for role in (
        _built_in(OPERATOR, _EVERYTHING, is_full=True),
        _built_in(ADMIN, _EVERYTHING, is_full=True),
        _built_in(CLIENT, "allow publish,subscribe,receive,read #", _OWN_NAMES),
        _built_in(READER, "allow subscribe,receive,read #", _OWN_NAMES),
    )
}


def check_role_name(name: str) -> str:
    """A text that may name a role, case-sensitive; else InvalidName."""
    if not is_role_name(name):
        raise InvalidName(
            f"role name {quoted(name)} is invalid: use 1 to {ROLE_CHARS_MAX} ASCII letters, "
            "digits, '.', '_' and '-'"
        )
    return name


def is_role_name(name: object) -> bool:
    is_text = isinstance(name, str) and 1 <= len(name) <= ROLE_CHARS_MAX and name.isascii()
    return is_text and all(char.isalnum() or char in "._-" for char in str(name))
