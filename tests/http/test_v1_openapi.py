"""The OpenAPI document: is it true? Requests made from it are sent, and every answer is checked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks

from tests.doors.hosted import Hosted
from tests.http.asking import Asking

load_all_checks()
# "Positive data is accepted" is not asked for: a schema cannot say that a topic must exist.
CHOSEN = CHECKS.get_by_names(
    [
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_schema_conformance",
        "negative_data_rejection",
        "unsupported_method",
    ]
)
UNENDING = ["GET /v1/topics/{topic}/stream"]  # an answer that never ends cannot be checked whole
OPERATIONS = [
    "GET /v1/bindings",
    "POST /v1/bindings",
    "DELETE /v1/bindings",
    "GET /v1/sessions",
    "GET /v1/sessions/{client_id}",
    "POST /v1/sessions/{client_id}/kick",
    "GET /v1/subscriptions",
    "GET /v1/users",
    "PUT /v1/users/{user}",
    "DELETE /v1/users/{user}",
    "POST /v1/users/{user}/keys",
    "GET /v1/keys",
    "DELETE /v1/keys/{key_id}",
    "GET /v1/topics",
    "GET /v1/topics/{topic}",
    "PUT /v1/topics/{topic}",
    "PATCH /v1/topics/{topic}",
    "DELETE /v1/topics/{topic}",
    "POST /v1/topics/{topic}/records",
    "GET /v1/topics/{topic}/records",
    "GET /v1/topics/{topic}/consumers",
    "GET /v1/topics/{topic}/consumers/{consumer}",
    "PUT /v1/topics/{topic}/consumers/{consumer}",
    "DELETE /v1/topics/{topic}/consumers/{consumer}",
    "POST /v1/topics/{topic}/consumers/{consumer}/fetch",
    "POST /v1/topics/{topic}/consumers/{consumer}/commit",
    "POST /v1/topics/{topic}/consumers/{consumer}/seek",
    "GET /v1/topics/{topic}/groups",
    "GET /v1/topics/{topic}/groups/{group}",
    "DELETE /v1/topics/{topic}/groups/{group}",
    "POST /v1/topics/{topic}/groups/{group}/fetch",
    "POST /v1/topics/{topic}/groups/{group}/ack",
    "POST /v1/topics/{topic}/groups/{group}/nack",
    "GET /v1/topics/{topic}/position",
    "POST /v1/staged",
    "POST /v1/staged/handover",
    "POST /v1/staged/discard",
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    data: Path = tmp_path_factory.mktemp("data")
    # Or users that are made here would keep us out.
    with Hosted(data, access__allow_anonymous=True) as hosted:
        yield hosted


def test_every_route_of_v1_is_in_the_document_and_nothing_else(
    broker: Hosted, client: Asking
) -> None:
    document = client.ask("GET", "/v1/openapi.json").json
    shown = {
        f"{method.upper()} {path}"
        for path, methods in document["paths"].items()
        for method in methods
    }
    routes = broker.call(lambda: [(one.method, one.pattern) for one in broker.http.router])
    there = {f"{method} {path}" for method, path in routes if path.startswith("/v1")}
    assert shown == there == {*OPERATIONS, *UNENDING, "GET /v1/openapi.json"}


POSITIVE, NEGATIVE = GenerationMode.POSITIVE, GenerationMode.NEGATIVE
NO_BODY = "POST /v1/users/{user}/keys"
HAS_BODY = [one for one in OPERATIONS if one.startswith(("PUT", "PATCH", "POST"))]
HAS_BODY.remove(NO_BODY)


@pytest.mark.parametrize(
    ("label", "mode"),
    [(one, POSITIVE) for one in OPERATIONS]
    + [(one, NEGATIVE) for one in (*HAS_BODY, "GET /v1/topics/{topic}/records")],
)
def test_no_request_made_from_the_document_meets_an_answer_it_does_not_know(
    broker: Hosted, client: Asking, label: str, mode: GenerationMode
) -> None:
    address = f"http://127.0.0.1:{broker.ports['http']}"
    schema = schemathesis.openapi.from_url(f"{address}/v1/openapi.json")
    (operation,) = [
        one for one in (found.ok() for found in schema.get_all_operations()) if one.label == label
    ]

    @seed(1)
    @settings(
        max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    @given(operation.as_strategy(generation_mode=mode))
    def check(case: schemathesis.Case) -> None:
        wait_s = case.body.get("wait") if isinstance(case.body, dict) else None
        if isinstance(wait_s, int | float) and 0.01 < wait_s <= 60:
            case.body["wait"] = 0.01  # nobody comes to end it
        case.call_and_validate(base_url=address, checks=CHOSEN, timeout=20)
        if case.path_parameters:
            for method, path in (("PUT", "/v1/topics/t"), ("PUT", "/v1/topics/t/consumers/c")):
                client.ask(method, path)
            real = {"topic": "t", "consumer": "c", "group": "g", "client_id": "m"}
            real |= {"user": "u", "key_id": "k"}
            case.path_parameters = {key: real[key] for key in case.path_parameters}
            case.call_and_validate(base_url=address, checks=CHOSEN, timeout=20)

    check()
