"""Does every administrative route leave a record in the topic `$audit` that says what it did?

A route that changes something is administrative, or it is listed here as one with which clients
publish and read. A new route is in neither list, so its author has to decide.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Connack, Connect
from tests.access.test_audit import AUDIT, SECRET, as_user, entries, local
from tests.doors.hosted import Hosted
from tests.doors.served import Served
from tests.doors.users import add_users
from tests.doors.wire import Wire, kept
from tests.http.asking import Asking
from tests.waiting import wait_until

# With these, clients publish, read and keep their own place.
NOT_ADMINISTRATIVE = {
    "GET /mqtt",
    "POST /consumer/register",
    "POST /producer/register",
    "POST /producer/produce",
    "GET /consumer/consume",
    "POST /v1/topics/{topic}/records",
    "PUT /v1/topics/{topic}/consumers/{consumer}",
    "POST /v1/topics/{topic}/consumers/{consumer}/fetch",
    "POST /v1/topics/{topic}/consumers/{consumer}/commit",
    "POST /v1/topics/{topic}/groups/{group}/fetch",
    "POST /v1/topics/{topic}/groups/{group}/ack",
    "POST /v1/topics/{topic}/groups/{group}/nack",
    "POST /v1/topics/{topic}/groups/{group}/extend",
    "POST /v1/staged",
    "POST /v1/staged/handover",
    "POST /v1/staged/discard",
}


class Act(NamedTuple):
    route: str
    path: str  # with its query
    body: Any = None
    details: str = ""  # what the record says besides method and path


# In this order, each works.
ACTS = [
    Act("POST /topics", "/topics", {"topic_name": "seeded"}, '"topic_name":"seeded"'),
    Act("PUT /v1/topics/{topic}", "/v1/topics/t", {"retention_age": "5d"}, '"retention_age":"5d"'),
    Act("PATCH /v1/topics/{topic}", "/v1/topics/t", {"durability": "os"}, '"durability":"os"'),
    Act("POST /v1/bindings", "/v1/bindings", {"filter": "a/#", "topic": "t"}, '"filter":"a/#"'),
    Act("DELETE /v1/bindings", "/v1/bindings?filter=a/%23", details="filter=a/%23"),
    Act("POST /v1/topics/{topic}/erase", "/v1/topics/t/erase", {"names": "a/#"}, '"names":"a/#"'),
    Act(
        "PUT /v1/topics/{topic}/groups/{group}",
        "/v1/topics/t/groups/g",
        {"lease_s": 9},
        '"lease_s":9',
    ),
    Act(
        "PATCH /v1/topics/{topic}/groups/{group}",
        "/v1/topics/t/groups/g",
        {"lease_s": 8},
        '"lease_s":8',
    ),
    Act("POST /v1/topics/{topic}/groups/{group}/redrive", "/v1/topics/t/groups/g/redrive"),
    Act("DELETE /v1/topics/{topic}/groups/{group}", "/v1/topics/t/groups/g"),
    Act(
        "POST /v1/topics/{topic}/consumers/{consumer}/seek",
        "/v1/topics/kept/consumers/c/seek",
        {"from": "earliest"},
        '"from":"earliest"',
    ),
    Act("DELETE /v1/topics/{topic}/consumers/{consumer}", "/v1/topics/kept/consumers/c"),
    Act("DELETE /v1/topics/{topic}", "/v1/topics/t"),
    Act("POST /v1/sessions/{client_id}/kick", "/v1/sessions/pump/kick", {"forget": True}, "forget"),
    Act("DELETE /v1/sessions/{client_id}", "/v1/sessions/meter"),
    Act("DELETE /v1/clients/{client_id}", "/v1/clients/pump"),
    Act("PUT /v1/roles/{role}", "/v1/roles/r", {"rules": ["allow read a/#"]}, "allow read a/#"),
    Act(
        "PUT /v1/users/{user}",
        "/v1/users/bob",
        {"password": "another secret", "roles": ["r"]},
        '"roles":["r"]',
    ),
    Act("POST /v1/users/{user}/keys", "/v1/users/bob/keys", {"roles": ["r"]}, '"roles":["r"]'),
    Act("DELETE /v1/keys/{key_id}", "/v1/keys/{key_id}"),
    Act(
        "POST /v1/rules",
        "/v1/rules",
        {"rules": ["deny read hr/#"], "user": "bob"},
        '"rules":["deny read hr/#"],"user":"bob"',
    ),
    Act("DELETE /v1/rules/{rule_id}", "/v1/rules/{rule_id}"),
    Act("DELETE /v1/users/{user}", "/v1/users/bob"),
    Act("DELETE /v1/roles/{role}", "/v1/roles/r"),
    Act("POST /v1/reload", "/v1/reload"),
    Act("PUT /v1/tenants/{tenant}", "/v1/tenants/acme", {"last_name": "Ace"}, '"last_name":"Ace"'),
    Act("DELETE /v1/tenants/{tenant}", "/v1/tenants/acme"),
    Act("POST /v1/snapshots", "/v1/snapshots"),
    Act("DELETE /v1/snapshots/{snapshot}", "/v1/snapshots/{snapshot}"),
    Act("POST /v1/traces", "/v1/traces", {"names": "a/b"}, '"names":"a/b"'),
    Act("DELETE /v1/traces/{trace}", "/v1/traces/{trace}"),
]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Served]:
    add_users(tmp_path / "data", root=SECRET)
    with Served(tmp_path / "data") as served:
        yield served


def test_every_route_that_changes_something_is_in_one_of_the_lists(tmp_path: Path) -> None:
    with Hosted(tmp_path) as broker:
        changing = [one for one in broker.http.router if not one.is_safe]
        administrative = {
            f"{one.method} {one.pattern}" for one in changing if one.is_administrative
        }
        others = {f"{one.method} {one.pattern}" for one in changing if not one.is_administrative}
    assert others == NOT_ADMINISTRATIVE
    of_nodes = {"POST /v1/nodes/{node}/drain"}  # tests/cluster/test_nodes.py has nodes
    assert administrative == {one.route for one in ACTS} | of_nodes


def test_every_administrative_route_leaves_a_record_with_what_was_asked(broker: Served) -> None:
    with local(broker) as operator:
        assert operator.ask("PUT", "/v1/topics/kept").status == 201
        assert operator.ask("PUT", "/v1/topics/kept/consumers/c").status == 201
        for client_id in ("pump", "meter"):
            with Wire(broker.port, client_id, MQTT_5) as wire:
                login = Connect(
                    client_id, False, username="root", password=SECRET.encode(), properties=kept()
                )
                wire.send(login)
                assert wire.expect(Connack).reason == 0
        made: dict[str, str] = {}
        skipped = len(entries(broker))
        for act in ACTS:
            method = act.route.partition(" ")[0]
            if "{key_id}" in act.path:
                (key,) = operator.ask("GET", "/v1/keys").json["keys"]
                made["key_id"] = key["key_id"]
            path = act.path.format_map(made)
            answer = operator.ask(method, path, b"" if act.body is None else act.body)
            assert answer.status in (200, 201, 204), (act.route, answer)
            if answer.status == 201:
                made |= _ids(act.route, answer.json)
            found = [one for one in entries(broker)[skipped:] if one["act"] == _act(method, path)]
            assert found, f"{act.route} is not recorded"
            assert found[-1]["result"] == str(answer.status), act.route
            assert act.details in found[-1].get("details", ""), act.route
    assert "another secret" not in json.dumps(entries(broker))


def _act(method: str, path: str) -> str:
    return f"{method} {path.partition('?')[0]}"


def _ids(route: str, answer: Any) -> dict[str, str]:
    """What later acts of the list name."""
    if route.endswith("/rules"):
        return {"rule_id": str(answer["rules"][0]["id"])}
    if route.endswith("/snapshots"):
        return {"snapshot": answer["snapshot"]}
    return {"trace": str(answer["trace"])} if route.endswith("/traces") else {}


def test_what_is_refused_is_recorded_without_fields_that_nobody_asked_for(broker: Served) -> None:
    with Asking(broker.http_port) as client:
        body = {"passwort": "a slip of the pen", "roles": ["client"]}
        answer = client.ask("PUT", "/v1/users/eve", body, **as_user("root", SECRET))
        assert answer.status == 400
        for count in (10, 1_000):
            long = {"rules": [f"allow read {'x' * 100}/{at}" for at in range(count)]}
            path = f"/v1/roles/long{count}"
            assert client.ask("PUT", path, long, **as_user("root", SECRET)).status == 201
        broken = client.ask("PUT", "/v1/roles/m", b"{", **as_user("root", SECRET))
        assert broken.status == 400
    first, second, third, fourth = entries(broker)
    assert first["details"] == '{"roles":["client"]}' and "slip" not in json.dumps(first)
    assert len(second["details"]) == 500 and second["details"].endswith("…")
    assert re.fullmatch("a body of 1.., *... bytes", third["details"])
    assert fourth["details"] == ""


def test_a_reload_by_signal_is_recorded(broker: Served) -> None:
    os.kill(broker.pid, signal.SIGHUP)
    with Asking(broker.http_port) as client:
        login = as_user("root", SECRET)
        wait_until(lambda: client.ask("GET", AUDIT, **login).status == 200)
    (record,) = entries(broker)
    assert (record["from"], record["act"], record["result"]) == ("signal", "reload", "done")


def test_commands_read_and_alter_the_audit_topic(broker: Served) -> None:
    def penstock(*arguments: str) -> str:
        command = [sys.executable, "-m", "penstock.cli.main", *arguments, "--at", str(broker.data)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    penstock("topic", "create", "orders")
    shown = penstock("consume", "$audit", "--from", "earliest")
    assert json.loads(shown)["act"] == "PUT /v1/topics/orders"
    assert "retention 30d" in penstock("topic", "alter", "$audit", "--retention-age", "30d")
    assert "offsets     0 to 1" in penstock("topic", "info", "$audit")
