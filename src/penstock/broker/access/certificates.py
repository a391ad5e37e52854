"""Client certificates as logins: which user of which tenant a certificate names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.model.certificate import Certificate
from penstock.model.record import DEFAULT_TENANT

COMMON_NAME: Final = "common_name"  # what names the user of a certificate
FINGERPRINT: Final = "fingerprint"
BY_USER: Final = "user"  # what names the tenant: the user's name, as in a login name
ORGANIZATION: Final = "organization"
ORGANIZATIONAL_UNIT: Final = "organizational_unit"


@dataclass(frozen=True, slots=True)
class CertificateRules:
    """What the settings say about certificates."""

    user: str = COMMON_NAME
    tenant: str = BY_USER
    unknown_users: bool = False  # also names that are no users', although users exist

    def user_of(self, certificate: Certificate) -> str:
        by_fingerprint = self.user == FINGERPRINT
        return certificate.fingerprint if by_fingerprint else certificate.common_name

    def tenant_of(self, certificate: Certificate) -> str | None:
        """The tenant that the certificate names, '' if it names none; None: its user does."""
        if self.tenant == BY_USER:
            return None
        by_unit = self.tenant == ORGANIZATIONAL_UNIT
        return certificate.organizational_unit if by_unit else certificate.organization

    def login_of(self, certificate: Certificate) -> str:
        """The login name that the certificate stands for: a user, or `tenant/user`."""
        user, tenant = self.user_of(certificate), self.tenant_of(certificate)
        return user if tenant is None else f"{tenant or DEFAULT_TENANT}/{user}"
