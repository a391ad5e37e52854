"""The certificate of a client, as far as it says who the client is."""

from __future__ import annotations

from typing import NamedTuple


class Certificate(NamedTuple):
    """What its subject says; empty texts where it says nothing."""

    common_name: str
    organization: str
    organizational_unit: str
    fingerprint: str  # SHA-256 of the whole certificate, 64 hexadecimal digits
    number: str  # its issuer and serial number: what a revocation list names it by
