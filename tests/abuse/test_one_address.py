"""May one address lock out the others?

Each test has a crowd of one address do its worst and a healthy client of another address beside it.
The crowd is still there when the healthy client has been served.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.model.limits import MIB
from penstock.mqtt.encode import encode
from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Connack, Connect
from tests.abuse.crowd import Crowd, Measured, reach
from tests.doors.served import Served
from tests.doors.users import add_users
from tests.doors.wire import Wire
from tests.http.asking import Asking

GREEDY, HEALTHY = "127.0.0.2", "127.0.0.3"
USERS = {f"user{number}": f"secret{number}" for number in range(11)}
GROWN_BYTES_MAX = 96 * MIB


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Served]:
    add_users(tmp_path, **USERS)
    with Served(tmp_path, "--log-level", "error") as served:
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
