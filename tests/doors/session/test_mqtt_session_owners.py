"""Whose is a session, and how long may it be kept for a client that is away?"""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import Connack, Connect, Disconnect, Publish
from penstock.mqtt.properties import Properties
from penstock.mqtt.reasons import Reason
from tests.doors.hosted import Hosted
from tests.doors.users import add_users
from tests.doors.wire import Wire, kept

ENDLESS = 0xFFFF_FFFF


def log_in(broker: Hosted, user: str | None, client_id: str = "pump") -> tuple[Wire, Connack]:
    wire = Wire(broker.port, client_id, MQTT_5)
    password = None if user is None else b"secret"
    wire.send(
        Connect(
            client_id,
            False,
            username=user,
            password=password,
            version=MQTT_5,
            properties=kept(),
        )
    )
    return wire, wire.expect(Connack)


def test_an_endless_session_is_shortened_and_the_client_is_told(tmp_path: Path) -> None:
    with Hosted(tmp_path, mqtt__session_expiry_max="1h") as broker:
        with Wire(broker.port, "pump", MQTT_5) as client:
            answer = client.connect(properties=Properties(session_expiry_interval=ENDLESS))
            assert answer.properties.session_expiry_interval == 3600
            client.send(Disconnect(properties=Properties(session_expiry_interval=ENDLESS)))
            assert client.is_closed()
        with Wire(broker.port, "short", MQTT_5) as client:
            answer = client.connect(properties=Properties(session_expiry_interval=60))
            assert answer.properties.session_expiry_interval is None
        assert "pump" in broker.call(lambda: list(broker.exchange.store.stored))


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
def test_a_session_ends_at_the_bound_whatever_its_client_asked_for(
    tmp_path: Path, version: int
) -> None:
    asked = Properties(session_expiry_interval=ENDLESS) if version == MQTT_5 else Properties()
    with Hosted(tmp_path, mqtt__session_expiry_max="1s") as broker:
        with Wire(broker.port, "pump", version) as client:
            client.connect(clean=False, properties=asked)
            client.disconnect()
        while broker.call(lambda: len(broker.exchange.store.stored)):
            pass
        with Wire(broker.port, "pump", version) as client:
            assert not client.connect(clean=False, properties=asked).session_present


def test_a_user_created_anew_does_not_inherit_the_session(tmp_path: Path) -> None:
    add_users(tmp_path, alice="secret", other="secret")
    with Hosted(tmp_path) as broker:
        first, _ = log_in(broker, "alice")
        first.subscribe("orders", qos=1)
        first.disconnect()
        access = broker.exchange.engine.access
        broker.run(lambda server: access.remove_user("alice"))
        writer, _ = log_in(broker, "other", "writer")
        writer.publish("orders", b"for the old alice", 1)
        broker.run(lambda server: access.add_user("alice", b"secret"))
        second, answer = log_in(broker, "alice")
        assert answer.reason == Reason.SUCCESS and not answer.session_present
        assert second.settle() == []
        writer.close()
        second.close()


def test_a_session_that_was_connected_when_its_user_was_removed_is_not_inherited(
    tmp_path: Path,
) -> None:
    add_users(tmp_path, alice="secret", other="secret")
    with Hosted(tmp_path) as broker:
        first, _ = log_in(broker, "alice")
        first.subscribe("orders", qos=1)
        access = broker.exchange.engine.access
        broker.run(lambda server: access.remove_user("alice"))
        first.close()
        broker.run(lambda server: access.add_user("alice", b"secret"))
        second, answer = log_in(broker, "alice")
        assert answer.reason == Reason.SUCCESS and not answer.session_present
        second.close()


def test_a_user_does_not_take_the_session_of_an_anonymous_client(tmp_path: Path) -> None:
    add_users(tmp_path, alice="secret")
    with Hosted(tmp_path, access__allow_anonymous=True) as broker:
        nobody, _ = log_in(broker, None)
        nobody.subscribe("orders", qos=1)
        nobody.disconnect()
        writer, _ = log_in(broker, None, "writer")
        writer.publish("orders", b"for nobody else", 1)
        alice, answer = log_in(broker, "alice")
        assert answer.reason == Reason.NOT_AUTHORIZED
        again, answer = log_in(broker, None)
        assert answer.session_present
        assert again.expect(Publish).payload == b"for nobody else"
        for wire in (alice, again, writer):
            wire.close()
