"""May one address lock out the others?

Each test has a crowd of one address do its worst and a healthy client of another address beside it.
The crowd is still there when the healthy client has been served.
"""

from __future__ import annotations

import base64
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.model.limits import MIB
from penstock.mqtt.encode import encode
from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Connack, Connect
from tests.abuse.crowd import Crowd, Measured, many_descriptors, reach
from tests.doors.certificates import Authority
from tests.doors.served import Served
from tests.doors.users import add_users
from tests.doors.wire import Wire
from tests.http.asking import Asking

GREEDY, HEALTHY = "127.0.0.2", "127.0.0.3"
USERS = {f"user{number}": f"secret{number}" for number in range(11)}
GROWN_BYTES_MAX = 96 * MIB


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def guarded(tmp_path: Path, authority: Authority) -> Iterator[Served]:
    add_users(tmp_path / "data", **USERS)
    cert, key = authority.sign("broker")
    tls = ("--mqtts", "127.0.0.1:0", "--tls-cert", str(cert), "--tls-key", str(key))
    with many_descriptors(), Served(tmp_path / "data", "--log-level", "error", *tls) as served:
        yield served


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def request(path: str, **headers: str) -> bytes:
    lines = [f"GET {path} HTTP/1.1", "Host: localhost"]
    lines += [f"{key}: {value}" for key, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def http_login(served: Served, user: str, password: str) -> int:
    with Asking(0, reach(served.http_port, HEALTHY)) as client:
        return client.ask("GET", "/v1/topics", Authorization=basic(user, password)).status


def test_wrong_logins_of_one_address_use_up_only_its_own_places(guarded: Served) -> None:
    wrong = request("/v1/topics", Authorization=basic("user0", "wrong"))
    measured = Measured(guarded)
    with Crowd(GREEDY).join(guarded.http_port, 1_100, wrong) as crowd:
        statuses = [
            measured(lambda who=who: http_login(guarded, *who))  # type: ignore[misc]
            for who in list(USERS.items())[1:]
        ]
        assert crowd.count_open() > 100, "the attack was over before the others were in"
    print(measured)
    assert statuses == [200] * 10
    assert measured.grown_bytes < GROWN_BYTES_MAX


def test_wrong_mqtt_logins_of_one_address_use_up_only_its_own_places(guarded: Served) -> None:
    wrong = encode(Connect("x", username="user0", password=b"wrong"), MQTT_5)
    measured = Measured(guarded)
    with Crowd(GREEDY).join(guarded.port, 1_100, wrong) as crowd:
        for user, password in USERS.items():
            with Wire(guarded.port, user, MQTT_5, reach(guarded.port, HEALTHY)) as client:
                client.send(Connect(user, username=user, password=password.encode()))
                assert measured(lambda: client.expect(Connack)).reason == 0
        assert crowd.count_open() > 100, "the attack was over before the others were in"
    print(measured)
    assert measured.grown_bytes < GROWN_BYTES_MAX


# Connections that do not log in


def check_served(served: Served, source: str, measured: Measured) -> None:
    """Everything that a client of this address wants is done."""
    with Asking(0, reach(served.http_port, source)) as client:
        assert measured(lambda: client.ask("GET", "/healthz")).status == 200
        login = basic("user1", USERS["user1"])
        assert measured(lambda: client.ask("GET", "/v1/topics", Authorization=login)).status == 200
    with Wire(served.port, "healthy", MQTT_5, reach(served.port, source)) as wire:
        wire.send(Connect("healthy", username="user2", password=USERS["user2"].encode()))
        assert measured(lambda: wire.expect(Connack)).reason == 0
        wire.subscribe("healthy", qos=1)
        measured(lambda: wire.publish("healthy", b"x", 1))
        assert measured(wire.receive).payload == b"x"


@pytest.mark.slow
@pytest.mark.parametrize("door", ["http", "mqtt"])
def test_ten_thousand_silent_connections_keep_nobody_out(guarded: Served, door: str) -> None:
    measured = Measured(guarded)
    port = guarded.http_port if door == "http" else guarded.port
    with Crowd(GREEDY) as crowd:
        for _ in range(10):
            crowd.join(port, 1_005)
            check_served(guarded, HEALTHY, measured)
        assert crowd.count_open() > 1_000, "the attack was over before the others were in"
    print(door, measured)
    assert measured.grown_bytes < GROWN_BYTES_MAX


@pytest.mark.slow
def test_silent_connections_of_many_addresses_keep_nobody_out(guarded: Served) -> None:
    measured = Measured(guarded)
    with Crowd("127.0.0.4") as one, Crowd("127.0.0.5") as two, Crowd("127.0.0.6") as three:
        for _ in range(4):
            for crowd in (one, two, three):
                crowd.join(guarded.http_port, 1_000)
            check_served(guarded, HEALTHY, measured)
        assert min(crowd.count_open() for crowd in (one, two, three)) > 1_000
    print(measured)
    assert measured.grown_bytes < GROWN_BYTES_MAX


def test_stalled_tls_handshakes_of_one_address_keep_nobody_else_out(
    guarded: Served, authority: Authority
) -> None:
    measured = Measured(guarded)
    context = ssl.create_default_context(cafile=authority.cert)
    half_a_hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"

    def shake() -> None:
        with (
            context.wrap_socket(
                reach(guarded.ports["mqtts"], HEALTHY), server_hostname="localhost"
            ) as sock,
            Wire(0, "tls", MQTT_5, sock) as wire,
        ):
            wire.send(Connect("tls", username="user1", password=USERS["user1"].encode()))
            assert wire.expect(Connack).reason == 0

    with Crowd(GREEDY) as crowd:
        for _ in range(3):
            crowd.join(guarded.ports["mqtts"], 1_010, half_a_hello)
            measured(shake)
        assert crowd.count_open() > 100, "the attack was over before the others were in"
    print(measured)
    assert measured.grown_bytes < GROWN_BYTES_MAX
