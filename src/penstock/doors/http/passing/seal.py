"""What one node tells another about a request that it passes on, signed with the nodes' secret.

The seal says who asks and how they proved it, and contains every header that counts and the digest
of the body. The signature also covers the method and the path. It holds for one incarnation of one
node and for AGE_S_MAX, so that a seal that somebody overheard is soon worthless.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Final

import msgspec

from penstock.broker.queue.readers import Elsewhere
from penstock.doors.http.wire.messages import HttpError, Request

SEAL: Final = b"penstock-passed"
SIGNATURE: Final = b"penstock-passed-signature"
ELSEWHERE: Final = "Penstock-Elsewhere"  # in an answer: nothing was done, ask another node
AGE_S_MAX: Final = 60.0
RETRY: Final = (("Retry-After", "1"),)
# Those that handlers read. Others stay at the node that the client sent them to.
HEADERS: Final = (
    b"accept",
    b"content-type",
    b"idempotency-key",
    b"idempotency-part",
    b"if-match",
    b"if-none-match",
    b"penstock-tenant",
    b"traceparent",
    b"tracestate",
)


class Seal(msgspec.Struct, array_like=True, frozen=True):
    """Of one request; times are in µs since 1970."""

    sender: int  # the incarnation of the node that passes it on
    target: int  # and of the one that is to answer
    at_us: int
    tenant: str
    user: str
    proof: str  # how the user came in, as it is stored with wills
    roles: tuple[str, ...]
    credential: str
    expires_us: int  # of a token
    source: str  # the address of the client
    about: str  # the tenant that the request is about; operators may ask for any
    topics: int  # the newest topic of it that the sender knows
    headers: dict[str, str]
    body: str  # its digest


def body_digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def passed_headers(request: Request) -> dict[str, str]:
    return {name.decode(): request.header(name) for name in HEADERS if name in request.headers}


def sign(secret: bytes, method: str, target: str, seal: Seal) -> tuple[bytes, bytes]:
    """The values of the two headers."""
    shown = base64.urlsafe_b64encode(msgspec.json.encode(seal))
    return shown, _signature(secret, method, target, shown)


def _signature(secret: bytes, method: str, target: str, shown: bytes) -> bytes:
    signed = b"\n".join((b"penstock 1", method.encode(), target.encode(), shown))
    return hmac.new(secret, signed, hashlib.sha256).hexdigest().encode()


def read_seal(secret: bytes, request: Request, inc: int, now_us: int) -> Seal:
    """The seal of a request that another node passed on to this one.

    HttpError 403 if none did; 503 if this node cannot read it. Elsewhere if it was meant for the
    node that was at this address before.
    """
    shown = request.headers[SEAL]
    given = request.headers.get(SIGNATURE, b"")
    if not hmac.compare_digest(
        given, _signature(secret, request.method, target_of(request), shown)
    ):
        raise HttpError(
            403,
            "this request says that another node passed it on, but its signature is wrong: only "
            "nodes of the same catalog may send Penstock-Passed",
        )
    try:
        seal = msgspec.json.decode(base64.urlsafe_b64decode(shown), type=Seal)
    except (msgspec.DecodeError, binascii.Error, UnicodeDecodeError):
        raise HttpError(
            503,
            "another version of Penstock passed this request on: run the same one on all nodes",
            RETRY,
        ) from None
    if seal.target != inc:
        raise Elsewhere("this request was passed on to another node")
    age_s = (now_us - seal.at_us) / 1_000_000
    if abs(age_s) > AGE_S_MAX:
        raise HttpError(
            503,
            f"this request was passed on {age_s:.0f} s ago, and {AGE_S_MAX:g} s are allowed: the "
            "clocks of the nodes have to agree",
            RETRY,
        )
    return seal


def target_of(request: Request) -> str:
    """Path and query, as they were sent."""
    return f"{request.path}?{request.query_text}" if request.query_text else request.path
