"""Which certificates a revocation list names (RFC 5280 §5.1): their issuers and serial numbers.

OpenSSL checks a list at each handshake and tells nobody what is in it. This reads it, so that what
was begun with a certificate can end when the certificate is revoked. Only files are read here that
OpenSSL has accepted.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator
from typing import Final

_SEQUENCE: Final = 0x30
_INTEGER: Final = 0x02
_TIMES: Final = (0x17, 0x18)
_VERSION: Final = 0xA0  # [0] of a certificate
_PEM: Final = re.compile(rb"-----BEGIN X509 CRL-----(.*?)-----END X509 CRL-----", re.DOTALL)


def number_of(certificate: bytes) -> str:
    """The number of a certificate in DER."""
    fields = _fields(_first(_first(certificate)))
    tag, serial = next(fields)
    if tag == _VERSION:
        _, serial = next(fields)
    next(fields)  # the algorithm
    _, issuer = next(fields)
    return _number(issuer, serial)


def revoked_numbers(content: bytes) -> frozenset[str]:
    """The numbers of all certificates in the lists of a PEM file; ValueError if one is broken."""
    found: set[str] = set()
    for coded in _PEM.findall(content):
        try:
            found.update(_revoked(base64.b64decode(coded)))
        except (binascii.Error, IndexError, StopIteration) as wrong:
            raise ValueError("a revocation list is cut short") from wrong
    return frozenset(found)


def _revoked(revocation_list: bytes) -> Iterator[str]:
    fields = list(_fields(_first(_first(revocation_list))))
    if fields[0][0] == _INTEGER:  # the version
        del fields[0]
    issuer = fields[1][1]
    rest = [one for one in fields[2:] if one[0] not in _TIMES]
    if rest and rest[0][0] == _SEQUENCE:
        for _, entry in _fields(rest[0][1]):
            _, serial = next(_fields(entry))
            yield _number(issuer, serial)


def _number(issuer: bytes, serial: bytes) -> str:
    return f"{hashlib.sha256(issuer).hexdigest()}:{serial.hex()}"


def _first(data: bytes) -> bytes:
    """What is in the first element."""
    return next(_fields(data))[1]


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and content of the elements one after another (DER: X.690 §8.1, §10.1)."""
    at = 0
    while at < len(data):
        tag, size = data[at], data[at + 1]
        at += 2
        if size & 0x80:
            size_bytes = size & 0x7F
            size = int.from_bytes(data[at : at + size_bytes])
            at += size_bytes
        yield tag, data[at : at + size]
        at += size
