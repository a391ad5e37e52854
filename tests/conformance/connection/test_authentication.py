"""Enhanced authentication, which this broker does not offer: is it refused as it must be?"""

from __future__ import annotations

import pytest

from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Auth, Connack, Publish
from penstock.mqtt.properties import Properties
from penstock.mqtt.reasons import Reason
from tests.conformance import spelled
from tests.conformance.talk import Talk, join
from tests.doors.hosted import Hosted

METHOD = b"\x15" + spelled.text("SCRAM-SHA-256")


def test_method_that_is_not_offered_is_refused(broker: Hosted, name: str) -> None:
    """Is it 0x8C and then the end, with no AUTH in between, and none of it echoed?"""
    for data in (b"", b"\x16" + spelled.text("n,,n=user,r=nonce")):
        with Talk(broker.port, name, MQTT_5) as client:
            client.send_bytes(spelled.connect(MQTT_5, name, asked=METHOD + data))
            answer = client.expect(Connack)
            assert answer.reason == Reason.BAD_AUTHENTICATION_METHOD
            assert answer.properties.authentication_method is None
            assert client.ends_without_a_word()


def test_client_that_names_a_method_must_wait_for_its_connack(broker: Hosted, name: str) -> None:
    """Does nothing happen that a client with a method sends before it is let in?"""
    with join(broker, name + "w") as witness, Talk(broker.port, name, MQTT_5) as client:
        witness.subscribe(name, qos=1)
        late = spelled.publish(MQTT_5, name, b"x", flags=spelled.QOS_1, packet_id=1)
        client.send_bytes(spelled.connect(MQTT_5, name, asked=METHOD) + late)
        assert client.expect(Connack).reason == Reason.BAD_AUTHENTICATION_METHOD
        assert client.ends_without_a_word()
        assert witness.settle() == []


def test_client_that_named_no_method_gets_none(broker: Hosted, name: str) -> None:
    """Are there no AUTH and no authentication method from the broker then?"""
    with Talk(broker.port, name, MQTT_5) as client:
        answer = client.connect()
        assert answer.properties.authentication_method is None
        client.subscribe(name, qos=2)
        client.publish(name, b"x", 2)
        assert isinstance(client.next(), Publish)
        assert not [one for one in client.settle() if isinstance(one, Auth)]


@pytest.mark.parametrize("reason", [Reason.CONTINUE_AUTHENTICATION, Reason.REAUTHENTICATE])
def test_auth_without_a_method_in_connect_is_a_protocol_error(
    broker: Hosted, name: str, reason: Reason
) -> None:
    """May a client that named no method send no AUTH, neither to go on nor to begin again?"""
    with join(broker, name) as client:
        client.send(Auth(reason, Properties(authentication_method="SCRAM-SHA-256")))
        client.assert_ended(Reason.PROTOCOL_ERROR)


def test_auth_with_any_other_reason_is_a_protocol_error(broker: Hosted, name: str) -> None:
    """Is an AUTH refused whose reason is no Authenticate Reason Code of a client?"""
    for code in (0x00, 0x01, 0x17, 0x1A, 0x80, 0x87, 0xFF):
        with join(broker, name) as client:
            section = spelled.properties(MQTT_5, METHOD)
            client.send_bytes(spelled.frame(0xF0, bytes((code,)), section))
            client.assert_ended(Reason.PROTOCOL_ERROR)


def test_authentication_data_without_a_method_is_refused(broker: Hosted, name: str) -> None:
    """Is a CONNECT with data but no method a protocol error?"""
    with Talk(broker.port, name, MQTT_5) as client:
        asked = b"\x16" + spelled.text("data")
        client.send_bytes(spelled.connect(MQTT_5, name, asked=asked))
        assert client.expect(Connack).reason == Reason.PROTOCOL_ERROR
        assert client.ends_without_a_word()
