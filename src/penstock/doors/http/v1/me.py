"""`/v1/me`: who asks, and which role decides what a page offers."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from penstock.doors.http.endpoints import Endpoints
from penstock.doors.http.messages import Request, Response, json_response
from penstock.doors.http.needs import Needs
from penstock.doors.http.router import Route
from penstock.doors.http.v1.describing import Facts
from penstock.doors.http.v1.reading import check_query

ME: Final = "/v1/me"


class Me(Struct):
    """`user` is empty for an anonymous client."""

    user: str
    tenant: str
    is_admin: bool
    is_operator: bool


def add_routes(door: Endpoints) -> None:
    facts = Facts("say who asks: user, tenant and whether it is an administrator", Me)
    door.router.add(Route("GET", ME, show, facts=facts, needs=Needs.LOGIN))


def show(request: Request) -> Response:
    check_query(request)
    principal = request.principal
    grants = principal.grants
    return json_response(
        Me(principal.user, principal.tenant, grants.is_admin, principal.is_operator)
    )
