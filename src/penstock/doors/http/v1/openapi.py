"""`/v1/openapi.json`: what this door offers, made from its routes and their types."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final

import msgspec

from penstock.doors.http.routing.endpoints import Endpoints
from penstock.doors.http.routing.needs import Needs
from penstock.doors.http.routing.router import Route
from penstock.doors.http.routing.schemas import PATH as PATH_SCHEMAS
from penstock.doors.http.routing.schemas import SHOWN_AS, TEXT
from penstock.doors.http.v1.describing import Facts, Field
from penstock.doors.http.v1.types import Problem
from penstock.doors.http.wire.messages import (
    JSON,
    PROBLEM,
    TITLES,
    Request,
    Response,
    json_response,
)
from penstock.model.version import VERSION

PATH: Final = "/v1/openapi.json"
ERRORS: Final = (400, 401, 403, 404, 408, 413, 414, 417, 421, 429, 431, 503, 507)  # of every route
_PARAMETER: Final = re.compile(r"\{(\w+)\}")


def add_routes(door: Endpoints) -> None:
    """The document shows all routes that the door has when it is first asked for."""

    @cache
    def made() -> Response:
        return json_response(document([route for route in door.router if route.facts]))

    def show(request: Request) -> Response:
        return made()

    facts = Facts("this document", dict[str, Any])
    door.router.add(Route("GET", PATH, show, facts=facts, needs=Needs.LOGIN))


def document(routes: list[Route]) -> dict[str, Any]:
    types: list[Any] = [Problem]
    for route in routes:
        facts = route.facts
        assert facts is not None
        found = (facts.gives, facts.takes, facts.fails_as)
        types += [one for one in found if one is not None]
    schemas, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    by_type = {str(kind): schema for kind, schema in zip(types, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.pattern, {})[route.method.lower()] = _operation(route, by_type)
    shown: dict[str, Any] = _shown({"paths": paths, "schemas": components})
    return {
        "openapi": "3.1.0",
        "info": {"title": "Penstock", "version": VERSION},
        "paths": shown["paths"],
        "components": {
            "schemas": shown["schemas"],
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "key": {"type": "http", "scheme": "bearer"},
            },
        },
        "security": [{}, {"basic": []}, {"key": []}],
    }


def _shown(value: Any) -> Any:
    """Types that say what they are shown as are shown as that."""
    if isinstance(value, list):
        return [_shown(one) for one in value]
    if not isinstance(value, dict):
        return value
    if SHOWN_AS in value:
        kept = {key: value[key] for key in ("default", "description") if key in value}
        return value[SHOWN_AS] | kept
    return {key: _shown(one) for key, one in value.items()}


def _operation(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    facts = route.facts
    assert facts is not None
    operation: dict[str, Any] = {"summary": facts.summary}
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": PATH_SCHEMAS.get(name, TEXT)}
        for name in _PARAMETER.findall(route.pattern)
    ]
    for place, fields in (("query", facts.query), ("header", facts.headers)):
        parameters += [_parameter(place, one) for one in fields]
    if parameters:
        operation["parameters"] = parameters
    if facts.takes is not None or facts.also_takes:
        content: dict[str, Any] = {}
        if facts.takes is not None:
            content[JSON] = {"schema": schemas[str(facts.takes)]}
        content |= {kind: {"schema": TEXT} for kind in facts.also_takes}
        operation["requestBody"] = {"content": content, "required": _needs_body(facts)}
    responses: dict[str, Any] = {}
    for status in facts.statuses:
        responses[str(status)] = _response(facts, status, schemas)
    wrong: dict[str, Any] = {"content": {PROBLEM: {"schema": schemas[str(Problem)]}}}
    if facts.fails_as is not None:
        wrong["content"][JSON] = {"schema": schemas[str(facts.fails_as)]}
    for status in sorted({*ERRORS, *facts.errors, *_passing_errors(route)}):
        responses[str(status)] = wrong | {"description": TITLES[status]}
    operation["responses"] = responses
    return operation


def _passing_errors(route: Route) -> tuple[int, ...]:
    """What a node answers if the answer of the node that had to do it was lost.

    The seed's queue says 500 for whatever it cannot do.
    """
    is_passed_on = (route.is_of_readers or route.is_keyed) and not route.is_safe
    is_of_seed = route.facts is not None and route.facts.fails_as is not None
    return (502,) if is_passed_on and not is_of_seed else ()


def _parameter(place: str, field: Field) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": field.name, "in": place, "description": field.says}
    if field.is_required:
        shown["required"] = True
    if field.schema.get("type") == "array":
        shown |= {"style": "form", "explode": False}
    return shown | {"schema": field.schema}


def _needs_body(facts: Facts) -> bool:
    """An empty body is `{}`; is that enough?"""
    try:
        msgspec.json.decode(b"{}", type=facts.takes)
    except msgspec.ValidationError:
        return True
    return facts.takes is None or facts.needs_body


def _response(facts: Facts, status: int, schemas: dict[str, Any]) -> dict[str, Any]:
    response: dict[str, Any] = {"description": TITLES[status]}
    if facts.gives is not None and status != 204:
        response["content"] = {facts.gives_as: {"schema": schemas[str(facts.gives)]}}
        for kind in facts.also_gives:
            response["content"][kind] = {}
    return response
