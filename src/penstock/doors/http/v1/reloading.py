"""`/v1/reload`: read certificates and the settings that may change while the broker runs again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.doors.http.routing.endpoints import Endpoints
from penstock.doors.http.routing.needs import Needs
from penstock.doors.http.routing.router import Route
from penstock.doors.http.v1.describing import Facts
from penstock.doors.http.v1.types import Reloaded
from penstock.doors.http.wire.messages import HttpError, Request, Response, json_response

RELOAD: Final = "/v1/reload"


def add_routes(door: Endpoints, reload: Callable[[], list[str]]) -> None:
    def handle(request: Request) -> Response:
        if not request.principal.grants.is_operator:
            raise HttpError(
                403, "only operators may reload: run `penstock reload` on the data directory"
            )
        return json_response(Reloaded(reload()))

    summary = (
        "read certificates, revocation lists, keys of tokens, declared roles and rules, quotas, "
        "and the log level again"
    )
    facts = Facts(summary, Reloaded)
    door.router.add(Route("POST", RELOAD, handle, facts=facts, needs=Needs.ADMIN))
