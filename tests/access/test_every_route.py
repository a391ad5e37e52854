"""Does any route of the HTTP door show something to those who may see nothing of it?

The routes come from the OpenAPI document, so a new one is asked, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.core.access import parse_rule
from tests.doors.hosted import Hosted
from tests.doors.users import add_users
from tests.http.access.test_http_access import basic
from tests.http.asking import Answer, Asking

SECRETS = ("secretname", "secretpayload", "secretfilter", "secretrule", "secrettrouble", "alice")
# Everybody who was let in may ask these, and is shown only what concerns everybody.
OPEN_TO_ALL = (
    "/topics",
    "/v1/topics",
    "/v1/bindings",
    "/v1/retained",
    "/v1/me",
    "/v1/overview",
    "/v1/openapi.json",
)
PARAMETERS = {
    "topic": "hidden",
    "consumer": "reader",
    "group": "workers",
    "client_id": "device",
    "user": "bob",
    "key_id": "0123456789",
    "role": "clerk",
    "rule_id": "1",
    "tenant": "default",
    "snapshot": "1",
    "trace": "1",
    "offset": "0",
    "node": "1",
}
SEED = {
    "topic": "hidden",
    "topic_name": "hidden",
    "consumer_id": "0000000010",
    "producer_id": "0000000011",
    "message": "x",
}


def login(user: str) -> dict[str, str]:
    return {"Authorization": basic(user, user.rpartition("/")[2])}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    """alice is admin and has everything, eve has no role, and ann is admin of another tenant."""
    data = tmp_path_factory.mktemp("data")
    add_users(data, alice="alice", bob="bob", eve="eve")
    with Hosted(data) as hosted:
        access = hosted.exchange.engine.access

        async def prepare(server: Any) -> None:
            await server.broker.tenants.add("acme")
            await access.add_user("ann", b"ann", tenant="acme")
            await access.set_roles("eve", [])
            await access.roles.add("clerk", [parse_rule("allow read secretrule")])
            await access.roles.add_rules([parse_rule("deny read secretrule")], user="bob")
            await access.make_key("alice")
            engine = server.broker.tenants.get("default")
            engine.upkeep.note_trouble("topic hidden", "secrettrouble: a file is damaged")

        hosted.run(prepare)
        record = {"payload": "secretpayload", "name": "secretname", "retain": True}
        topic = "/v1/topics/hidden"
        with Asking(hosted.ports["http"]) as alice:
            for method, path, body in (
                ("PUT", topic, {}),
                ("POST", f"{topic}/records", record),
                ("PUT", f"{topic}/consumers/reader", {}),
                ("PUT", f"{topic}/groups/workers", {}),
                ("POST", "/v1/bindings", {"filter": "secretfilter/#", "topic": "hidden"}),
                ("POST", "/v1/traces", {"names": "secretname"}),
            ):
                assert alice.ask(method, path, body, **login("alice")).status < 300, path
        yield hosted


def routes(broker: Hosted) -> list[tuple[str, str]]:
    with Asking(broker.ports["http"]) as client:
        paths = client.ask("GET", "/v1/openapi.json", **login("alice")).json["paths"]
    # Streams first: ann makes a topic of the same name later, and they would not end.
    found = sorted(paths, key=lambda path: not path.endswith("/stream"))
    return [(method.upper(), path) for path in found for method in paths[path]]


def ask(
    broker: Hosted, user: str, method: str, path: str, topic: str = PARAMETERS["topic"]
) -> Answer:
    body: Any = {} if method in ("POST", "PUT", "PATCH") else b""
    if not path.startswith("/v1/"):
        body = SEED | {"topic": topic, "topic_name": topic}
    elif method == "POST" and path.endswith("/records"):
        body = {"payload": "x"}
    with Asking(broker.ports["http"]) as client:
        return client.ask(method, path.format(**PARAMETERS | {"topic": topic}), body, **login(user))


def test_nobody_without_a_role_or_of_another_tenant_is_shown_anything(broker: Hosted) -> None:
    asked = routes(broker)
    assert len(asked) > 80
    wrong = []
    for user in ("eve", "acme/ann"):
        for method, path in asked:
            answer = ask(broker, user, method, path)
            shown = [one for one in SECRETS if one.encode() in answer.body]
            is_open = method == "GET" and path in OPEN_TO_ALL
            if shown or (user == "eve" and answer.status < 400 and not is_open):
                wrong.append((user, method, path, answer.status, shown))
    assert wrong == []


def test_nobody_without_a_role_learns_which_topics_exist(broker: Hosted) -> None:
    for method, path in routes(broker):
        if "{topic}" in path or not path.startswith("/v1/"):
            there, missing = (ask(broker, "eve", method, path, one) for one in ("hidden", "nosuch"))
            assert missing.status == there.status, (method, path, missing, there)
            assert missing.body == there.body.replace(b"hidden", b"nosuch")


def test_the_same_words_are_found_in_what_an_admin_is_shown(broker: Hosted) -> None:
    """Else the test above could not fail."""
    told = b"".join(
        ask(broker, "alice", method, path).body
        for method, path in routes(broker)
        if method == "GET" and path.startswith("/v1/") and not path.endswith("/stream")
    )
    assert [one for one in SECRETS if one.encode() not in told] == []
