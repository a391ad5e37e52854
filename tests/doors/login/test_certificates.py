"""Certificates as logins: whose they are, when they count no more, and files that change."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect as websocket
from websockets.typing import Subprotocol

from penstock.broker.settings import topic_settings
from penstock.log.files.directory import SOCKET_NAME
from penstock.model import unix_socket
from penstock.model.errors import InvalidSetting
from penstock.mqtt.encode import encode
from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Connack, Connect, Disconnect, Will
from penstock.mqtt.reasons import Reason
from tests.doors.certificates import DAY, Authority
from tests.doors.hosted import Hosted
from tests.doors.login.test_mqtt_tls import TlsWire, client, connect
from tests.doors.tokens import Issuer
from tests.doors.users import add_users
from tests.doors.wire import WAIT_S
from tests.http.asking import Asking
from tests.http.events import Events
from tests.waiting import wait_until


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    (tmp_path / "certificates").mkdir()
    return Authority(tmp_path / "certificates")


def serve(tmp_path: Path, authority: Authority, **more: Any) -> Hosted:
    cert, key = authority.sign("server")
    files = {"tls_cert": cert, "tls_key": key, "tls_client_ca": authority.cert}
    settings = {f"mqtt__{name}": str(path) for name, path in files.items()}
    return Hosted(tmp_path / "data", mqtt__tls_listen="127.0.0.1:0", **settings | more)


def local(tmp_path: Path) -> Asking:
    """As whoever may open the directory."""
    return Asking(0, unix_socket.connect(tmp_path / "data" / SOCKET_NAME, 10))


def reason(broker: Hosted, authority: Authority, *chain: Path) -> Reason | None:
    """None if there is no handshake."""
    try:
        with TlsWire(broker.ports["mqtts"], client(authority, *chain)) as wire:
            return connect(wire)
    except (ssl.SSLError, ConnectionError, EOFError):
        return None


def test_the_certificate_of_a_removed_user_no_longer_logs_in(
    tmp_path: Path, authority: Authority
) -> None:
    add_users(tmp_path / "data", alice="a", bob="b")
    with serve(tmp_path, authority) as broker:
        bob = authority.sign("bob")
        assert reason(broker, authority, *bob) == Reason.SUCCESS
        broker.run(lambda server: server.broker.engine.access.remove_user("bob"))
        assert reason(broker, authority, *bob) == Reason.NOT_AUTHORIZED
        assert reason(broker, authority, *authority.sign("alice")) == Reason.SUCCESS


def test_a_client_with_a_certificate_is_sent_away_when_its_user_is_removed(
    tmp_path: Path, authority: Authority
) -> None:
    add_users(tmp_path / "data", alice="a", bob="b")
    with serve(tmp_path, authority) as broker:
        access = broker.exchange.engine.access
        port = broker.ports["mqtts"]
        with (
            TlsWire(port, client(authority, *authority.sign("bob")), "bob") as bob,
            TlsWire(port, client(authority, *authority.sign("alice")), "alice") as alice,
        ):
            assert connect(bob) == connect(alice) == Reason.SUCCESS
            broker.run(lambda server: access.set_password("bob", b"new"))
            assert bob.settle() == []  # it did not log in with the password
            broker.run(lambda server: access.remove_user("bob"))
            assert bob.expect(Disconnect).reason == Reason.NOT_AUTHORIZED
            assert bob.is_closed() and alice.settle() == []


def test_unknown_names_are_accepted_where_the_setting_says_so(
    tmp_path: Path, authority: Authority
) -> None:
    add_users(tmp_path / "data", alice="a")
    with serve(tmp_path, authority, access__certificate_unknown_users=True) as broker:
        assert reason(broker, authority, *authority.sign("pump")) == Reason.SUCCESS


def test_a_fingerprint_names_one_certificate_whatever_its_subject_says(
    tmp_path: Path, authority: Authority
) -> None:
    mine = authority.sign("x")
    der = ssl.PEM_cert_to_DER_cert(mine[0].read_text())
    add_users(tmp_path / "data", **{hashlib.sha256(der).hexdigest(): "s", "alice": "a"})
    with serve(tmp_path, authority, access__certificate_user="fingerprint") as broker:
        assert reason(broker, authority, *mine) == Reason.SUCCESS
        for name in ("x", "alice"):  # another certificate of the same name, and a user's name
            assert reason(broker, authority, *authority.sign(name)) == Reason.NOT_AUTHORIZED


def test_a_revoked_certificate_is_refused_from_the_next_handshake_on(
    tmp_path: Path, authority: Authority
) -> None:
    good, bad = authority.sign("good"), authority.sign("bad")
    with (
        serve(tmp_path, authority, mqtt__tls_crl=str(authority.revoke())) as broker,
        TlsWire(broker.ports["mqtts"], client(authority, *good)) as lasting,
    ):
        assert connect(lasting) == Reason.SUCCESS
        assert reason(broker, authority, *bad) == Reason.SUCCESS
        authority.revoke(bad[0])
        assert reason(broker, authority, *bad) is None
        assert reason(broker, authority, *good) == Reason.SUCCESS
        lasting.publish("a", b"1", 1)


@pytest.mark.parametrize("scheme", ["mqtts", "https"])
def test_a_certificate_that_is_refused_in_the_handshake_is_recorded_without_its_name(
    tmp_path: Path, authority: Authority, scheme: str
) -> None:
    add_users(tmp_path / "data", root="r")
    (tmp_path / "others").mkdir()
    foreign = Authority(tmp_path / "others", "foreign").sign("root")
    revoked, good = authority.sign("revoked"), authority.sign("root")
    expired = authority.sign("expired", age=3 * DAY)
    cert, key = authority.sign("server")
    files = {"tls_cert": cert, "tls_key": key, "tls_client_ca": authority.cert}
    files |= {"tls_crl": authority.revoke(revoked[0])}
    door = scheme.removesuffix("s")
    settings = {f"{door}__{name}": str(path) for name, path in files.items()}
    settings |= {f"{door}__tls_listen": "127.0.0.1:0"}
    settings |= {f"{door}__tls_client_certificates": "required"}
    with Hosted(tmp_path / "data", **settings) as broker:
        for chain in (foreign, expired, revoked, (), good):
            context = client(authority, *chain)
            sock = socket.create_connection(("127.0.0.1", broker.ports[scheme]), WAIT_S)
            with suppress(ssl.SSLError, ConnectionError), sock:
                tls = context.wrap_socket(sock, server_hostname="localhost")
                tls.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
                tls.recv(1)

        def entries() -> list[dict[str, str]]:
            with local(tmp_path) as operator:
                answer = operator.ask("GET", "/v1/topics/$audit/records?from=earliest")
            return [json.loads(record["payload"]) for record in answer.json.get("records", [])]

        wait_until(lambda: len(entries()) >= 4)
        found = entries()
        assert {(one["who"], one["act"], one["result"]) for one in found} == {
            ("", f"login {door}", "refused")
        }
        assert all(one["from"].startswith("127.0.0.1:") for one in found)
        assert [one["reason"] for one in found] == [
            "certificate: unable to get local issuer certificate",
            "certificate: certificate has expired",
            "certificate: certificate revoked",
            "certificate: the client sent none",
        ]


def test_a_certificate_that_names_no_user_is_recorded_in_the_tenant_that_it_names(
    tmp_path: Path, authority: Authority
) -> None:
    add_users(tmp_path / "data", root="r")
    with serve_http(tmp_path, authority, access__certificate_tenant="organization") as broker:
        broker.run(lambda server: server.broker.tenants.add("acme"))
        for tenant in ("acme", "nobody", ""):
            mallory = authority.sign("mallory", tenant)
            with TlsWire(broker.ports["mqtts"], client(authority, *mallory)) as wire:
                # The certificate decides; what else is said is not proven.
                wire.send(Connect("x", username="default/root", password=b"?"))
                assert wire.expect(Connack).reason == Reason.NOT_AUTHORIZED
            with Asking(0, https(broker, authority, *mallory)) as asking:
                assert asking.ask("GET", "/v1/topics").status == 401

        def recorded(tenant: str) -> list[tuple[str, str]]:
            with local(tmp_path) as operator:
                path = "/v1/topics/$audit/records?from=earliest"
                answer = operator.ask("GET", path, Penstock_Tenant=tenant)
            found = [json.loads(record["payload"]) for record in answer.json.get("records", [])]
            return [(one["who"], one["act"]) for one in found]

        acts = ["login mqtt", "login http"]
        wait_until(lambda: len(recorded("acme")) == 2 and len(recorded("default")) == 4)
        assert recorded("acme") == [("acme/mallory", act) for act in acts]
        expected = [(f"{one}/mallory", act) for one in ("nobody", "default") for act in acts]
        assert recorded("default") == expected


def test_an_expired_list_lets_nobody_in_and_the_log_says_why(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    with serve(tmp_path, authority, mqtt__tls_crl=str(authority.revoke(days=-1))) as broker:
        assert reason(broker, authority, *authority.sign("good")) is None
        broker.wait_idle()
        assert "CRL has expired: put a newer list into the file of tls_crl" in caplog.text


@pytest.mark.parametrize("content", ["", "no list", None])
def test_a_list_that_cannot_be_used_is_named_at_start(
    tmp_path: Path, authority: Authority, content: str | None
) -> None:
    file = tmp_path / "crl.pem"
    file.write_text(authority.cert.read_text() if content is None else content)
    with pytest.raises(Exception, match="tls_crl .* revocation lists in PEM"):
        serve(tmp_path, authority, mqtt__tls_crl=str(file)).__enter__()


def test_a_new_certificate_of_the_server_counts_and_a_broken_one_does_not(
    tmp_path: Path, authority: Authority
) -> None:
    def serial(broker: Hosted) -> Any:
        with TlsWire(broker.ports["mqtts"], client(authority)) as wire:
            assert connect(wire) == Reason.SUCCESS
            found = wire._socket.getpeercert()  # type: ignore[attr-defined]
            return found["serialNumber"]

    with serve(tmp_path, authority) as broker:
        first = serial(broker)
        cert, key = authority.sign("server")  # in place of the old files
        second = serial(broker)
        assert second != first
        with local(tmp_path) as asking:
            assert asking.ask("POST", "/v1/reload").json == {"problems": []}
            key.write_text("broken")
            (problem,) = asking.ask("POST", "/v1/reload").json["problems"]
            assert str(cert) in problem and "still in use" in problem
        assert serial(broker) == second


def test_a_reload_names_keys_of_tokens_that_cannot_be_used(tmp_path: Path) -> None:
    issuer = Issuer(tmp_path)
    with (
        Hosted(tmp_path / "data", **issuer.settings) as broker,
        Asking(broker.ports["http"]) as asking,
    ):
        login = {"Authorization": f"Bearer {issuer.sign('a', roles=['operator'])}"}
        stranger = {"Authorization": f"Bearer {issuer.sign('a')}"}
        assert asking.ask("POST", "/v1/reload", **stranger).status == 403
        assert asking.ask("POST", "/v1/reload", **login).json == {"problems": []}
        issuer.file.write_text("{}")
        (problem,) = asking.ask("POST", "/v1/reload", **login).json["problems"]
        assert "jwt_keys" in problem and "still in use" in problem
        assert asking.ask("GET", "/v1/topics", **login).status == 200


def serve_http(tmp_path: Path, authority: Authority, **more: Any) -> Hosted:
    """With client certificates on https, too."""
    ca = {"http__tls_client_ca": str(authority.cert), "http__tls_listen": "127.0.0.1:0"}
    return serve(tmp_path, authority, **ca | more)


def https(broker: Hosted, authority: Authority, *chain: Path) -> ssl.SSLSocket:
    sock = socket.create_connection(("127.0.0.1", broker.ports["https"]), WAIT_S)
    return client(authority, *chain).wrap_socket(sock, server_hostname="localhost")


def test_a_client_whose_certificate_is_revoked_is_sent_away_whichever_door_it_uses(
    tmp_path: Path, authority: Authority
) -> None:
    add_users(tmp_path / "data", alice="a", bob="b")
    good, bad, other = authority.sign("alice"), authority.sign("bob"), authority.sign("bob", "x")
    crl = str(authority.revoke())
    with serve_http(tmp_path, authority, mqtt__tls_crl=crl, http__tls_crl=crl) as broker:
        port = broker.ports["mqtts"]
        broker.run(lambda server: server.broker.create_topic("t"))
        with (
            TlsWire(port, client(authority, *bad), "bad") as revoked,
            TlsWire(port, client(authority, *good), "good") as kept,
            TlsWire(port, client(authority, *other), "other") as same_user,
        ):
            for wire in (revoked, kept, same_user):
                assert connect(wire) == Reason.SUCCESS
            stream = Events(0, "/v1/topics/t/stream", https(broker, authority, *bad))
            lasting = Events(0, "/v1/topics/t/stream", https(broker, authority, *good))
            assert stream.next().kind == lasting.next().kind == "start"
            authority.revoke(bad[0])
            left = revoked.expect(Disconnect)
            assert left.reason == Reason.NOT_AUTHORIZED
            assert left.properties.reason_string == "the certificate was revoked"
            with pytest.raises((EOFError, ConnectionError, AssertionError)):
                stream.next()
            for wire in (kept, same_user):
                wire.publish("a", b"1", 1)
            broker.run(lambda server: server.broker.publish("x", "t"))
            assert lasting.records(1)[0]["payload"] == "x"


def test_the_will_of_a_revoked_certificate_is_not_published(
    tmp_path: Path, authority: Authority
) -> None:
    add_users(tmp_path / "data", alice="a", bob="b")
    good, bad = authority.sign("alice"), authority.sign("bob")
    with serve(tmp_path, authority, mqtt__tls_crl=str(authority.revoke())) as broker:
        port = broker.ports["mqtts"]
        with (
            TlsWire(port, client(authority, *bad), "bad") as revoked,
            TlsWire(port, client(authority, *good), "good") as reader,
        ):
            assert connect(reader) == Reason.SUCCESS
            reader.subscribe("gone")
            revoked.send(Connect("bad", will=Will("gone", b"farewell")))
            revoked.expect(Connack)
            authority.revoke(bad[0])
            revoked.expect(Disconnect)
            broker.wait_idle()
            assert reader.settle() == []
            assert broker.dropped["not_authorized"] == 1


@pytest.mark.parametrize("field", ["organization", "organizational_unit"])
def test_a_field_of_the_certificate_names_the_tenant(
    tmp_path: Path, authority: Authority, field: str
) -> None:
    def sign(name: str, tenant: str) -> tuple[Path, Path]:
        if field == "organization":
            return authority.sign(name, tenant)
        return authority.sign(name, "any", tenant)

    add_users(tmp_path / "data", alice="a", bob="b")
    with serve_http(tmp_path, authority, access__certificate_tenant=field) as broker:

        async def add(server: Any) -> None:
            await server.broker.tenants.add("acme")
            await server.broker.engine.access.add_user("bob", b"c", tenant="acme")

        broker.run(add)
        for tenant in ("default", "acme"):
            broker.run(lambda server, one=tenant: create(server, one, f"only-{one}"))
        assert reason(broker, authority, *sign("bob", "acme")) == Reason.SUCCESS
        assert reason(broker, authority, *sign("alice", "default")) == Reason.SUCCESS
        # A user of another tenant; no such tenant; no tenant; the name of another tenant's user.
        for name, tenant in (("alice", "acme"), ("bob", "nobody"), ("bob", ""), ("acme/bob", "x")):
            assert reason(broker, authority, *sign(name, tenant)) == Reason.NOT_AUTHORIZED
        for tenant in ("default", "acme"):
            with Asking(0, https(broker, authority, *sign("bob", tenant))) as asking:
                topics = asking.ask("GET", "/v1/topics").json["topics"]
                assert [one["topic"] for one in topics if one["topic"] != "default"] == [
                    f"only-{tenant}"
                ]


async def create(server: Any, tenant: str, topic: str) -> None:
    engine = server.broker.tenants.get(tenant)
    await engine.topics.create(topic, topic_settings(engine.settings, {}), exist_ok=True)


def test_a_certificate_logs_in_over_https_as_over_mqtts(
    tmp_path: Path, authority: Authority
) -> None:
    add_users(tmp_path / "data", alice="a", bob="b")
    with serve_http(tmp_path, authority) as broker:
        for chain, status in (
            (authority.sign("alice"), 200),
            (authority.sign("bob"), 403),  # not an admin
            (authority.sign("mallory"), 401),
            ((), 401),
        ):
            with Asking(0, https(broker, authority, *chain)) as asking:
                assert asking.ask("GET", "/v1/users").status == status
        pair = base64.b64encode(b"alice:a").decode()
        with Asking(0, https(broker, authority, *authority.sign("bob"))) as asking:
            answer = asking.ask("GET", "/v1/users", Authorization=f"Basic {pair}")
            assert answer.status == 403, "the certificate decides, as over mqtts"
        with Asking(0, https(broker, authority)) as asking:
            answer = asking.ask("GET", "/v1/users", Authorization=f"Basic {pair}")
            assert answer.status == 200, "without one, a password does"
            recorded = ("GET", "/v1/topics/$audit")
            wait_until(lambda: asking.ask(*recorded, Authorization=f"Basic {pair}").status == 200)


def test_a_certificate_logs_in_mqtt_over_websocket_and_required_ones_are_required(
    tmp_path: Path, authority: Authority
) -> None:
    add_users(tmp_path / "data", alice="a", bob="b")
    required = {"http__tls_client_certificates": "required"}
    with serve_http(tmp_path, authority, **required) as broker:
        url = f"wss://localhost:{broker.ports['https']}/mqtt"
        context = client(authority, *authority.sign("bob"))
        with websocket(url, ssl=context, subprotocols=[Subprotocol("mqtt")]) as bob:
            bob.send(encode(Connect("bob"), MQTT_5))
            answer = bob.recv(WAIT_S)
            assert isinstance(answer, bytes) and answer[0] == 0x20 and answer[3] == 0
            session = broker.call(lambda: broker.exchange.sessions.connected["bob"])
            assert session.outbox is not None and session.outbox.principal.user == "bob"
        with pytest.raises((ssl.SSLError, ConnectionError, EOFError)):
            Asking(0, https(broker, authority)).ask("GET", "/healthz")


@pytest.mark.parametrize("door", ["mqtt", "http"])
@pytest.mark.parametrize("setting", ["tls_crl", "tls_client_certificates"])
def test_settings_of_client_certificates_need_their_authority(
    tmp_path: Path, authority: Authority, door: str, setting: str
) -> None:
    cert, key = authority.sign("server")
    value = "required" if setting == "tls_client_certificates" else str(authority.revoke())
    settings = {"tls_listen": "127.0.0.1:0", "tls_cert": str(cert), "tls_key": str(key)}
    settings |= {setting: value}
    with pytest.raises(InvalidSetting, match=rf"\[{door}\] {setting} .* set tls_client_ca"):
        Hosted(tmp_path, **{f"{door}__{name}": value for name, value in settings.items()})
