"""The principals that are known, one object for each identity.

Tokens and certificates name whoever their issuer likes, so that there is no end of identities. Of
those, the ones that nobody uses any more are forgotten whenever there are too many; who comes again
is another principal, with the same rights.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

from penstock.broker.access.identities import CERTIFICATE, TOKEN, Identity
from penstock.core.access import Principal
from penstock.model.record import TenantId

PASSING_MAX: Final = 10_000  # of tokens and certificates, about 1 KB each; those in use come on top

InUse = Callable[[], Iterable[Principal]]


class KnownPrincipals:
    """`in_use` is asked which principals have to stay: doors say those of their clients."""

    def __init__(self, passing_max: int = PASSING_MAX) -> None:
        self.in_use: list[InUse] = []
        self._passing_max = passing_max
        self._room = passing_max  # how many passing ones there may be before the next look
        self._passing: set[Identity] = set()
        self._principals: dict[Identity, Principal] = {}
        self._identities: dict[Principal, Identity] = {}

    def __len__(self) -> int:
        return len(self._principals)

    def __iter__(self) -> Iterator[Identity]:
        return iter(self._principals)

    def __getitem__(self, identity: Identity) -> Principal:
        return self._principals[identity]

    def get(self, identity: Identity) -> Principal | None:
        return self._principals.get(identity)

    def identity_of(self, principal: Principal) -> Identity | None:
        """How a principal came in; None if it is not known, or no longer."""
        return self._identities.get(principal.base)

    def of_user(self, tenant: TenantId, user: str) -> list[Identity]:
        return [one for one in self._principals if (one.tenant, one.user) == (tenant, user)]

    def of_users(self, tenant: TenantId, users: Collection[str]) -> list[Identity]:
        return [one for one in self._principals if one.tenant == tenant and one.user in users]

    def add(self, identity: Identity, principal: Principal) -> None:
        if identity.proof in (TOKEN, CERTIFICATE):
            if len(self._passing) >= self._room:
                self._forget_unused()
            self._passing.add(identity)
        self._principals[identity] = principal
        self._identities[principal] = identity

    def revoke(self, identity: Identity, why: str) -> Principal:
        """Whoever came in like this has to go; who comes like this later is another principal."""
        principal = self._remove(identity)
        principal.revoke(why)
        return principal

    def _remove(self, identity: Identity) -> Principal:
        principal = self._principals.pop(identity)
        del self._identities[principal]
        self._passing.discard(identity)
        return principal

    def _forget_unused(self) -> None:
        in_use = {principal.base for users in self.in_use for principal in users()}
        for identity in [one for one in self._passing if self._principals[one] not in in_use]:
            self._remove(identity)
        # Looking at all of them costs as much as adding them did.
        self._room = max(self._passing_max, 2 * len(self._passing))
