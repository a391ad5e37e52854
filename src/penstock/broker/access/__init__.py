"""Who may come in, and what they may do: users, keys, roles and rules of all tenants."""

from penstock.broker.access.access import COMMON_NAME, FINGERPRINT, Access
from penstock.broker.access.answers import Question, answer
from penstock.broker.access.identities import CERTIFICATE, KEY, PASSWORD, TOKEN, Admission
from penstock.broker.access.keys import KEY_PREFIX, KEY_USER, key_id_of
from penstock.broker.access.roles import (
    DECLARED,
    DeclaredRole,
    DeclaredRule,
    KnownRole,
    KnownRule,
    Roles,
)
from penstock.catalog.credentials import CredentialRow

__all__ = [
    "CERTIFICATE",
    "COMMON_NAME",
    "DECLARED",
    "FINGERPRINT",
    "KEY",
    "KEY_PREFIX",
    "KEY_USER",
    "PASSWORD",
    "TOKEN",
    "Access",
    "Admission",
    "CredentialRow",
    "DeclaredRole",
    "DeclaredRule",
    "KnownRole",
    "KnownRule",
    "Question",
    "Roles",
    "answer",
    "key_id_of",
]
