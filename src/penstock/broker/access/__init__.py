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
from penstock.catalog.credentials import CredentialRow

__all__ = [
    "KEY_PREFIX",
    "KEY_USER",
    "Access",
    "Admission",
    "CredentialRow",
    "DeclaredRole",
    "DeclaredRule",
    "Roles",
    "is_loopback",
    "key_id_of",
]
