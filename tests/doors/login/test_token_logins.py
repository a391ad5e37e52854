"""Tokens and keys over the doors: who comes in, as whom, and until when?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from penstock.core.access import parse_rule
from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import Connack, Connect, Disconnect, Will
from penstock.mqtt.reasons import Reason
from tests.doors.hosted import Hosted
from tests.doors.tokens import Issuer, unsigned
from tests.doors.users import add_users
from tests.doors.wire import Wire
from tests.http.asking import Asking
from tests.http.events import Events
from tests.project.core_install import run_core
from tests.waiting import wait_until

BAD = Reason.BAD_USER_NAME_OR_PASSWORD


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    return Issuer(tmp_path_factory.mktemp("issuer"))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, issuer: Issuer) -> Iterator[Hosted]:
    """With the user alice, and tokens."""
    data = tmp_path_factory.mktemp("data")
    add_users(data, alice="wonder")
    with Hosted(data, **issuer.settings) as hosted:
        yield hosted


def log_in(
    port: int,
    user: str | None,
    password: str,
    client_id: str = "",
    version: int = MQTT_5,
) -> tuple[Wire, Connack]:
    wire = Wire(port, client_id, version)
    wire.send(Connect(client_id, True, 0, None, user, password.encode(), version))
    return wire, wire.expect(Connack)


def reason(broker: Hosted, user: str | None, password: str, client_id: str = "") -> Reason:
    wire, answer = log_in(broker.port, user, password, client_id)
    wire.close()
    return answer.reason


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def status(broker: Hosted, token: str) -> int:
    with Asking(broker.ports["http"]) as client:
        return client.ask("GET", "/v1/topics", **bearer(token)).status


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
def test_a_token_is_the_password_of_its_user_or_of_an_empty_name(
    broker: Hosted, issuer: Issuer, version: int
) -> None:
    token = issuer.sign("carol")
    for user in ("carol", "", "default/carol"):
        wire, answer = log_in(broker.port, user, token, f"c{version}", version)
        assert answer.reason == Reason.SUCCESS
        session = broker.call(lambda: broker.exchange.sessions.connected[f"c{version}"])
        assert session.outbox is not None and session.outbox.principal.user == "carol"  # type: ignore[attr-defined]
        wire.close()
    wire, answer = log_in(broker.port, "alice", token, "", version)
    assert answer.reason in (BAD, 4)


def test_a_token_without_a_user_name_is_enough_in_mqtt_5(broker: Hosted, issuer: Issuer) -> None:
    assert reason(broker, None, issuer.sign("carol")) == Reason.SUCCESS


def test_passwords_work_beside_tokens(broker: Hosted) -> None:
    assert reason(broker, "alice", "wonder") == Reason.SUCCESS
    assert reason(broker, "alice", "wander") == BAD


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": 1},
        {"nbf": 4_000_000_000},
        {"iss": "https://evil.example"},
        {"aud": "others"},
        {"tenant": "elsewhere"},
        {"sub": "a:b"},
    ],
)
def test_a_wrong_token_is_refused_by_every_door(
    broker: Hosted, issuer: Issuer, claims: dict[str, Any]
) -> None:
    token = issuer.sign(claims.pop("sub", "alice"), **claims)
    assert reason(broker, "alice", token) == reason(broker, "", token) == BAD
    assert status(broker, token) == 401
    assert broker.call(lambda: broker.exchange.engine.metrics.refused["login"]) > 0


def test_a_token_without_a_signature_is_refused_by_every_door(
    broker: Hosted, issuer: Issuer
) -> None:
    claims = {"sub": "alice", "iss": "https://issuer.example", "aud": "penstock", "exp": 4e9}
    token = unsigned(claims, alg="none")
    assert reason(broker, "alice", token) == BAD
    assert status(broker, token) == 401


def test_a_token_for_one_client_connects_only_as_that_client(
    broker: Hosted, issuer: Issuer
) -> None:
    token = issuer.sign("carol", mqtt_client_id="pump-1")
    assert reason(broker, "", token, "pump-1") == Reason.SUCCESS
    for client_id in ("pump-2", "", "PUMP-1", "pump-1/#"):
        _, answer = log_in(broker.port, "", token, client_id)
        assert answer.reason == BAD
        assert "'pump-1'" in (answer.properties.reason_string or "")


def test_a_bearer_may_ask_over_http(broker: Hosted, issuer: Issuer) -> None:
    token = issuer.sign("carol")
    with Asking(broker.ports["http"]) as client:
        assert client.ask("GET", "/v1/topics", **bearer(token)).status == 200
        answer = client.ask("GET", "/v1/topics", **bearer(token[:-3] + "AAA"))
        assert (answer.status, "the token is not accepted" in answer.detail) == (401, True)


def test_a_client_is_sent_away_when_its_token_expires(broker: Hosted, issuer: Issuer) -> None:
    token = issuer.sign("carol", exp=time.time() + 1.5)
    wire, answer = log_in(broker.port, "", token, "short")
    assert answer.reason == Reason.SUCCESS
    wire.publish("a", b"1", 1)
    left = wire.expect(Disconnect)
    assert left.reason == Reason.MAXIMUM_CONNECT_TIME
    assert "token has expired" in (left.properties.reason_string or "")
    assert wire.is_closed()
    assert reason(broker, "", token) == BAD


def test_before_mqtt_5_the_connection_is_just_closed(broker: Hosted, issuer: Issuer) -> None:
    token = issuer.sign("carol", exp=time.time() + 1)
    wire, _ = log_in(broker.port, "carol", token, "short311", MQTT_3_1_1)
    assert wire.is_closed()


def test_a_stream_ends_when_its_token_expires(broker: Hosted, issuer: Issuer) -> None:
    token = issuer.sign("carol", exp=time.time() + 1.5)
    port = broker.ports["http"]
    lasting = bearer(issuer.sign("carol", roles=["admin"]))
    with Asking(port) as client:
        client.ask("PUT", "/v1/topics/t", {}, **lasting)
        other = Events(port, "/v1/topics/t/stream", **lasting)
        events = Events(port, "/v1/topics/t/stream", **bearer(token))
        assert events.next().kind == other.next().kind == "start"
        with pytest.raises((EOFError, ConnectionError, AssertionError)):
            events.next()
        assert status(broker, token) == 401
        client.ask("POST", "/v1/topics/t/records", {"payload": "x"}, **lasting)
        assert other.records(1)[0]["payload"] == "x"


def test_a_websocket_ends_when_its_token_expires(broker: Hosted, issuer: Issuer) -> None:
    port = broker.ports["http"]
    with Asking(port) as client:
        client.ask("PUT", "/v1/topics/w", {}, **bearer(issuer.sign("carol", roles=["admin"])))
    headers = bearer(issuer.sign("carol", exp=time.time() + 1.5))
    url = f"ws://127.0.0.1:{port}/v1/topics/w/stream"
    with connect(url, additional_headers=headers) as socket:
        assert "start" in str(socket.recv(10))
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(10)
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 1008


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "records?from=latest&wait=60", b""),
        ("POST", "groups/g/fetch", {"wait": 60}),
    ],
)
def test_a_request_that_waits_is_answered_when_its_token_expires(
    broker: Hosted, issuer: Issuer, method: str, path: str, body: Any
) -> None:
    port = broker.ports["http"]
    broker.run(lambda server: server.broker.create_topic("waited", exist_ok=True))
    token = issuer.sign("carol", exp=time.time() + 1.5)
    with Asking(port) as client:
        answer = client.ask(method, f"/v1/topics/waited/{path}", body, **bearer(token))
        assert answer.status == 401
        assert "the token has expired" in answer.detail
        lasting = bearer(issuer.sign("carol"))
        assert client.ask("GET", "/v1/topics/waited/records", **lasting).json["records"] == []


def may(broker: Hosted, token: str, method: str, path: str) -> int:
    with Asking(broker.ports["http"]) as client:
        return client.ask(method, path, {} if method == "PUT" else b"", **bearer(token)).status


def test_a_token_has_the_roles_it_names_and_never_those_of_a_user_of_its_name(
    broker: Hosted, issuer: Issuer
) -> None:
    broker.run(lambda server: server.broker.create_topic("roles", exist_ok=True))
    assert broker.exchange.engine.access.user("alice").roles == ("admin",)
    for user in ("alice", "carol"):
        for claims, (lists, reads) in (
            ({}, (403, 200)),  # the role `client`
            ({"roles": []}, (403, 403)),  # no role at all
            ({"roles": "reader unknown"}, (403, 200)),
            ({"roles": ["admin"]}, (200, 200)),
        ):
            token = issuer.sign(user, **claims)
            assert may(broker, token, "GET", "/v1/users") == lists, claims
            assert may(broker, token, "GET", "/v1/topics/roles/records") == reads, claims
            assert may(broker, token, "GET", "/v1/tenants") == 403


def test_the_settings_say_which_roles_a_token_has_that_names_none(
    tmp_path: Path, issuer: Issuer
) -> None:
    for roles, published, read in (("reader", 403, 200), ("", 403, 403), ("sensor", 403, 403)):
        with Hosted(tmp_path, **issuer.settings, access__jwt_default_roles=roles) as broker:
            broker.run(lambda server: server.broker.create_topic("t", exist_ok=True))
            token = issuer.sign("carol")
            with Asking(broker.ports["http"]) as client:
                answer = client.ask("POST", "/v1/topics/t/records", {"payload": 1}, **bearer(token))
                assert answer.status == published
                assert client.ask("GET", "/v1/topics/t/records", **bearer(token)).status == read


def test_a_token_that_names_a_tenant_is_good_in_that_tenant_only(
    tmp_path: Path, issuer: Issuer
) -> None:
    with Hosted(tmp_path, **issuer.settings) as broker:
        operator = issuer.sign("op", roles=["operator"])
        assert may(broker, operator, "PUT", "/v1/tenants/acme") == 201
        admin = issuer.sign("carol", tenant="acme", roles=["admin"])
        assert may(broker, admin, "PUT", "/v1/topics/theirs") == 201
        assert may(broker, admin, "GET", "/v1/topics/theirs") == 200
        assert may(broker, operator, "GET", "/v1/topics/theirs") == 404
        assert may(broker, admin, "GET", "/v1/tenants") == 403
        reader, answer = log_in(broker.port, "acme/carol", admin, "c")
        assert answer.reason == Reason.SUCCESS
        reader.subscribe("a")
        for token, payload in ((issuer.sign("carol"), b"no"), (admin, b"yes")):
            wire, answer = log_in(broker.port, "", token, "p")
            assert answer.reason == Reason.SUCCESS
            wire.publish("a", payload, 1)
            wire.close()
        assert reader.receive().payload == b"yes"
        assert reader.settle() == []
        assert reason(broker, "globex/carol", admin) == BAD
        events = Events(broker.ports["http"], "/v1/topics/theirs/stream", **bearer(admin))
        assert events.next().kind == "start"
        assert may(broker, operator, "DELETE", "/v1/tenants/acme?purge=true") == 204
        reader.expect(Disconnect)
        with pytest.raises((EOFError, ConnectionError, AssertionError)):
            events.next()
        assert status(broker, admin) == 401
        assert reason(broker, "", admin) == BAD


def test_bearers_who_left_are_forgotten_and_those_who_stay_are_not(
    tmp_path: Path, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Hosted(tmp_path, **issuer.settings) as broker:
        access = broker.exchange.engine.access
        monkeypatch.setattr(access.known, "_passing_max", 20)
        monkeypatch.setattr(access.known, "_room", 20)
        broker.run(lambda server: server.broker.create_topic("t"))
        reader, _ = log_in(broker.port, "", issuer.sign("first"), "first")
        reader.subscribe("a")
        events = Events(
            broker.ports["http"], "/v1/topics/t/stream", **bearer(issuer.sign("second"))
        )
        assert events.next().kind == "start"
        for number in range(100):
            assert status(broker, issuer.sign(f"user {number}")) == 200
        assert broker.call(lambda: len(access.known)) <= 22
        rule = parse_rule("deny receive,read #")
        for user in ("first", "second"):
            broker.run(lambda server, one=user: access.roles.add_rules([rule], user=one))
        with Asking(broker.ports["http"]) as client:
            login = bearer(issuer.sign("publisher", roles=["admin"]))
            for topic in ("t", "default"):
                client.ask("PUT", f"/v1/topics/{topic}", {}, **login)
                body = {"payload": "secret", "name": "a"}
                client.ask("POST", f"/v1/topics/{topic}/records", body, **login)
        assert reader.settle() == [], "its rules are known, because it is still there"
        broker.run(lambda server: access.roles.remove_rule(2))
        broker.run(lambda server: server.broker.publish("x", "t"))
        assert [one["payload"] for one in events.records(1)] == ["x"]


def test_with_tokens_nobody_comes_in_without_a_login(tmp_path: Path, issuer: Issuer) -> None:
    settings = issuer.settings | {"mqtt__listen": "0.0.0.0:0"}
    with Hosted(tmp_path, **settings) as broker:
        with Wire(broker.port, "", MQTT_5) as wire:
            wire.send(Connect(""))
            assert wire.expect(Connack).reason == Reason.NOT_AUTHORIZED
        assert reason(broker, "", issuer.sign("carol")) == Reason.SUCCESS
        with Asking(broker.ports["http"]) as client:
            assert client.ask("GET", "/v1/topics").status == 401


def test_new_keys_count_at_once(tmp_path: Path) -> None:
    mine = Issuer(tmp_path)
    mine.write("RS256")
    with Hosted(tmp_path / "data", **mine.settings) as broker:
        old, new = mine.sign("a", algorithm="RS256"), mine.sign("a", algorithm="EdDSA")
        assert (reason(broker, "", old), reason(broker, "", new)) == (Reason.SUCCESS, BAD)
        mine.write("EdDSA")
        assert (reason(broker, "", old), reason(broker, "", new)) == (BAD, Reason.SUCCESS)


def test_without_jwt_keys_a_token_is_just_a_wrong_password(tmp_path: Path, issuer: Issuer) -> None:
    add_users(tmp_path, alice="wonder")
    with Hosted(tmp_path) as broker:
        token = issuer.sign("alice")
        assert reason(broker, "alice", token) == BAD
        assert status(broker, token) == 401


@pytest.mark.parametrize("missing", ["jwt_issuer", "jwt_audience"])
def test_keys_without_issuer_or_audience_are_refused_at_start(
    tmp_path: Path, issuer: Issuer, missing: str
) -> None:
    with pytest.raises(Exception, match="needs jwt_issuer and jwt_audience"):
        Hosted(tmp_path, **issuer.settings | {f"access__{missing}": ""})


def test_without_the_packages_the_start_says_what_to_install(
    tmp_path: Path, issuer: Issuer
) -> None:
    config = tmp_path / "p.toml"
    config.write_text(
        f"[access]\njwt_keys = {str(issuer.file)!r}\njwt_issuer = 'i'\njwt_audience = 'a'\n"
    )
    ended = run_core("penstock", "serve", "--config", str(config), "--check", cwd=tmp_path)
    assert ended.code == 1 and "pip install 'penstock[jwt]'" in ended.err


def test_a_key_is_the_password_of_the_user_called_key(tmp_path: Path) -> None:
    add_users(tmp_path, alice="wonder", key="lock")
    with Hosted(tmp_path) as broker:
        access = broker.exchange.engine.access
        made = broker.run(lambda server: access.make_key("alice"))
        wire, answer = log_in(broker.port, "key", made, "k1")
        assert answer.reason == Reason.SUCCESS
        session = broker.call(lambda: broker.exchange.sessions.connected["k1"])
        assert session.outbox is not None and session.outbox.principal.user == "alice"  # type: ignore[attr-defined]
        wire.close()
        assert reason(broker, "key", "lock") == Reason.SUCCESS, "a user may be called so, too"
        for user, password in (("key", made + "x"), ("alice", made), ("key", "psk_"), ("key", "")):
            assert reason(broker, user, password) == BAD
        (row,) = access.access_keys()
        broker.run(lambda server: access.revoke_key(row.key_id))
        assert reason(broker, "key", made) == BAD


@pytest.mark.parametrize("odd", ["x,admin", "x\n", "\ud800", "\0", ""])
def test_what_no_role_can_be_called_gives_a_token_nothing_later_either(
    broker: Hosted, issuer: Issuer, odd: str
) -> None:
    access = broker.exchange.engine.access
    broker.run(lambda server: access.roles.add("narrow", [parse_rule("allow publish odd/#")]))
    token = issuer.sign("dave", roles=["narrow", odd])
    with log_in(broker.port, "alice", "wonder", "reader")[0] as reader:
        reader.subscribe("odd/#", qos=1)
        wire = Wire(broker.port, "odd", MQTT_5)
        will = Will("odd/will", b"x", 1)
        wire.send(Connect("odd", True, 0, will, "dave", token.encode(), MQTT_5))
        assert wire.expect(Connack).reason == Reason.SUCCESS
        broker.run(lambda server: access.roles.remove("narrow"))
        wire.close()
        wait_until(lambda: not broker.call(lambda: len(broker.door.worlds["default"].wills._held)))
        reader.publish("odd/end", b"", 1)
        assert reader.receive().name == "odd/end"
