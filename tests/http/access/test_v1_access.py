"""`/v1/roles`, `/v1/rules`, `/v1/access/check`: who may do what, changed while the broker runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.doors.hosted import Hosted
from tests.doors.users import add_users
from tests.http.access.test_http_access import basic
from tests.http.access.test_v1_users import Admin
from tests.http.asking import Answer, Asking

SENSOR = ["allow publish sensors/%u/#", "allow subscribe,receive commands/%u/#"]


@pytest.fixture
def admin(tmp_path: Path) -> Iterator[Admin]:
    add_users(tmp_path, alice="wonder", bob="builder")
    with Hosted(tmp_path) as broker:
        yield Admin(broker)


def may(admin: Admin, user: str, action: str, name: str, **more: str) -> bool:
    return bool(check(admin, user=user, action=action, name=name, **more).json["allowed"])


def check(admin: Admin, **fields: str) -> Answer:
    return admin.ask("GET", f"/v1/access/check?{urlencode(fields)}")


def test_a_role_is_added_shown_changed_and_removed(admin: Admin) -> None:
    made = admin.ask("PUT", "/v1/roles/sensor", {"rules": SENSOR})
    assert made.status == 201
    assert made.json == {"role": "sensor", "kind": "added", "rules": SENSOR}
    assert admin.ask("GET", "/v1/roles/sensor").json == made.json
    listed = admin.ask("GET", "/v1/roles").json["roles"]
    assert [(one["role"], one["kind"]) for one in listed] == [
        *((name, "built-in") for name in ("operator", "admin", "client", "reader")),
        ("sensor", "added"),
    ]
    admin.ask("PUT", "/v1/users/bob", {"roles": ["sensor"]})
    assert may(admin, "bob", "publish", "sensors/bob/x")
    taken = admin.ask("PUT", "/v1/roles/sensor", {"rules": []}, If_None_Match="*")
    assert taken.status == 409 and "'sensor' already exists" in taken.detail
    changed = admin.ask("PUT", "/v1/roles/sensor", {"rules": SENSOR[1:]})
    assert changed.status == 200 and changed.json["rules"] == SENSOR[1:]
    assert not may(admin, "bob", "publish", "sensors/bob/x")
    assert may(admin, "bob", "subscribe", "commands/bob/#")
    assert admin.ask("DELETE", "/v1/roles/sensor").status == 204
    assert admin.ask("GET", "/v1/roles/sensor").status == 404
    assert not may(admin, "bob", "subscribe", "commands/bob/#")


def test_rules_belong_to_a_role_a_user_or_everybody(admin: Admin) -> None:
    admin.ask("PUT", "/v1/roles/sensor", {"rules": []})
    for owner in ({"role": "sensor"}, {"user": "bob"}, {}):
        made = admin.ask("POST", "/v1/rules", {"rules": ["deny publish a/#"], **owner})
        assert made.status == 201
        (rule,) = made.json["rules"]
        assert rule == {"id": rule["id"], "rule": "deny publish a/#", **owner}
        assert rule in admin.ask("GET", "/v1/rules").json["rules"]
        again = admin.ask("POST", "/v1/rules", {"rules": ["deny publish a/#"], **owner})
        assert again.status == 409 and "already has the rule" in again.detail
        assert may(admin, "bob", "publish", "a/x") is (owner == {"role": "sensor"})
        assert admin.ask("DELETE", f"/v1/rules/{rule['id']}").status == 204
        assert may(admin, "bob", "publish", "a/x")
    assert admin.ask("GET", "/v1/rules").json == {"rules": []}


def test_a_check_names_the_rule_and_what_it_belongs_to(admin: Admin) -> None:
    found = check(admin, user="bob", action="publish", name="a/b").json
    assert found == {
        "allowed": True,
        "rule": "allow publish,subscribe,receive,read #",
        "source": "role client",
    }
    admin.ask("POST", "/v1/rules", {"rules": ["deny read topic:hr"], "user": "bob"})
    denied = {"allowed": False, "rule": "deny read topic:hr", "source": "user bob"}
    assert check(admin, user="bob", action="read", name="x", topic="HR").json == denied
    admin.ask("PUT", "/v1/topics/hr")
    assert check(admin, user="bob", action="read", name="hr/x").json == denied
    nothing = {"allowed": False, "rule": None, "source": ""}
    assert check(admin, user="bob", action="manage", name="hr").json == nothing
    assert check(admin, user="", action="read", name="x").json == nothing
    admin.ask("POST", "/v1/rules", {"rules": ["allow manage own/%c"]})
    assert may(admin, "bob", "manage", "own/pump", client_id="pump")
    assert not may(admin, "bob", "manage", "own/pump", client_id="fan")


def test_a_key_has_fewer_roles_than_its_user_if_asked_for(admin: Admin) -> None:
    made = admin.ask("POST", "/v1/users/alice/keys", {"roles": ["reader"]})
    assert made.status == 201
    login = f"Bearer {made.json['key']}"
    assert admin.ask("GET", "/v1/topics", Authorization=login).status == 200
    assert admin.ask("PUT", "/v1/topics/t", Authorization=login).status == 403
    (key,) = admin.ask("GET", "/v1/keys").json["keys"]
    assert key["roles"] == ["reader"]
    refused = admin.ask("POST", "/v1/users/bob/keys", {"roles": ["admin"]})
    assert refused.status == 400 and "'bob' does not have the role 'admin'" in refused.detail


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "complaint"),
    [
        ("PUT", "/v1/roles/a%20b", {"rules": []}, 400, "role name 'a b' is invalid"),
        ("PUT", "/v1/roles/a", {"rules": ["allow"]}, 400, "rule 'allow' is incomplete"),
        ("PUT", "/v1/roles/a", b"", 400, "rules"),
        ("PUT", "/v1/roles/admin", {"rules": []}, 409, "'admin' is built in"),
        ("DELETE", "/v1/roles/admin", b"", 409, "'admin' is built in"),
        ("DELETE", "/v1/roles/nobody", b"", 404, "no role 'nobody'"),
        ("POST", "/v1/rules", {"rules": [], "role": "x"}, 404, "no role 'x'"),
        ("POST", "/v1/rules", {"rules": [], "user": "x"}, 404, "no user 'x'"),
        ("POST", "/v1/rules", {"rules": [], "role": "client"}, 409, "'client' is built in"),
        ("DELETE", "/v1/rules/77", b"", 404, "no rule '77'"),
        ("DELETE", "/v1/rules/x", b"", 404, "no rule 'x'"),
        ("GET", "/v1/access/check?user=bob&action=read", b"", 400, "'name' is missing"),
        ("GET", "/v1/access/check?user=x&action=read&name=a", b"", 404, "no user 'x'"),
        ("GET", "/v1/access/check?user=bob&action=eat&name=a", b"", 400, "'eat' is unknown"),
        ("GET", "/v1/access/check?user=bob&action=read&name=%23", b"", 400, "'#'"),
    ],
)
def test_what_is_refused_says_why(
    admin: Admin, method: str, path: str, body: Any, status: int, complaint: str
) -> None:
    answer = admin.ask(method, path, body)
    assert answer.status == status and complaint in answer.detail


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/roles"),
        ("PUT", "/v1/roles/mine"),
        ("GET", "/v1/rules"),
        ("POST", "/v1/rules"),
        ("GET", "/v1/access/check?user=bob&action=read&name=a"),
    ],
)
def test_only_admins_ask(admin: Admin, method: str, path: str) -> None:
    answer = admin.ask(method, path, {"rules": []}, Authorization=basic("bob", "builder"))
    assert answer.status == 403 and "needs the role admin" in answer.detail


def test_what_the_settings_file_declares_is_shown_and_stays(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(
        '[[roles]]\nname = "sensor"\nrules = ["allow publish sensors/%u/#"]\n'
        '[[rules]]\nrule = "deny read hr/#"\n'
    )
    with (
        Hosted(tmp_path / "data", config=file) as broker,
        Asking(broker.ports["http"]) as client,
    ):
        role = client.ask("GET", "/v1/roles/sensor").json
        assert role == {"role": "sensor", "kind": "declared", "rules": SENSOR[:1]}
        rules = client.ask("GET", "/v1/rules").json["rules"]
        assert {"id": 0, "rule": "deny read hr/#"} in rules
        for method, path, body in (
            ("PUT", "/v1/roles/sensor", {"rules": []}),
            ("DELETE", "/v1/roles/sensor", b""),
            ("POST", "/v1/rules", {"rules": ["allow read #"], "role": "sensor"}),
            ("DELETE", "/v1/rules/0", b""),
        ):
            refused = client.ask(method, path, body)
            assert refused.status == 409 and "declared in the settings file" in refused.detail
