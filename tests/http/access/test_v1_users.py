"""`/v1/users` and `/v1/keys`: who may log in, changed while the broker runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Connack, Connect, Disconnect
from penstock.mqtt.reasons import Reason
from tests.doors.hosted import Hosted
from tests.doors.users import add_users
from tests.doors.wire import Wire
from tests.http.access.test_http_access import basic
from tests.http.asking import Answer, Asking


class Admin:
    """Asks as alice."""

    def __init__(self, broker: Hosted) -> None:
        self._client = Asking(broker.ports["http"])
        self.mqtt_port = broker.port
        self.http_port = broker.ports["http"]

    def ask(self, method: str, path: str, body: Any = b"", **headers: str) -> Answer:
        headers.setdefault("Authorization", basic("alice", "wonder"))
        return self._client.ask(method, path, body, **headers)


@pytest.fixture
def admin(tmp_path: Path) -> Iterator[Admin]:
    add_users(tmp_path, alice="wonder")
    with Hosted(tmp_path) as broker:
        yield Admin(broker)


def test_a_user_is_added_changed_listed_and_removed(admin: Admin) -> None:
    assert admin.ask("PUT", "/v1/users/bob", {"password": "builder"}).status == 201
    assert admin.ask("GET", "/v1/topics", Authorization=basic("bob", "builder")).status == 200
    assert admin.ask("PUT", "/v1/users/bob", {"password": "other"}).status == 200
    assert admin.ask("GET", "/v1/topics", Authorization=basic("bob", "builder")).status == 401
    assert admin.ask("GET", "/v1/topics", Authorization=basic("bob", "other")).status == 200
    taken = admin.ask("PUT", "/v1/users/bob", {"password": "x"}, If_None_Match="*")
    assert taken.status == 409 and "'bob' already exists" in taken.detail
    users = admin.ask("GET", "/v1/users").json["users"]
    assert [one["user"] for one in users] == ["alice", "bob"]
    assert users[1]["changed_at"] > users[1]["created_at"]
    assert admin.ask("GET", "/v1/users/bob").json == users[1]
    assert admin.ask("GET", "/v1/users/Bob").status == 404
    assert admin.ask("DELETE", "/v1/users/bob").status == 204
    assert admin.ask("GET", "/v1/topics", Authorization=basic("bob", "other")).status == 401


def test_roles_are_given_and_changed_and_only_an_operator_makes_operators(admin: Admin) -> None:
    made = admin.ask("PUT", "/v1/users/bob", {"password": "b", "roles": ["reader"]})
    assert made.status == 201 and made.json["roles"] == ["reader"]
    changed = admin.ask("PUT", "/v1/users/bob", {"roles": ["client"]})
    assert changed.status == 200 and changed.json["roles"] == ["client"]
    assert admin.ask("GET", "/v1/topics", Authorization=basic("bob", "b")).status == 200
    refused = admin.ask("PUT", "/v1/users/bob", {"roles": ["operator"]})
    assert refused.status == 403 and "only an operator" in refused.detail
    unknown = admin.ask("PUT", "/v1/users/bob", {"roles": ["nurse"]})
    assert unknown.status == 409 and "no role 'nurse'" in unknown.detail
    assert admin.ask("PUT", "/v1/users/eve", {"roles": ["client"]}).status == 404
    roles = [one["roles"] for one in admin.ask("GET", "/v1/users").json["users"]]
    assert roles == [["admin"], ["client"]]


def test_clients_of_a_user_who_is_removed_are_told_so_and_closed(admin: Admin) -> None:
    assert admin.ask("PUT", "/v1/users/bob", {"password": "builder"}).status == 201
    with Wire(admin.mqtt_port, "pump", MQTT_5) as wire:
        wire.send(Connect("pump", username="bob", password=b"builder"))
        assert wire.expect(Connack).reason == Reason.SUCCESS
        assert admin.ask("DELETE", "/v1/users/bob").status == 204
        end = wire.expect(Disconnect)
        assert end.reason == Reason.NOT_AUTHORIZED
        assert end.properties.reason_string == "user 'bob' was removed"
        assert wire.is_closed()


def test_the_last_user_stays_since_without_any_everybody_comes_in(admin: Admin) -> None:
    refused = admin.ask("DELETE", "/v1/users/alice")
    assert refused.status == 409 and "is the last one" in refused.detail
    assert admin.ask("GET", "/v1/users").status == 200


def test_of_the_last_two_users_one_stays_if_both_are_removed_at_once(admin: Admin) -> None:
    other = {"password": "builder", "roles": ["admin"]}
    assert admin.ask("PUT", "/v1/users/bob", other).status == 201
    logins = {"alice": basic("alice", "wonder"), "bob": basic("bob", "builder")}
    with Asking(admin.http_port) as alice, Asking(admin.http_port) as bob:
        for user, client in (("alice", alice), ("bob", bob)):
            assert client.ask("GET", "/v1/me", Authorization=logins[user]).status == 200
        for user, client in (("alice", alice), ("bob", bob)):
            client.request("DELETE", f"/v1/users/{user}", Authorization=logins[user])
        assert sorted([alice.answer().status, bob.answer().status]) == [204, 409]
        assert bob.ask("GET", "/v1/users").status == 401, "nobody comes in without a login"


def test_of_users_who_are_added_at_once_the_first_alone_becomes_admin(tmp_path: Path) -> None:
    add_users(tmp_path, alice="wonder")
    with Hosted(tmp_path) as broker:
        access = broker.exchange.engine.access
        broker.run(lambda server: server.broker.tenants.add("acme"))
        broker.run(lambda server: access.set_roles("alice", ["operator"]))
        operator = {"Authorization": basic("alice", "wonder"), "Penstock_Tenant": "acme"}
        port = broker.ports["http"]
        with Asking(port) as one, Asking(port) as two, Asking(port) as three:
            for client in (one, two, three):
                assert client.ask("GET", "/v1/me", **operator).status == 200
            for user, client in (("ada", one), ("bob", two), ("cy", three)):
                client.request("PUT", f"/v1/users/{user}", {"password": user}, **operator)
            answers = [client.answer() for client in (one, two, three)]
        assert [answer.status for answer in answers] == [201] * 3
        roles = sorted(answer.json["roles"] for answer in answers)
        assert roles == [["admin"], ["client"], ["client"]]


def test_a_tenant_that_has_the_last_users_is_not_removed(tmp_path: Path) -> None:
    with Hosted(tmp_path) as broker, Asking(broker.ports["http"]) as client:

        async def add(server: Any) -> None:
            for tenant in ("acme", "other"):
                await server.broker.tenants.add(tenant)
            await broker.exchange.engine.access.add_user("ann", b"ann", ["operator"], tenant="acme")

        broker.run(add)
        ann = {"Authorization": basic("acme/ann", "ann")}
        refused = client.ask("DELETE", "/v1/tenants/acme?purge=true", **ann)
        assert refused.status == 409 and "tenant 'acme' has the last users" in refused.detail
        assert client.ask("DELETE", "/v1/tenants/other?purge=true", **ann).status == 204
        assert client.ask("GET", "/v1/users", **ann).status == 200
        assert client.ask("GET", "/v1/users").status == 401


def test_a_key_is_told_once_and_revoked_by_its_id(admin: Admin) -> None:
    made = admin.ask("POST", "/v1/users/alice/keys")
    assert made.status == 201
    login = f"Bearer {made.json['key']}"
    assert admin.ask("GET", "/v1/topics", Authorization=login).status == 200
    (key,) = admin.ask("GET", "/v1/keys").json["keys"]
    assert key["user"] == "alice" and made.json["key"] not in str(key)
    assert admin.ask("DELETE", f"/v1/keys/{key['key_id']}").status == 204
    assert admin.ask("GET", "/v1/topics", Authorization=login).status == 401
    assert admin.ask("GET", "/v1/keys").json == {"keys": []}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "complaint"),
    [
        ("DELETE", "/v1/users/nobody", b"", 404, "no user 'nobody'"),
        ("POST", "/v1/users/nobody/keys", b"", 404, "no user 'nobody'"),
        ("DELETE", "/v1/keys/abc", b"", 404, "no key 'abc'"),
        ("PUT", "/v1/users/bob", b"", 404, "password"),
        ("PUT", "/v1/users/bob", {"password": ""}, 400, "password"),
        ("PUT", "/v1/users/bob", {"password": "ü" * 1024}, 400, "2048 bytes"),
        ("PUT", "/v1/users/b%3Aob", {"password": "x"}, 400, "contains ':'"),
        ("PUT", "/v1/users/bob", {"password": "x", "role": "admin"}, 400, "role"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_way_out(
    admin: Admin, method: str, path: str, body: Any, status: int, complaint: str
) -> None:
    refused = admin.ask(method, path, body)
    assert refused.status == status and complaint in refused.detail
    assert [one["user"] for one in admin.ask("GET", "/v1/users").json["users"]] == ["alice"]


def test_whoever_is_not_let_in_changes_nobody(admin: Admin) -> None:
    for login in ("", basic("alice", "wrong"), "Bearer psk_x"):
        asked = admin.ask("PUT", "/v1/users/eve", {"password": "x"}, Authorization=login)
        assert asked.status == 401
    assert len(admin.ask("GET", "/v1/users").json["users"]) == 1
