"""What principals are known by: who they are, and how they proved it.

Everybody who came in with the same credential has the same identity, so that a credential that is
no longer good ends what was begun with it, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.core.access import ADMIN, OPERATOR, Principal
from penstock.model.record import TenantId

LOCAL: Final = "local"  # an anonymous client of this machine
DIRECTORY: Final = "directory"  # whoever can open the data directory: an operator
PASSWORD: Final = "password"
KEY: Final = "key"
CERTIFICATE: Final = "certificate"  # of somebody who may not be a user
TOKEN: Final = "token"  # whose roles hold as they are


class Identity(NamedTuple):
    """Somebody, and how they came in."""

    tenant: TenantId
    user: str  # '' for anonymous clients
    proof: str = ""  # one of those above; '' for a user who proved it in any other way
    roles: tuple[str, ...] = ()  # of the key or the token; empty: those of the user
    credential: str = ""  # the hash of the password, or the digest of the key


class Admission(NamedTuple):
    """What a token allows its bearer."""

    principal: Principal
    client_id: str  # the only one to connect with; '' for any
    expires_us: int


def may_give(held: Sequence[str], role: str) -> bool:
    """Whether somebody with these roles may let a key have another one."""
    return OPERATOR in held or (ADMIN in held and role != OPERATOR)
