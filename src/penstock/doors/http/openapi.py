"""`/v1/openapi.json`: what this door offers, made from its routes and their types."""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import Any, Final

import msgspec

from penstock.doors.http.describing import Facts
from penstock.doors.http.door import HttpDoor
from penstock.doors.http.messages import JSON, PROBLEM, TITLES, Request, Response, json_response
from penstock.doors.http.router import Route
from penstock.doors.http.types import Problem

PATH: Final = "/v1/openapi.json"
ERRORS: Final = (400, 401, 403, 404, 408, 413, 414, 417, 421, 431, 503, 507)  # of every route
_PARAMETER: Final = re.compile(r"\{(\w+)\}")


def add_routes(door: HttpDoor) -> None:
    """Add it last: it shows the routes there are."""

    def show(request: Request) -> Response:
        return response

    facts = Facts("this document", dict[str, Any])
    door.router.add(Route("GET", PATH, show, facts=facts))
    response = json_response(document([route for route in door.router if route.facts]))


def document(routes: list[Route]) -> dict[str, Any]:
    types: list[Any] = [Problem]
    for route in routes:
        facts = route.facts
        assert facts is not None
        types += [one for one in (facts.gives, facts.takes) if one is not None]
    schemas, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    by_type = {str(kind): schema for kind, schema in zip(types, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.pattern, {})[route.method.lower()] = _operation(route, by_type)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Penstock", "version": version("penstock")},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "key": {"type": "http", "scheme": "bearer"},
            },
        },
        "security": [{}, {"basic": []}, {"key": []}],
    }


def _operation(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    facts = route.facts
    assert facts is not None
    operation: dict[str, Any] = {"summary": facts.summary}
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(route.pattern)
    ]
    for place, fields in (("query", facts.query), ("header", facts.headers)):
        parameters += [
            {"name": name, "in": place, "description": says, "schema": {"type": "string"}}
            for name, says in fields
        ]
    if parameters:
        operation["parameters"] = parameters
    if facts.takes is not None or facts.also_takes:
        content: dict[str, Any] = {}
        if facts.takes is not None:
            content[JSON] = {"schema": schemas[str(facts.takes)]}
        content |= {kind: {"schema": {"type": "string"}} for kind in facts.also_takes}
        operation["requestBody"] = {"content": content}
    responses: dict[str, Any] = {}
    for status in facts.statuses:
        responses[str(status)] = _response(facts, status, schemas)
    wrong = {"description": "", "content": {PROBLEM: {"schema": schemas[str(Problem)]}}}
    for status in sorted({*ERRORS, *facts.errors}):
        responses[str(status)] = wrong | {"description": TITLES[status]}
    operation["responses"] = responses
    return operation


def _response(facts: Facts, status: int, schemas: dict[str, Any]) -> dict[str, Any]:
    response: dict[str, Any] = {"description": TITLES[status]}
    if facts.gives is not None and status != 204:
        response["content"] = {facts.gives_as: {"schema": schemas[str(facts.gives)]}}
        for kind in facts.also_gives:
            response["content"][kind] = {}
    return response
