"""Who a request comes from: a client certificate, Basic credentials, a key or a token, or nobody.

The users are those of MQTT. A password found right before costs microseconds; another one is
checked beside the event loop while its client waits.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final

from penstock.broker.access import Access
from penstock.core.access import Principal
from penstock.doors.http.wire.messages import HttpError, Request
from penstock.model.certificate import Certificate
from penstock.model.errors import NotAuthorized

CHALLENGE: Final = (
    ("WWW-Authenticate", 'Basic realm="penstock", charset="UTF-8", Bearer realm="penstock"'),
)

Credentials = tuple[str, bytes]


def recall(access: Access, request: Request) -> Principal | Credentials:
    """Who asks; or the credentials that have to be checked first. HttpError 401 if nobody may."""
    certificate = request.asker.certificate
    if certificate is not None:
        return _certified(access, certificate)
    given = request.headers.get(b"authorization")
    if given is None or not access.asks_login:
        # Without users there is nothing to check a name against: it counts for nothing.
        principal = access.anonymous(request.source)
        if principal is None:
            access.count_stranger()
            raise HttpError(401, "log in with a user name and password, or with a key", CHALLENGE)
        return principal
    scheme, _, rest = given.partition(b" ")
    if scheme.lower() == b"bearer":
        secret = rest.strip()
        if access.takes_token(secret):
            return _bearer(access, request, secret)
        principal = access.keyed(secret)
        if principal is None:
            raise HttpError(401, "unknown or revoked key", CHALLENGE)
        return principal
    try:
        user, password = parse_basic(scheme, rest)
    except HttpError:
        access.count_wrong()
        raise
    return access.recall(user, password) or (user, password)


def _certified(access: Access, certificate: Certificate) -> Principal:
    """As for MQTT: a certificate decides, whatever else is said."""
    principal = access.certified(certificate)
    if principal is None:
        access.count_wrong()
        raise HttpError(401, "the client certificate names no user", CHALLENGE)
    return principal


def _bearer(access: Access, request: Request, token: bytes) -> Principal:
    try:
        admission = access.tokened(token)
    except NotAuthorized as wrong:
        raise HttpError(401, str(wrong), CHALLENGE) from None
    request.expires_us = admission.expires_us
    return admission.principal


async def log_in(access: Access, credentials: Credentials, source: str) -> Principal:
    """HttpError 401 after a while if they do not fit; UnavailableError when too many wait."""
    try:
        return await access.log_in(*credentials, source)
    except NotAuthorized as wrong:
        raise HttpError(401, str(wrong), CHALLENGE) from None


def claimed_user(request: Request) -> str:
    """The user that a refused request said it comes from; '' where it said none."""
    scheme, _, rest = request.headers.get(b"authorization", b"").partition(b" ")
    try:
        return parse_basic(scheme, rest)[0]
    except HttpError:
        return ""


def parse_basic(scheme: bytes, rest: bytes) -> Credentials:
    if scheme.lower() != b"basic":
        raise HttpError(401, "the Authorization header is neither Basic nor Bearer", CHALLENGE)
    try:
        user, separator, password = base64.b64decode(rest.strip(), validate=True).partition(b":")
        name = user.decode()
    except (binascii.Error, UnicodeDecodeError):
        separator, name, password = b"", "", b""
    if not separator:
        raise HttpError(
            401, "the Authorization header does not contain user:password in base64", CHALLENGE
        )
    return name, password
