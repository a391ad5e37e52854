"""Who may come in, and what they may do: users, keys, roles and rules of all tenants."""

from penstock.broker.access.access import Access
from penstock.broker.access.answers import Question, answer
from penstock.broker.access.certificates import (
    BY_USER,
    COMMON_NAME,
    FINGERPRINT,
    ORGANIZATION,
    ORGANIZATIONAL_UNIT,
    CertificateRules,
)
from penstock.broker.access.exposure import check_exposure
from penstock.broker.access.identities import (
    BRIDGE,
    CERTIFICATE,
    KEY,
    PASSWORD,
    TOKEN,
    Admission,
    Identity,
)
from penstock.broker.access.keys import KEY_PREFIX, KEY_USER, key_id_of
from penstock.broker.access.roles import (
    DECLARED,
    DeclaredRole,
    DeclaredRule,
    KnownRole,
    KnownRule,
    Roles,
)
from penstock.catalog.access.access_keys import AccessKeyRow
from penstock.catalog.access.credentials import CredentialRow

__all__ = [
    "BRIDGE",
    "BY_USER",
    "CERTIFICATE",
    "COMMON_NAME",
    "DECLARED",
    "FINGERPRINT",
    "KEY",
    "KEY_PREFIX",
    "KEY_USER",
    "ORGANIZATION",
    "ORGANIZATIONAL_UNIT",
    "PASSWORD",
    "TOKEN",
    "Access",
    "AccessKeyRow",
    "Admission",
    "CertificateRules",
    "CredentialRow",
    "DeclaredRole",
    "DeclaredRule",
    "Identity",
    "KnownRole",
    "KnownRule",
    "Question",
    "Roles",
    "answer",
    "check_exposure",
    "key_id_of",
]
