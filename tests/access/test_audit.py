"""The topic `$audit`: acts and refused logins are recorded, without secrets."""

from __future__ import annotations

import base64
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.core.refusals import NETWORK_MAX
from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Connack, Connect, Puback, Publish
from penstock.mqtt.reasons import Reason
from tests.doors.served import Served
from tests.doors.users import add_users
from tests.doors.wire import Wire
from tests.http.asking import WAIT_S, Answer, Asking
from tests.waiting import wait_until

AUDIT = "/v1/topics/$audit"
SECRET = "correct horse battery"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Served]:
    add_users(tmp_path / "data", root=SECRET)
    served = Served(tmp_path / "data").start()
    yield served
    served.stop()


def ask(broker: Served, method: str, path: str, body: Any = b"", password: str = SECRET) -> Answer:
    login = base64.b64encode(f"root:{password}".encode()).decode()
    with Asking(broker.http_port) as asking:
        return asking.ask(method, path, body, Authorization=f"Basic {login}")


def entries(broker: Served) -> list[dict[str, str]]:
    answer = ask(broker, "GET", f"{AUDIT}/records?from=earliest")
    assert answer.status == 200, answer
    return [json.loads(record["payload"]) for record in answer.json["records"]]


def test_an_act_is_recorded_with_who_did_it_what_and_the_result(broker: Served) -> None:
    assert ask(broker, "PUT", "/v1/topics/orders", {}).status == 201
    assert ask(broker, "DELETE", "/v1/topics/missing").status == 404
    made, failed = entries(broker)
    assert (made["who"], made["act"], made["result"]) == ("root", "PUT /v1/topics/orders", "201")
    assert made["from"].startswith("127.0.0.1")
    assert (failed["act"], failed["result"]) == ("DELETE /v1/topics/missing", "404")
    assert "missing" in failed["reason"]


def test_a_redrive_is_recorded_and_needs_the_right_to_manage_the_topic(broker: Served) -> None:
    ask(broker, "PUT", "/v1/topics/orders", {})
    ask(broker, "PUT", "/v1/users/bob", {"password": SECRET, "roles": ["client"]})
    path = "/v1/topics/orders/groups/packers/redrive"
    assert ask(broker, "POST", path, {"dry_run": True}).status == 200
    login = base64.b64encode(f"bob:{SECRET}".encode()).decode()
    with Asking(broker.http_port) as asking:
        refused = asking.ask("POST", path, b"", Authorization=f"Basic {login}")
    assert refused.status == 403 and "may not manage" in refused.detail
    acts = [(one["who"], one["act"], one["result"]) for one in entries(broker)[2:]]
    assert acts == [("root", f"POST {path}", "200"), ("bob", f"POST {path}", "403")]


def test_erasing_is_recorded_with_what_was_erased(broker: Served) -> None:
    assert ask(broker, "PUT", "/v1/topics/orders", {}).status == 201
    message = {"payload": "x", "name": "orders/7"}
    assert ask(broker, "POST", "/v1/topics/orders/records", [message]).status == 200
    erase = "/v1/topics/orders/erase"
    assert (
        ask(broker, "POST", erase, {"names": "orders/#", "dry_run": True}).json["log_records"] == 1
    )
    answer = ask(broker, "POST", erase, {"names": "orders/#", "before": "-1s"})
    assert (answer.status, answer.json["log_records"]) == (200, 0), "it is newer"
    answer = ask(broker, "POST", erase, {"names": "orders/#"})
    assert (answer.status, answer.json["log_records"], answer.json["dry_run"]) == (200, 1, False)
    (record,) = ask(broker, "GET", "/v1/topics/orders/records?from=0").json["records"]
    assert (record["payload"], record["kind"]) == ("", "erased")
    assert ask(broker, "POST", erase, {"names": "a#"}).status == 400
    assert ask(broker, "POST", "/v1/topics/$audit/erase", {"names": "#"}).status == 403
    acts = [(one["act"], one["result"], one["reason"]) for one in entries(broker)]
    told = "1 records in the log, 0 in the history, 0 retained"
    assert ("erase orders/# before now in orders", "200", told) in acts
    assert [result for act, result, _ in acts if act == f"POST {erase}"] == ["200"] * 3 + ["400"]


def test_no_record_holds_a_secret(broker: Served) -> None:
    assert ask(broker, "PUT", "/v1/users/bob", {"password": "another secret"}).status == 201
    key = ask(broker, "POST", "/v1/users/bob/keys").json["key"]
    ask(broker, "GET", "/v1/topics", password="a wrong guess")
    with Asking(broker.http_port) as asking:
        asking.ask("GET", "/v1/topics", Authorization=f"Bearer {key}x")
    text = json.dumps(entries(broker))
    assert "/v1/users/bob/keys" in text
    for secret in ("another secret", key, "a wrong guess", SECRET):
        assert secret not in text


def test_no_record_holds_a_password_that_was_given_in_the_query(broker: Served) -> None:
    queries = ("password=hunter2&x=1", "x=1&Password=hunter2", "p%61ssword=hunter2")
    for query in queries:
        for body in (b"", b'{"roles"'):
            assert ask(broker, "PUT", f"/v1/users/bob?{query}", body).status >= 400
    found = [entry["details"] for entry in entries(broker)]
    assert found == [query.replace("hunter2", "…") for query in queries for _ in range(2)]


def test_refused_logins_of_both_doors_are_recorded(broker: Served) -> None:
    assert ask(broker, "GET", "/v1/topics", password="wrong").status == 401
    with Wire(broker.port, "client", MQTT_5) as wire:
        wire.send(Connect("client", True, 0, username="mallory", password=b"x", version=MQTT_5))
        assert wire.expect(Connack).reason == Reason.BAD_USER_NAME_OR_PASSWORD
    wait_until(lambda: len(entries(broker)) == 2)  # they are written behind the answers
    http, mqtt = entries(broker)
    assert (http["who"], http["act"], http["result"]) == ("root", "login http", "refused")
    assert (mqtt["who"], mqtt["act"], mqtt["result"]) == ("mallory", "login mqtt", "refused")


def test_nobody_publishes_to_it_deletes_it_or_binds_names_to_it(broker: Served) -> None:
    ask(broker, "PUT", "/v1/topics/orders", {})
    assert ask(broker, "POST", f"{AUDIT}/records", {"payload": "x"}).status == 403
    assert ask(broker, "DELETE", AUDIT).status == 403
    assert ask(broker, "POST", "/v1/bindings", {"filter": "a/#", "topic": "$audit"}).status == 403
    assert ask(broker, "PUT", "/v1/topics/$other", {}).status == 400
    with Wire(broker.port, "client", MQTT_5) as wire:
        wire.send(
            Connect("client", True, 0, username="root", password=SECRET.encode(), version=MQTT_5)
        )
        assert wire.expect(Connack).reason == Reason.SUCCESS
        wire.send(Publish("$audit/admin", b"forged", 1, packet_id=7))
        assert wire.pick(Puback, 7).reason == Reason.NOT_AUTHORIZED
    assert all(entry["who"] == "root" for entry in entries(broker))


def test_its_names_are_not_matched_by_a_leading_wildcard(broker: Served) -> None:
    with Wire(broker.port, "client", MQTT_5) as wire:
        wire.send(
            Connect("client", True, 0, username="root", password=SECRET.encode(), version=MQTT_5)
        )
        wire.expect(Connack)
        wire.subscribe("#", "+/admin")
        ask(broker, "PUT", "/v1/topics/one", {})
        assert wire.settle() == []
        wire.subscribe("$audit/#")
        ask(broker, "PUT", "/v1/topics/two", {})
        assert json.loads(wire.receive().payload)["act"] == "PUT /v1/topics/two"


def test_it_is_not_listed_among_the_declared_topics(broker: Served) -> None:
    ask(broker, "PUT", "/v1/topics/orders", {})
    assert [one["topic"] for one in ask(broker, "GET", "/v1/topics").json["topics"]] == ["orders"]
    assert ask(broker, "GET", AUDIT).json["end_offset"] == 1


def test_what_was_recorded_survives_a_kill(broker: Served) -> None:
    ask(broker, "PUT", "/v1/topics/orders", {})
    broker.kill()
    broker.start()
    assert [entry["act"] for entry in entries(broker)] == ["PUT /v1/topics/orders"]


def test_without_users_there_is_no_audit_topic(tmp_path: Path) -> None:
    served = Served(tmp_path / "data").start()
    with Asking(served.http_port) as asking:
        assert asking.ask("PUT", "/v1/topics/orders", {}).status == 201
        assert asking.ask("GET", AUDIT).status == 404
    served.stop()


def test_a_group_gets_records_again_that_it_rejected_however_often(broker: Served) -> None:
    """There is no topic for dead letters of the audit topic, so they may not stop the group."""
    assert ask(broker, "PUT", "/v1/topics/orders", {}).status == 201
    group = f"{AUDIT}/groups/shipping"
    for _ in range(7):
        given = ask(broker, "POST", f"{group}/fetch", {"limit": 1, "deliveries_max": 1})
        assert [one["offset"] for one in given.json["records"]] == [0], given
        receipt = {"receipt": given.json["receipt"]}
        assert ask(broker, "POST", f"{group}/nack", receipt).status == 200
    given = ask(broker, "POST", f"{group}/fetch", {"limit": 1})
    assert ask(broker, "POST", f"{group}/ack", {"receipt": given.json["receipt"]}).status == 200
    given = ask(broker, "POST", f"{group}/fetch", {"limit": 1})
    assert [one["offset"] for one in given.json["records"]] != [0]


def test_changes_of_roles_and_rules_are_recorded_and_questions_are_not(broker: Served) -> None:
    assert ask(broker, "PUT", "/v1/roles/sensor", {"rules": ["allow read #"]}).status == 201
    assert ask(broker, "POST", "/v1/rules", {"rules": ["deny read hr/#"]}).status == 201
    assert ask(broker, "DELETE", "/v1/rules/2").status == 204
    ask(broker, "GET", "/v1/access/check?user=root&action=read&name=a")
    acts = [entry["act"] for entry in entries(broker)]
    assert acts == ["PUT /v1/roles/sensor", "POST /v1/rules", "DELETE /v1/rules/2"]


def as_user(user: str, password: str) -> dict[str, str]:
    login = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"Authorization": f"Basic {login}"}


def connect(broker: Served, user: str, password: str, client_id: str = "client") -> Reason:
    with Wire(broker.port, client_id, MQTT_5) as wire:
        login = {"username": user, "password": password.encode()}
        wire.send(Connect(client_id, True, 0, version=MQTT_5, **login))
        return Reason(wire.expect(Connack).reason)


def local(broker: Served) -> Asking:
    """As commands on the data directory ask."""
    opened = socket.socket(socket.AF_UNIX)
    opened.settimeout(WAIT_S)
    opened.connect(str(broker.data / "commands.sock"))
    return Asking(0, opened)


def test_a_refused_login_is_recorded_in_the_tenant_that_it_names(broker: Served) -> None:
    with local(broker) as operator:
        assert operator.ask("PUT", "/v1/tenants/acme", {}).status == 201
        ann = {"password": SECRET}
        assert operator.ask("PUT", "/v1/users/ann", ann, Penstock_Tenant="acme").status == 201
    with Asking(broker.http_port) as client:
        assert client.ask("GET", "/v1/topics", **as_user("acme/ann", "wrong")).status == 401
        assert connect(broker, "acme/mallory", "x") == Reason.BAD_USER_NAME_OR_PASSWORD
        assert client.ask("GET", "/v1/topics", **as_user("nowhere/ann", "x")).status == 401
        answer = client.ask("GET", f"{AUDIT}/records?from=earliest", **as_user("acme/ann", SECRET))
    found = [json.loads(record["payload"]) for record in answer.json["records"]]
    assert [(one["who"], one["from"].partition(":")[0], one["act"]) for one in found] == [
        ("", "data directory", "PUT /v1/users/ann"),
        ("acme/ann", "127.0.0.1", "login http"),
        ("acme/mallory", "127.0.0.1", "login mqtt"),
    ]
    logins = [one["who"] for one in entries(broker) if one["act"].startswith("login")]
    assert logins == ["nowhere/ann"]


def test_the_first_user_of_a_broker_is_recorded(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as broker:
        with local(broker) as operator:
            assert operator.ask("PUT", "/v1/users/root", {"password": SECRET}).status == 201
        assert [one["act"] for one in entries(broker)] == ["PUT /v1/users/root"]


def test_a_key_or_token_in_the_wrong_place_is_not_recorded(broker: Served) -> None:
    key = ask(broker, "POST", "/v1/users/root/keys").json["key"]
    token = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJib2IifQ.c2lnbmF0dXJl"
    assert ask(broker, "DELETE", f"/v1/keys/{key}").status == 404
    for secret in (key, token):
        assert connect(broker, secret, "x") == Reason.BAD_USER_NAME_OR_PASSWORD
        with Asking(broker.http_port) as client:
            assert client.ask("GET", "/v1/topics", **as_user(secret, "x")).status == 401
    wait_until(lambda: len(entries(broker)) == 6)
    text = json.dumps(entries(broker))
    assert key not in text and token not in text
    assert "DELETE /v1/keys/psk_" in text and text.count("login http") == 2


def test_who_wants_the_client_id_of_another_user_is_recorded(broker: Served) -> None:
    assert ask(broker, "PUT", "/v1/users/bob", {"password": "builder"}).status == 201
    with Wire(broker.port, "pump", MQTT_5) as wire:
        login = Connect("pump", username="root", password=SECRET.encode(), version=MQTT_5)
        wire.send(login)
        assert wire.expect(Connack).reason == Reason.SUCCESS
        assert connect(broker, "bob", "builder", "pump") == Reason.NOT_AUTHORIZED
    wait_until(lambda: len(entries(broker)) == 2)
    last = entries(broker)[-1]
    assert (last["who"], last["act"], last["result"]) == ("bob", "login mqtt", "refused")
    assert "client id 'pump' belongs to another user" in last["reason"]


def test_a_flood_of_refused_logins_is_recorded_as_some_records_and_a_number(
    broker: Served,
) -> None:
    with Asking(broker.http_port) as client:
        for _ in range(NETWORK_MAX + 50):
            client.ask("GET", "/v1/topics", Authorization="Bearer psk_0_wrong")
    logins = [one for one in entries(broker) if one["act"] == "login http"]
    assert len(logins) == NETWORK_MAX
    broker.stop()
    broker.start()
    last = entries(broker)[-1]
    assert (last["from"], last["result"]) == ("127.0.0.1", "refused")
    assert last["reason"].startswith("50 more refused logins")


def test_a_flood_of_acts_of_a_user_who_may_not_is_recorded_as_some_records_and_a_number(
    broker: Served,
) -> None:
    assert ask(broker, "PUT", "/v1/users/bob", {"password": SECRET}).status == 201
    bob = as_user("bob", SECRET)
    with Asking(broker.http_port) as client:
        for _ in range(NETWORK_MAX + 50):
            assert client.ask("POST", "/v1/rules", {"rules": []}, **bob).status == 403
    for number in range(NETWORK_MAX + 50):  # what an administrator does is recorded, all of it
        assert ask(broker, "DELETE", f"/v1/topics/missing{number}").status == 404
    found = entries(broker)
    assert len([one for one in found if one["who"] == "bob"]) == NETWORK_MAX
    assert len([one for one in found if one["result"] == "404"]) == NETWORK_MAX + 50
    broker.stop()
    broker.start()
    last = entries(broker)[-1]
    assert (last["who"], last["act"], last["result"]) == ("bob", "administer", "refused")
    assert last["reason"].startswith("50 more failed acts")


def test_adding_and_removing_a_tenant_is_recorded_where_it_outlives_the_tenant(
    broker: Served,
) -> None:
    with local(broker) as operator:
        assert operator.ask("PUT", "/v1/users/root", {"roles": ["operator"]}).status == 200
        for tenant in ("acme", "north"):
            assert operator.ask("PUT", f"/v1/tenants/{tenant}", {}).status == 201
        ann = {"password": SECRET, "roles": ["operator"]}
        assert operator.ask("PUT", "/v1/users/ann", ann, Penstock_Tenant="north").status == 201
    root, ann_of_north = as_user("root", SECRET), as_user("north/ann", SECRET)
    with Asking(broker.http_port) as client:
        made = client.ask("PUT", "/v1/topics/orders", {}, **root, Penstock_Tenant="acme")
        assert made.status == 201
        for tenant, who in (("acme", root), ("north", ann_of_north)):
            path = f"/v1/tenants/{tenant}"
            refused = client.ask("DELETE", path, **who, Penstock_Tenant=tenant)
            assert refused.status == 409
            removed = client.ask("DELETE", f"{path}?purge=true", **who, Penstock_Tenant=tenant)
            assert removed.status == 204, removed
    found = [(one["who"], one["act"], one["result"]) for one in entries(broker)[1:]]
    assert found == [
        ("", "PUT /v1/tenants/acme", "201"),
        ("", "PUT /v1/tenants/north", "201"),
        ("root", "DELETE /v1/tenants/acme", "409"),
        ("root", "DELETE /v1/tenants/acme", "204"),
        ("north/ann", "DELETE /v1/tenants/north", "409"),
        ("north/ann", "DELETE /v1/tenants/north", "204"),
    ]


def test_what_an_operator_does_in_another_tenant_is_recorded_there_with_its_own_tenant(
    broker: Served,
) -> None:
    with local(broker) as operator:
        assert operator.ask("PUT", "/v1/users/root", {"roles": ["operator"]}).status == 200
        assert operator.ask("PUT", "/v1/tenants/acme", {}).status == 201
    root = as_user("root", SECRET)
    with Asking(broker.http_port) as client:
        for topic in ("orders", "orders"):
            client.ask("PUT", f"/v1/topics/{topic}", {}, **root, Penstock_Tenant="acme")
        path = f"{AUDIT}/records?from=earliest"
        answer = client.ask("GET", path, **root, Penstock_Tenant="acme")
    found = [json.loads(record["payload"]) for record in answer.json["records"]]
    assert [one["who"] for one in found] == ["default/root"] * 2


@pytest.mark.parametrize("flags", [(), ("--purge",)])
def test_the_command_tenant_remove_is_recorded(broker: Served, flags: tuple[str, ...]) -> None:
    def penstock(*arguments: str) -> None:
        command = [sys.executable, "-m", "penstock.cli.main", *arguments, "--at", str(broker.data)]
        subprocess.run(command, check=True, capture_output=True)

    penstock("tenant", "add", "acme")
    penstock("tenant", "remove", "acme", *flags)
    last = entries(broker)[-1]
    assert (last["from"], last["act"], last["result"]) == (
        "data directory",
        "DELETE /v1/tenants/acme",
        "204",
    )
