"""Who may come in, and what they may do: users, keys, roles and rules of all tenants."""

from penstock.broker.access.access import (
    COMMON_NAME,
    FINGERPRINT,
    KEY_PREFIX,
    KEY_USER,
    Access,
    Admission,
    key_id_of,
)
from penstock.broker.access.roles import DeclaredRole, DeclaredRule, Roles
from penstock.catalog.credentials import CredentialRow

__all__ = [
    "COMMON_NAME",
    "FINGERPRINT",
    "KEY_PREFIX",
    "KEY_USER",
    "Access",
    "Admission",
    "CredentialRow",
    "DeclaredRole",
    "DeclaredRule",
    "Roles",
    "key_id_of",
]
