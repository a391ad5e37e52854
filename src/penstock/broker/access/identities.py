"""What principals are known by: who they are, and how they proved it.

Everybody who came in with the same credential has the same identity, so that a credential that is
no longer good ends what was begun with it, and nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.catalog.access.credentials import REMOVED_PROOF, CredentialRow
from penstock.core.access import ADMIN, CLIENT, OPERATOR, READER, Principal
from penstock.core.naming.names import quoted
from penstock.model.errors import RefusedError
from penstock.model.record import TenantId
from penstock.model.will import Login

LOCAL: Final = "local"  # an anonymous client of this machine
DIRECTORY: Final = "directory"  # whoever can open the data directory: an operator
PASSWORD: Final = "password"
KEY: Final = "key"
CERTIFICATE: Final = "certificate"  # of somebody who may not be a user
TOKEN: Final = "token"  # whose roles hold as they are
BRIDGE: Final = "bridge"  # one of this broker's bridges, whose role is in the settings
REMOVED: Final = REMOVED_PROOF  # the user is gone; one of the same name is somebody else


class Identity(NamedTuple):
    """Somebody, and how they came in."""

    tenant: TenantId
    user: str  # '' for anonymous clients
    proof: str = ""  # one of those above; '' for a user who proved it in any other way
    roles: tuple[str, ...] = ()  # of the key or the token; empty: those of the user
    # The hash of the password, the digest of the key, or the number of the certificate.
    credential: str = ""

    @property
    def login(self) -> Login:
        """What is stored beside a will; the hash of a password is not."""
        secret = self.credential
        return Login(self.proof, self.roles, digest(secret) if self.proof == PASSWORD else secret)


def by_password(row: CredentialRow) -> Identity:
    """Who knows the password of this user."""
    return Identity(row.tenant, row.user, PASSWORD, credential=row.password_hash)


def digest(password_hash: str) -> str:
    """Tells the hashes of passwords apart, and says nothing about them."""
    return hashlib.sha256(password_hash.encode()).hexdigest()


def removal(user: str) -> str:
    """Why somebody has to go whose user was removed."""
    return f"user {quoted(user)} was removed"


class Admission(NamedTuple):
    """What a token allows its bearer."""

    principal: Principal
    client_id: str  # the only one to connect with; '' for any
    expires_us: int


def may_give(held: Sequence[str], role: str) -> bool:
    """Whether somebody with these roles may let a key have another one, which allows less."""
    if role == READER and CLIENT in held:
        return True
    return OPERATOR in held or (ADMIN in held and role != OPERATOR)


def check_key_roles(user: str, held: Sequence[str], roles: Sequence[str]) -> None:
    """RefusedError if a key of a user with the roles `held` may not have one of these."""
    for role in roles:
        if role not in held and not may_give(held, role):
            raise RefusedError(
                f"user {quoted(user)} does not have the role {quoted(role)}: a key has some of the "
                f"roles of its user, here {', '.join(held) or 'none'}; a client's key may also be "
                "a reader"
            )


def held_roles(
    identity: Identity, given: tuple[str, ...] | None, *, is_trusting: bool
) -> tuple[str, ...]:
    """The roles of somebody; `given` are those of the user, None if there is no such user.

    While the broker is trusting, anonymous clients of this machine are admins.
    """
    _, user, proof, roles, _ = identity
    if not user:
        if proof == DIRECTORY:
            return (OPERATOR,)
        return (ADMIN,) if proof == LOCAL and is_trusting else (CLIENT,)
    if proof in (TOKEN, BRIDGE):
        return roles
    if given is None:
        return (CLIENT,)
    if proof == KEY and roles:
        return tuple([one for one in roles if one in given or may_give(given, one)])
    return given
