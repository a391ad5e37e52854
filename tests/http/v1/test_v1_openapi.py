"""The OpenAPI document: is it true? Requests made from it are sent, and every answer is checked."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, seed, settings, strategies
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks

from tests.doors.hosted import Hosted
from tests.doors.users import add_users
from tests.http.asking import Asking

# What a request finds depends on those before it: one worker has them all, in order.
pytestmark = pytest.mark.xdist_group("openapi")

load_all_checks()
# What a regular expression cannot say has a format; these are texts of each.
words = strategies.text("abcdefgh-_.ä ", min_size=1).map(lambda one: one.strip() or "x")
schemathesis.openapi.format("penstock-user", words)
schemathesis.openapi.format(
    "penstock-where",
    strategies.sampled_from(
        ["payload.n > 5", "name LIKE 'a%' AND NOT offset IN (1, 2)", "payload IS NULL", "TRUE"]
    ),
)
schemathesis.openapi.format(
    "penstock-rule",
    strategies.builds(
        "{} {} {}".format,
        strategies.sampled_from(["allow", "deny"]),
        strategies.sampled_from(["publish", "subscribe,receive", "read"]),
        strategies.sampled_from(["rules/%u/#", "rules/+/a", "topic:rules"]),
    ),
)
QUEUE = [
    "POST /topics",
    "GET /topics",
    "POST /consumer/register",
    "POST /producer/register",
    "POST /producer/produce",
    "GET /consumer/consume",
    "GET /size",
]
STAGING = "POST /v1/staged"
UNENDING = ["GET /v1/topics/{topic}/stream"]  # an answer that never ends cannot be checked whole
TENANTS = [  # for operators; which names they have is not in the document
    "GET /v1/nodes",
    "GET /v1/nodes/{node}",
    "POST /v1/nodes/{node}/drain",
    "GET /v1/tenants",
    "GET /v1/tenants/{tenant}",
    "PUT /v1/tenants/{tenant}",
    "DELETE /v1/tenants/{tenant}",
]
OPERATIONS = [
    *QUEUE,
    "GET /v1/bindings",
    "POST /v1/bindings",
    "DELETE /v1/bindings",
    "GET /v1/me",
    "GET /v1/overview",
    "GET /v1/bridges",
    "GET /v1/pipelines",
    "GET /v1/retained",
    "GET /v1/traces",
    "POST /v1/traces",
    "GET /v1/traces/{trace}",
    "DELETE /v1/traces/{trace}",
    "GET /v1/topics/{topic}/records/{offset}/trace",
    "POST /v1/reload",
    "POST /v1/snapshots",
    "DELETE /v1/snapshots/{snapshot}",
    "GET /v1/sessions",
    "GET /v1/sessions/{client_id}",
    "POST /v1/sessions/{client_id}/kick",
    "DELETE /v1/sessions/{client_id}",
    "GET /v1/subscriptions",
    "GET /v1/clients",
    "GET /v1/clients/{client_id}",
    "DELETE /v1/clients/{client_id}",
    "GET /v1/users",
    "GET /v1/users/{user}",
    "GET /v1/roles",
    "GET /v1/roles/{role}",
    "PUT /v1/roles/{role}",
    "DELETE /v1/roles/{role}",
    "GET /v1/rules",
    "POST /v1/rules",
    "GET /v1/rules/{rule_id}",
    "DELETE /v1/rules/{rule_id}",
    "GET /v1/access/check",
    "PUT /v1/users/{user}",
    "DELETE /v1/users/{user}",
    "POST /v1/users/{user}/keys",
    "GET /v1/keys",
    "GET /v1/keys/{key_id}",
    "DELETE /v1/keys/{key_id}",
    "GET /v1/topics",
    "GET /v1/topics/{topic}",
    "PUT /v1/topics/{topic}",
    "PATCH /v1/topics/{topic}",
    "DELETE /v1/topics/{topic}",
    "POST /v1/topics/{topic}/erase",
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
    "PUT /v1/topics/{topic}/groups/{group}",
    "PATCH /v1/topics/{topic}/groups/{group}",
    "DELETE /v1/topics/{topic}/groups/{group}",
    "POST /v1/topics/{topic}/groups/{group}/fetch",
    "POST /v1/topics/{topic}/groups/{group}/ack",
    "POST /v1/topics/{topic}/groups/{group}/nack",
    "POST /v1/topics/{topic}/groups/{group}/extend",
    "POST /v1/topics/{topic}/groups/{group}/redrive",
    "GET /v1/topics/{topic}/position",
    "POST /v1/staged",
    "POST /v1/staged/handover",
    "POST /v1/staged/discard",
]


PASSWORD = "secret"
# With a login the same routes answer the same requests: fewer show it. `make nightly` sends more.
EXAMPLES = int(os.environ.get("PENSTOCK_ROUNDS", "12"))
EXAMPLES_WITH_USERS = int(os.environ.get("PENSTOCK_ROUNDS", "4"))


@pytest.fixture(scope="module", params=["without users", "with users"])
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Hosted]:
    data: Path = tmp_path_factory.mktemp("data")
    if request.param == "with users":
        add_users(data, ada=PASSWORD)
        with Hosted(data) as hosted:
            yield hosted
    else:  # or users that are made here would keep us out
        with Hosted(data, access__allow_anonymous=True) as hosted:
            yield hosted


@pytest.fixture(scope="module")
def login(broker: Hosted) -> dict[str, str]:
    if broker.call(lambda: broker.exchange.engine.access.allow_anonymous):
        return {}
    pair = base64.b64encode(f"ada:{PASSWORD}".encode()).decode()
    return {"Authorization": f"Basic {pair}"}


@pytest.fixture(scope="module")
def address(broker: Hosted) -> str:
    return f"http://127.0.0.1:{broker.ports['http']}"


@pytest.fixture(scope="module")
def operations(address: str, login: dict[str, str]) -> dict[str, Any]:
    """What the document describes, by method and path."""
    schema = schemathesis.openapi.from_url(f"{address}/v1/openapi.json", headers={**login})
    found = [operation.ok() for operation in schema.get_all_operations()]
    return {one.label: one for one in found}


def test_every_route_of_v1_and_of_the_queue_is_in_the_document_and_nothing_else(
    broker: Hosted, client: Asking, login: dict[str, str]
) -> None:
    document = client.ask("GET", "/v1/openapi.json", **login).json
    shown = {
        f"{method.upper()} {path}"
        for path, methods in document["paths"].items()
        for method in methods
    }
    routes = broker.call(lambda: [(one.method, one.pattern) for one in broker.http.router])
    there = {f"{method} {path}" for method, path in routes if path.startswith("/v1")} | {*QUEUE}
    assert shown == there == {*OPERATIONS, *UNENDING, *TENANTS, "GET /v1/openapi.json"}


def test_the_document_says_where_the_answer_of_another_node_can_be_lost(
    client: Asking, login: dict[str, str]
) -> None:
    paths = client.ask("GET", "/v1/openapi.json", **login).json["paths"]
    found = {
        f"{method.upper()} {path}"
        for path, methods in paths.items()
        for method, told in methods.items()
        if "502" in told["responses"]
    }
    group, consumer = "/v1/topics/{topic}/groups/{group}", "/v1/topics/{topic}/consumers/{consumer}"
    assert found == {
        "POST /v1/topics/{topic}/records",  # with an idempotency key
        *[f"{method} {group}" for method in ("PUT", "PATCH", "DELETE")],
        *[f"POST {group}/{one}" for one in ("fetch", "ack", "nack", "extend", "redrive")],
        *[f"{method} {consumer}" for method in ("PUT", "DELETE")],
        *[f"POST {consumer}/{one}" for one in ("fetch", "commit", "seek")],
    }


# Of the queue 500 is an answer like any other, and the same name in two fields is accepted. What a
# file of batches holds no schema can say.
EXCLUDED = {one: ["not_a_server_error"] for one in QUEUE} | {
    "POST /topics": ["not_a_server_error", "negative_data_rejection"],
    STAGING: ["positive_data_acceptance"],
}
POSITIVE, NEGATIVE = GenerationMode.POSITIVE, GenerationMode.NEGATIVE
NO_BODY = ("POST /v1/reload", "POST /v1/snapshots")
HAS_BODY = [
    one for one in OPERATIONS if one.startswith(("PUT", "PATCH", "POST")) and one not in NO_BODY
]


@pytest.mark.parametrize(
    ("label", "mode"),
    [(one, POSITIVE) for one in OPERATIONS]
    + [(one, NEGATIVE) for one in (*HAS_BODY, "GET /v1/topics/{topic}/records")],
)
def test_requests_made_from_the_document_are_answered_as_it_says(
    client: Asking,
    address: str,
    login: dict[str, str],
    operations: dict[str, Any],
    label: str,
    mode: GenerationMode,
) -> None:
    excluded = CHECKS.get_by_names(EXCLUDED.get(label, []))
    numbers = iter(range(1_000_000))

    def ask(case: schemathesis.Case) -> None:
        # A valid key becomes one of its own: used again it has another body.
        if mode is POSITIVE and "Idempotency-Key" in case.headers:
            case.headers["Idempotency-Key"] = f"{case.headers['Idempotency-Key']}{next(numbers)}"
        answer = case.call(base_url=address, headers={**login}, timeout=20)
        if answer.status_code == 414 and mode is NEGATIVE:
            return  # a text too long for its field may be too long for a path as well
        case.validate_response(answer, excluded_checks=excluded, headers={**login})

    @seed(1)
    @settings(
        max_examples=EXAMPLES_WITH_USERS if login else EXAMPLES,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(operations[label].as_strategy(generation_mode=mode))
    def check(case: schemathesis.Case) -> None:
        for fields in (case.body, case.query):
            wait_s = fields.get("wait") if isinstance(fields, dict) else None
            if isinstance(wait_s, int | float) and 0.01 < wait_s <= 60:
                fields["wait"] = 0.01  # nobody comes to end it
        ask(case)
        if case.path_parameters:
            for method, path in (("PUT", "/v1/topics/t"), ("PUT", "/v1/topics/t/consumers/c")):
                client.ask(method, path, **login)
            real = {"topic": "t", "consumer": "c", "group": "g", "client_id": "m"}
            real |= {"user": "u", "key_id": "k", "role": "r", "rule_id": "1", "trace": "1"}
            real |= {"offset": "0", "snapshot": "s"}
            case.path_parameters = {key: real[key] for key in case.path_parameters}
            ask(case)

    check()


def test_the_queue_tells_by_500_what_it_cannot_do_and_logs_no_error(tmp_path: Path) -> None:
    """The seed has it so: an empty queue, a topic that exists. Both are in the document."""
    with Hosted(tmp_path) as broker, Asking(broker.ports["http"]) as client:
        check_queue_failures(broker, client)


def check_queue_failures(broker: Hosted, client: Asking) -> None:
    document = client.ask("GET", "/v1/openapi.json").json
    failure = document["components"]["schemas"]["Failure"]
    assert set(failure["required"]) == {"status", "message"}
    assert client.ask("POST", "/topics", {"topic_name": "queue"}).status == 200
    consumer = client.ask("POST", "/consumer/register", {"topic": "queue"}).json
    query = f"topic=queue&consumer_id={consumer['consumer_id']}"
    for method, path, body in (
        ("POST", "/topics", {"topic_name": "queue"}),
        ("GET", f"/consumer/consume?{query}", b""),
    ):
        answer = client.ask(method, path, body)
        assert (answer.status, answer.json["status"]) == (500, "failure")
        told = document["paths"][path.partition("?")[0]][method.lower()]["responses"]
        assert "500" in told and "application/json" in told["500"]["content"]
    assert broker.troubles == []
