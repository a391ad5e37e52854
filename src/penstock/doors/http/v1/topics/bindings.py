"""`/v1/bindings`: which topic holds which names; the first filter that matches decides."""

from __future__ import annotations

from typing import Final

from penstock.broker.engine import Engine
from penstock.core.naming.names import check_filter
from penstock.doors.http.routing.endpoints import Endpoints
from penstock.doors.http.routing.errors import with_status
from penstock.doors.http.routing.needs import Needs, check_bind, check_manage, may_see
from penstock.doors.http.routing.router import Route
from penstock.doors.http.routing.schemas import FILTER
from penstock.doors.http.v1.describing import Facts, Field
from penstock.doors.http.v1.reading import check_query, read_body
from penstock.doors.http.v1.types import Binding, BindingList
from penstock.doors.http.wire.messages import HttpError, Request, Response, json_response
from penstock.model.errors import RefusedError

BINDINGS: Final = "/v1/bindings"


def add_routes(door: Endpoints) -> None:
    bindings = BindingsDoor(door.engine)
    for method, handler, facts in (
        (
            "GET",
            bindings.list,
            Facts("list the bindings in the order in which they apply", BindingList),
        ),
        (
            "POST",
            bindings.bind,
            Facts(
                "store matching names in a topic; 409 if the filter is bound to another topic",
                Binding,
                takes=Binding,
                errors=(409,),
            ),
        ),
        (
            "DELETE",
            bindings.unbind,
            Facts(
                "remove a binding",
                statuses=(204,),
                query=(Field("filter", "filter of the binding", FILTER, is_required=True),),
            ),
        ),
    ):
        door.router.add(Route(method, BINDINGS, handler, facts=facts, needs=Needs.JUDGED))


class BindingsDoor:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def list(self, request: Request) -> Response:
        topics = self._engine.topics
        found = topics.placement.bindings
        shown = [Binding(one.filter, topics.find(one.topic).declared) for one in found]
        shown = [one for one in shown if may_see(request.principal, one.topic)]
        return json_response(BindingList(shown))

    async def bind(self, request: Request) -> Response:
        """Binding the same again changes nothing."""
        asked = read_body(request, Binding)
        topics, filter = self._engine.topics, check_filter(asked.filter)
        check_bind(request.principal, filter, asked.topic, topics.placement.places(filter))
        try:
            await topics.bind(filter, asked.topic)
        except RefusedError as refused:
            raise with_status(refused, 409) from None
        return json_response(asked)

    async def unbind(self, request: Request) -> Response:
        query = check_query(request, "filter")
        if "filter" not in query:
            raise HttpError(400, "query field 'filter' is missing: give the filter of the binding")
        for one in self._engine.topics.placement.bindings:
            if one.filter == query["filter"]:
                check_manage(request.principal, one.topic)
        try:
            await self._engine.topics.unbind(query["filter"])
        except RefusedError as refused:
            raise with_status(refused, 404) from None
        return Response(204)
