"""`/v1/clients`: whom does the broker remember, how did they log in, and can they be forgotten?"""

from __future__ import annotations

import hashlib
import ssl
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from penstock.broker.access import key_id_of
from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Connack, Connect
from penstock.mqtt.reasons import Reason
from tests.doors.certificates import Authority
from tests.doors.hosted import Hosted
from tests.doors.login.test_certificates import serve
from tests.doors.login.test_mqtt_tls import TlsWire
from tests.doors.login.test_mqtt_tls import client as trusting
from tests.doors.served import Served
from tests.doors.tokens import Issuer
from tests.doors.users import add_users
from tests.doors.wire import Wire
from tests.http.access.test_http_access import basic
from tests.http.asking import Asking
from tests.tenants.test_tenants_apart import Asker, Client, add_tenants


def path_of(client_id: str) -> str:
    return f"/v1/clients/{quote(client_id, safe='')}"


def show(client: Asking, client_id: str, **login: str) -> dict[str, Any]:
    answer = client.ask("GET", path_of(client_id), **login)
    assert answer.status == 200, answer
    found: dict[str, Any] = answer.json
    return found


def visit(broker: Hosted, client_id: str, *, clean: bool = True) -> None:
    with Wire(broker.port, client_id) as wire:
        wire.connect(clean=clean)
        wire.disconnect()
    broker.wait_idle()


def now_us() -> int:
    return time.time_ns() // 1_000


def test_a_client_is_known_from_its_connect_on_and_after_it_left(
    broker: Hosted, client: Asking, name: str
) -> None:
    start = now_us()
    with Wire(broker.port, name) as wire:
        wire.connect()
        here = show(client, name)
        assert start <= here["first_seen"] == here["last_seen"] <= now_us()
        wire.disconnect()
    broker.wait_idle()
    away = show(client, name)
    assert away == {
        "client_id": name,
        "owner": "",
        "credential_type": "none",
        "credential": "",
        "certificate_name": "",
        "last_address": "127.0.0.1",
        "first_seen": here["first_seen"],
        "last_seen": away["last_seen"],
        "is_connected": False,
        "has_session": False,
    }
    assert here == away | {"is_connected": True, "last_seen": here["last_seen"]}
    assert here["last_seen"] < away["last_seen"] <= now_us()


def test_first_seen_stays_when_a_client_comes_again(
    broker: Hosted, client: Asking, name: str
) -> None:
    visit(broker, name)
    before = show(client, name)
    visit(broker, name)
    visit(broker, name)
    after = show(client, name)
    assert after["first_seen"] == before["first_seen"]
    assert after["last_seen"] > before["last_seen"]


def test_a_client_id_that_the_broker_chose_is_not_remembered(
    broker: Hosted, client: Asking
) -> None:
    with Wire(broker.port, "", MQTT_5) as wire:
        assigned = wire.connect().properties.assigned_client_identifier
        assert assigned is not None
        assert client.ask("GET", path_of(assigned)).status == 404
    broker.wait_idle()
    assert client.ask("GET", path_of(assigned)).status == 404


def test_a_very_long_client_id_is_not_remembered(broker: Hosted, client: Asking) -> None:
    for chars, status in ((256, 200), (257, 404)):
        visit(broker, "x" * chars)
        assert client.ask("GET", path_of("x" * chars)).status == status


def test_clients_are_listed_page_by_page(broker: Hosted, client: Asking, name: str) -> None:
    ids = [f"{name}-{at}" for at in range(5)]
    for client_id in ids:
        visit(broker, client_id)
    listed: list[str] = []
    after: str | None = ""
    while after is not None:
        page = client.ask("GET", f"/v1/clients?limit=2&after={quote(after)}").json
        assert len(page["clients"]) <= 2
        listed += [one["client_id"] for one in page["clients"]]
        after = page["after"]
    assert sorted(listed) == listed and set(ids) <= set(listed)


def test_a_client_that_was_forgotten_is_unknown_until_it_comes_again(
    broker: Hosted, client: Asking, name: str
) -> None:
    visit(broker, name)
    assert client.ask("DELETE", path_of(name)).status == 204
    gone = client.ask("DELETE", path_of(name))
    assert gone.status == 404 and "is not known" in gone.detail
    assert client.ask("GET", path_of(name)).status == 404
    forgotten_at = now_us()
    visit(broker, name)
    assert show(client, name)["first_seen"] >= forgotten_at


def test_a_connected_client_is_not_forgotten(broker: Hosted, client: Asking, name: str) -> None:
    with Wire(broker.port, name) as wire:
        wire.connect()
        answer = client.ask("DELETE", path_of(name))
        assert answer.status == 409 and "is connected: close its connection" in answer.detail
        assert show(client, name)["is_connected"]


def test_a_client_with_a_session_is_not_forgotten(
    broker: Hosted, client: Asking, name: str
) -> None:
    visit(broker, name, clean=False)
    answer = client.ask("DELETE", path_of(name))
    assert answer.status == 409 and "has a session: delete it first" in answer.detail
    assert show(client, name)["has_session"]
    client.ask("POST", f"/v1/sessions/{name}/kick", {"forget": True})
    assert client.ask("DELETE", path_of(name)).status == 204


def test_client_ids_may_hold_any_letter(broker: Hosted, client: Asking) -> None:
    for client_id in ("a/b", "ü ?&", "100%"):
        visit(broker, client_id)
        assert show(client, client_id)["client_id"] == client_id
        assert client.ask("DELETE", path_of(client_id)).status == 204


def log_in(broker: Hosted, client_id: str, user: str | None, password: str) -> None:
    with Wire(broker.port, client_id, MQTT_5) as wire:
        wire.send(Connect(client_id, True, 0, None, user, password.encode(), MQTT_5))
        assert wire.expect(Connack).reason == Reason.SUCCESS


def test_the_credential_is_remembered_by_its_type_and_id_and_no_secret_is(
    tmp_path: Path,
) -> None:
    (tmp_path / "issuer").mkdir()
    issuer = Issuer(tmp_path / "issuer")
    add_users(tmp_path / "data", alice="wonder")
    with (
        Hosted(tmp_path / "data", access__allow_anonymous=True, **issuer.settings) as broker,
        Asking(broker.ports["http"]) as client,
    ):
        login = {"Authorization": basic("alice", "wonder")}
        key = client.ask("POST", "/v1/users/alice/keys", **login).json["key"]
        log_in(broker, "by password", "alice", "wonder")
        log_in(broker, "by password again", "alice", "wonder")
        log_in(broker, "by key", "key", key)
        log_in(broker, "by token", None, issuer.sign("carol"))
        with Wire(broker.port, "by nothing") as wire:
            wire.connect()
        broker.wait_idle()
        answer = client.ask("GET", "/v1/clients", **login)
        shown = {
            one["client_id"]: (one["owner"], one["credential_type"], one["credential"])
            for one in answer.json["clients"]
        }
        assert shown == {
            "by key": ("alice", "key", key_id_of(key)),
            "by nothing": ("", "none", ""),
            "by password": ("alice", "password", ""),
            "by password again": ("alice", "password", ""),
            "by token": ("carol", "token", ""),
        }
        for secret in ("wonder", key):
            assert secret.encode() not in answer.body


def test_a_certificate_is_remembered_by_fingerprint_and_name(tmp_path: Path) -> None:
    (tmp_path / "certificates").mkdir()
    authority = Authority(tmp_path / "certificates")
    add_users(tmp_path / "data", alice="a")
    with serve(tmp_path, authority) as broker, Asking(broker.ports["http"]) as client:
        chain = authority.sign("alice")
        with TlsWire(broker.ports["mqtts"], trusting(authority, *chain), "pump") as wire:
            wire.connect()
            shown = show(client, "pump", Authorization=basic("alice", "a"))
        der = ssl.PEM_cert_to_DER_cert(chain[0].read_text())
        assert (shown["owner"], shown["credential_type"]) == ("alice", "certificate")
        assert shown["credential"] == hashlib.sha256(der).hexdigest()
        assert shown["certificate_name"] == "alice"


def test_a_client_of_a_removed_user_stays_known(tmp_path: Path) -> None:
    add_users(tmp_path, alice="a", bob="b")
    with Hosted(tmp_path) as broker, Asking(broker.ports["http"]) as client:
        login = {"Authorization": basic("alice", "a")}
        log_in(broker, "bobs", "bob", "b")
        assert client.ask("DELETE", "/v1/users/bob", **login).status == 204
        assert show(client, "bobs", **login)["owner"] == "bob"


def test_a_client_that_was_refused_is_not_remembered(tmp_path: Path) -> None:
    add_users(tmp_path, alice="a")
    with Hosted(tmp_path) as broker, Asking(broker.ports["http"]) as client:
        with Wire(broker.port, "stranger", MQTT_5) as wire:
            wire.send(Connect("stranger", version=MQTT_5))
            assert wire.expect(Connack).reason == Reason.NOT_AUTHORIZED
        login = {"Authorization": basic("alice", "a")}
        assert client.ask("GET", "/v1/clients", **login).json == {"clients": [], "after": None}


def test_each_tenant_has_its_own_clients(tmp_path: Path) -> None:
    with Hosted(tmp_path) as broker:
        add_tenants(broker)
        with Client(broker, "acme", "pump"), Asker(broker, "acme") as own:
            (pump,) = own.get("GET", "/v1/clients")["clients"]
            assert (pump["client_id"], pump["owner"]) == ("pump", "ann")
            with Asker(broker, "globex") as other:
                assert other.get("GET", "/v1/clients")["clients"] == []
                assert other.get("GET", "/v1/clients/pump") == 404
                assert other.get("DELETE", "/v1/clients/pump") == 404


@pytest.mark.parametrize("is_killed", [True, False])
def test_clients_are_known_after_a_restart(tmp_path: Path, is_killed: bool) -> None:
    broker = Served(tmp_path / "data").start()
    with Wire(broker.port, "early") as wire, Asking(broker.http_port) as client:
        wire.connect()
        before = show(client, "early")  # saves it: a kill may lose what no checkpoint has
    if is_killed:
        broker.kill()
    else:
        broker.stop()
    with broker, Asking(broker.http_port) as client:
        after = show(client, "early")
        assert after["first_seen"] == before["first_seen"]
        assert not after["is_connected"]
