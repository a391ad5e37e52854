"""`/v1/tenants`: tenants are added, shown and removed while the broker runs; for operators only."""

from __future__ import annotations

from typing import Final

from penstock.broker.tenants import Tenants
from penstock.core.naming.names import quoted
from penstock.doors.http.routing.endpoints import Endpoints
from penstock.doors.http.routing.needs import Needs
from penstock.doors.http.routing.router import Route
from penstock.doors.http.v1.describing import Facts, Field
from penstock.doors.http.v1.reading import check_query, read_body
from penstock.doors.http.v1.types import TenantIn, TenantList, TenantOut
from penstock.doors.http.wire.messages import HttpError, Request, Response, json_response
from penstock.model.errors import InvalidName, RefusedError
from penstock.model.tenants import TenantInfo

TENANTS: Final = "/v1/tenants"
TENANT: Final = TENANTS + "/{tenant}"


def add_routes(door: Endpoints, tenants: Tenants) -> None:
    here = TenantsDoor(tenants)
    purge = Field("purge", "`true` deletes the tenant with everything in it")
    for method, path, handler, facts in (
        ("GET", TENANTS, here.show_all, Facts("list the tenants", TenantList)),
        (
            "PUT",
            TENANT,
            here.add,
            Facts(
                "add a tenant; 409 if it exists",
                TenantOut,
                takes=TenantIn,
                statuses=(201,),
                errors=(409,),
            ),
        ),
        ("GET", TENANT, here.show, Facts("show a tenant", TenantOut)),
        (
            "DELETE",
            TENANT,
            here.remove,
            Facts(
                "remove a tenant; 409 while it has topics, sessions or users",
                statuses=(204,),
                errors=(409,),
                query=(purge,),
            ),
        ),
    ):
        door.router.add(Route(method, path, handler, facts=facts, needs=Needs.OPERATOR))


class TenantsDoor:
    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants

    def show_all(self, request: Request) -> Response:
        return json_response(TenantList([_out(row) for row in self._tenants.all()]))

    def show(self, request: Request) -> Response:
        return json_response(_out(self._find(request)))

    async def add(self, request: Request) -> Response:
        asked = read_body(request, TenantIn)
        names = (asked.first_name, asked.last_name, asked.email)
        try:
            row = await self._tenants.add(request.params["tenant"], *names)
        except InvalidName:
            raise
        except RefusedError as taken:
            raise HttpError(409, str(taken), error=RefusedError.__name__) from None
        return json_response(_out(row), 201)

    async def remove(self, request: Request) -> Response:
        row = self._find(request)
        purge = check_query(request, "purge").get("purge", "false")
        if purge not in ("true", "false"):
            raise HttpError(400, f"purge {purge[:200]!r} is neither 'true' nor 'false'")
        last = (
            f"tenant {quoted(row.tenant)} has the last users and cannot be removed while the "
            "broker runs: add a user to another tenant first, or stop the broker and remove the "
            "tenant from the directory"
        )
        try:
            await self._tenants.remove(row.tenant, purge=purge == "true", last_stays=last)
        except RefusedError as refused:
            raise HttpError(409, str(refused), error=RefusedError.__name__) from None
        return Response(204)

    def _find(self, request: Request) -> TenantInfo:
        try:
            return self._tenants.find(request.params["tenant"])
        except RefusedError as missing:
            raise HttpError(404, str(missing), error=RefusedError.__name__) from None


def _out(row: TenantInfo) -> TenantOut:
    return TenantOut(row.tenant, row.first_name, row.last_name, row.email, row.created_at)
