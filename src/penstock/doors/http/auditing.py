"""What HTTP writes to the audit topics: administrative acts, and refused logins."""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote_plus

import msgspec

from penstock.broker.access.audit import Audit, Entry
from penstock.broker.limited_log import LimitedLog
from penstock.doors.http.login import claimed_user
from penstock.doors.http.routing.endpoints import TenantEndpoints
from penstock.doors.http.wire.messages import HttpError, Request
from penstock.model.limits import KIB

DIRECTORY: Final = "data directory"  # where a command over its socket comes from
BODY_BYTES_MAX: Final = 64 * KIB  # of a larger one only the size is recorded
SECRETS: Final = ("password",)  # fields of bodies
HIDDEN: Final = "…"


async def note_act(audit: Audit, request: Request, status: int, reason: str, act: str = "") -> None:
    """What a request did, or tried to; `act` says it better than its method and path."""
    principal = request.principal
    source = DIRECTORY if principal.owner is None else request.source
    who = principal.user
    if who and principal.tenant != audit.tenant:  # an operator; a user there may have this name
        who = f"{principal.tenant}/{who}"
    act = act or f"{request.method} {request.path}"
    entry = Entry(who, source, act, str(status), reason, details=asked(request))
    # Whoever is let in may fail as often as they like.
    is_bounded = status >= 400 and not principal.grants.is_admin
    await audit.note_act(entry, is_bounded=is_bounded)


def asked(request: Request) -> str:
    """The query and the body of a request, without secrets and fields that its route ignores."""
    taken = None if request.route.facts is None else request.route.facts.takes
    taken = getattr(taken, "__origin__", taken)  # of Annotated
    if not request.body or not msgspec.inspect.is_struct_type(taken):
        return _shown_query(request.query_text)
    if len(request.body) > BODY_BYTES_MAX:
        return f"a body of {len(request.body):,} bytes"
    known = [field.encode_name for field in msgspec.structs.fields(taken)]
    try:
        body = msgspec.json.decode(request.body)
        given = body if isinstance(body, dict) else {}
        shown = {one: HIDDEN if one in SECRETS else given[one] for one in known if one in given}
        return msgspec.json.encode(shown).decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _shown_query(request.query_text)


def _shown_query(text: str) -> str:
    """As it was sent, without values that belong into a body."""
    pairs = [pair.partition("=") for pair in text.split("&")]
    shown = [
        f"{key}={HIDDEN}" if unquote_plus(key).lower() in SECRETS else key + equals + value
        for key, equals, value in pairs
    ]
    return "&".join(shown)


def note_login(tenants: TenantEndpoints, request: Request, reason: str) -> None:
    """In the tenant that the login names, as far as it says one. A certificate decides."""
    certificate = request.asker.certificate
    if certificate is None:
        who = claimed_user(request)
    else:
        who = tenants.worlds[0].engine.access.certificates.login_of(certificate)
    tenants.audit_of(who).note_login(who, request.source, "http", reason)


def note_certificate(audit: Audit, peer: str, problem: str) -> None:
    """Its name is not proven, so that only its address is recorded."""
    audit.note_login("", peer, "http", problem)


def note_refusal(
    tenants: TenantEndpoints, log: LimitedLog, request: Request, wrong: HttpError
) -> None:
    """Who may not ask is counted and logged; any other refusal is the client's to know."""
    if wrong.status not in (401, 403, 421):
        return
    values = {"peer": request.source, "path": request.path, "reason": str(wrong)}
    text = "request for %(path)s from %(peer)s refused: %(reason)s"
    if wrong.status != 401:
        tenants.worlds[0].engine.metrics.refused["page"] += 1
        log.warning("request refused", text, values)
    elif b"authorization" in request.headers or request.asker.certificate is not None:
        log.warning("login refused", text, values)
        note_login(tenants, request, str(wrong))
    else:  # browsers and many tools ask without a login first
        log.info("login needed", text, values)
