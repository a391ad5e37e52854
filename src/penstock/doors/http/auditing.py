"""What HTTP writes to the audit topics: administrative acts, and refused logins."""

from __future__ import annotations

from typing import Final

from penstock.broker.audit import Audit
from penstock.doors.http.endpoints import TenantEndpoints
from penstock.doors.http.login import claimed_user
from penstock.doors.http.messages import Request

DIRECTORY: Final = "data directory"  # where a command over its socket comes from


async def note_act(audit: Audit, request: Request, status: int, reason: str) -> None:
    act = f"{request.method} {request.path}"
    principal = request.principal
    source = DIRECTORY if principal.owner is None else request.source
    await audit.note_act(principal.user, source, act, str(status), reason)


def note_login(tenants: TenantEndpoints, request: Request, reason: str) -> None:
    """In the tenant that the login names, as far as it says one."""
    who = claimed_user(request)
    tenants.audit_of(who).note_login(who, request.source, "http", reason)
