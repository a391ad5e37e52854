"""Who may come in, and what they may do: users, keys, roles and rules of all tenants."""

from penstock.broker.access.access import (
    KEY_PREFIX,
    KEY_USER,
    Access,
    Admission,
    is_loopback,
    key_id_of,
)
from penstock.broker.access.roles import DeclaredRole, DeclaredRule, Roles

__all__ = [
    "KEY_PREFIX",
    "KEY_USER",
    "Access",
    "Admission",
    "DeclaredRole",
    "DeclaredRule",
    "Roles",
    "is_loopback",
    "key_id_of",
]
