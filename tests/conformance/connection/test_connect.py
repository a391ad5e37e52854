"""CONNECT: what it must contain, what is refused, and what is never answered."""

from __future__ import annotations

import pytest

from penstock.mqtt.encode import encode
from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import Connack, Connect, Disconnect, Pingreq, Publish, Subscribe, Will
from penstock.mqtt.packets import Subscription as Wanted
from penstock.mqtt.properties import Properties
from penstock.mqtt.reasons import Reason
from tests.conformance import spelled
from tests.conformance.talk import BOTH, Talk, come_back, join
from tests.doors.hosted import Hosted

ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def assert_malformed(broker: Hosted, version: int, packet: bytes) -> None:
    """Refused: MQTT 5 hears that it is malformed, 3.1.1 gets no CONNACK at all."""
    with Talk(broker.port, version=version) as client:
        client.send_bytes(packet)
        if version == MQTT_5:
            assert client.expect(Connack).reason == Reason.MALFORMED_PACKET
        assert client.ends_without_a_word()


@BOTH
def test_reserved_connect_flag_is_zero(broker: Hosted, name: str, version: int) -> None:
    """Is a CONNECT with its reserved flag set refused?"""
    assert_malformed(broker, version, spelled.connect(version, name, flags=0x03))


@BOTH
@pytest.mark.parametrize("flags", [0x0A, 0x12, 0x1A])
def test_will_qos_without_a_will_is_refused(
    broker: Hosted, name: str, version: int, flags: int
) -> None:
    """Must the will's QoS be 0 where there is no will?"""
    assert_malformed(broker, version, spelled.connect(version, name, flags=flags))


@BOTH
def test_will_retain_without_a_will_is_refused(broker: Hosted, name: str, version: int) -> None:
    """Must the will's retain flag be 0 where there is no will?"""
    assert_malformed(broker, version, spelled.connect(version, name, flags=0x22))


@BOTH
def test_will_qos_3_is_refused(broker: Hosted, name: str, version: int) -> None:
    """Is a will at QoS 3 refused?"""
    will = (spelled.properties(version), spelled.text("w"), spelled.text("gone"))
    assert_malformed(broker, version, spelled.connect(version, name, *will, flags=0x1E))


@BOTH
def test_will_flag_and_will_fields_go_together(broker: Hosted, name: str, version: int) -> None:
    """Is a will announced but not there refused, and one that is there but not announced?"""
    assert_malformed(broker, version, spelled.connect(version, name, flags=0x06))
    only_name = (spelled.properties(version), spelled.text("w"))
    assert_malformed(broker, version, spelled.connect(version, name, *only_name, flags=0x06))
    will = (*only_name, spelled.text("gone"))
    assert_malformed(broker, version, spelled.connect(version, name, *will, flags=0x02))
    with Talk(broker.port, name, version) as client:
        client.send_bytes(spelled.connect(version, name, *will, flags=0x06))
        assert client.expect(Connack).reason == Reason.SUCCESS


@BOTH
def test_user_name_flag_and_user_name_go_together(broker: Hosted, name: str, version: int) -> None:
    """Is a user name announced but not there refused, and the other way round?"""
    assert_malformed(broker, version, spelled.connect(version, name, flags=0x82))
    given = spelled.text("user")
    assert_malformed(broker, version, spelled.connect(version, name, given, flags=0x02))


@BOTH
def test_password_flag_and_password_go_together(broker: Hosted, name: str, version: int) -> None:
    """Is a password announced but not there refused, and the other way round?"""
    user, password = spelled.text("user"), spelled.text("secret")
    assert_malformed(broker, version, spelled.connect(version, name, user, flags=0xC2))
    assert_malformed(broker, version, spelled.connect(version, name, user, password, flags=0x82))


def test_password_needs_a_user_name_before_mqtt_5(broker: Hosted, name: str) -> None:
    """Is a password alone refused in 3.1.1, and allowed in 5?"""
    password = spelled.text("secret")
    for version in (MQTT_3_1_1, MQTT_5):
        packet = spelled.connect(version, name, password, flags=0x42)
        if version == MQTT_3_1_1:
            assert_malformed(broker, version, packet)
            continue
        with Talk(broker.port, name, version) as client:
            client.send_bytes(packet)
            assert client.expect(Connack).reason == Reason.SUCCESS


@BOTH
def test_payload_fields_are_read_in_their_order(broker: Hosted, name: str, version: int) -> None:
    """Is it client id, will, user name, password? A client id that comes later is none."""
    in_order = (
        spelled.properties(version),
        spelled.text(f"{name}/will"),
        spelled.text("gone"),
        spelled.text("user"),
        spelled.text(b"\xff\xfe not text: a password"),
    )
    with Talk(broker.port, name, version) as client:
        client.send_bytes(spelled.connect(version, name, *in_order, flags=0xC6))
        assert client.expect(Connack).reason == Reason.SUCCESS
        assert broker.call(lambda: name in broker.exchange.sessions.connected)
    backwards = (*in_order[:3], in_order[4], in_order[3])
    assert_malformed(broker, version, spelled.connect(version, name, *backwards, flags=0xC6))


@BOTH
def test_client_id_is_there_and_comes_first(broker: Hosted, name: str, version: int) -> None:
    """Is a CONNECT that ends before its client id refused?"""
    head = spelled.CONNECT_5 if version == MQTT_5 else spelled.CONNECT_4
    packet = spelled.frame(0x10, head, b"\x02\x00\x00", spelled.properties(version))
    assert_malformed(broker, version, packet)


@BOTH
@pytest.mark.parametrize("client_id", ["a", ALPHABET[:23], ALPHABET[23:46], ALPHABET[39:]], ids=len)
def test_client_ids_that_every_server_takes_are_taken(
    broker: Hosted, version: int, client_id: str
) -> None:
    """Are 1 to 23 letters and digits welcome?"""
    with Talk(broker.port, client_id, version) as client:
        assert client.connect().reason == Reason.SUCCESS
        assert client.settle() == []


@BOTH
def test_session_is_known_by_its_client_id(broker: Hosted, name: str, version: int) -> None:
    """Does each client id find its own session, also ids that differ in case alone?"""
    ids = (name, name + "2", name.upper() + "x", name.lower() + "X")
    assert len(set(ids)) == 4
    for client_id in ids:
        client, is_present = come_back(broker, client_id, version)
        assert not is_present
        client.subscribe(f"to/{client_id}", qos=1)
        client.disconnect()
    with join(broker, name + "p", version) as writer:
        for client_id in ids:
            writer.publish(f"to/{client_id}", client_id.encode(), 1)
    for client_id in ids:
        client, is_present = come_back(broker, client_id, version)
        assert is_present
        assert client.receive().payload == client_id.encode()
        assert client.settle() == []
        client.close()


@BOTH
def test_client_without_an_id_is_given_one_nobody_else_has(broker: Hosted, version: int) -> None:
    """Is an empty client id replaced by a fresh one, and is MQTT 5 told which?"""
    clients = [Talk(broker.port, "", version) for _ in range(5)]
    before = broker.call(lambda: set(broker.exchange.sessions.connected))
    answers = [client.connect() for client in clients]
    assert [answer.reason for answer in answers] == [Reason.SUCCESS] * 5
    made = broker.call(lambda: set(broker.exchange.sessions.connected)) - before
    assert len(made) == 5
    assigned = {answer.properties.assigned_client_identifier for answer in answers}
    assert assigned == (made if version == MQTT_5 else {None})
    for client in clients:
        assert client.settle() == []
        client.close()


def test_no_client_id_and_a_session_to_keep_is_refused_before_mqtt_5(broker: Hosted) -> None:
    """Does 3.1.1 get return code 2 and a closed connection, without a session present?"""
    with Talk(broker.port, "", MQTT_3_1_1) as client:
        client.send_bytes(spelled.connect(MQTT_3_1_1, "", flags=0x00))
        assert client.next_raw() == b"\x20\x02\x00\x02"
        assert client.ends_without_a_word()


@BOTH
def test_connect_that_is_not_well_formed_is_never_let_in(
    broker: Hosted, name: str, version: int
) -> None:
    """Is every way to cut or lengthen a CONNECT refused, and 3.1.1 given no CONNACK?"""
    whole = spelled.body(spelled.connect(version, name, spelled.text("user"), flags=0x82))
    for end in range(7, len(whole)):
        assert_malformed(broker, version, spelled.frame(0x10, whole[:end]))
    assert_malformed(broker, version, spelled.frame(0x10, whole, b"\0"))


@BOTH
def test_refused_connect_is_the_last_thing_that_is_read(
    broker: Hosted, name: str, version: int
) -> None:
    """Does nothing happen that was sent behind a CONNECT that is refused?"""
    with join(broker, name + "w", version) as witness:
        witness.subscribe(f"{name}/#", qos=1)
        refused = (
            spelled.connect(version, name, flags=0x03),
            spelled.connect(version, b"\xff"),
        )
        for packet in refused:
            with Talk(broker.port, version=version) as client:
                late = spelled.publish(
                    version, f"{name}/x", b"late", flags=spelled.QOS_1 | 1, packet_id=1
                )
                client.send_bytes(packet + late)
                if version == MQTT_5:
                    client.expect(Connack)
                assert client.ends_without_a_word()
        assert witness.settle() == []
        with join(broker, name + "r", version) as reader:
            reader.subscribe(f"{name}/#")
            assert reader.settle() == []


@BOTH
def test_newcomer_with_the_same_id_ends_the_older_connection(
    broker: Hosted, name: str, version: int
) -> None:
    """Is the older connection closed, and told 0x8E in MQTT 5?"""
    with Talk(broker.port, name, version) as older, Talk(broker.port, name, version) as newer:
        older.connect()
        older.subscribe(name)
        newer.connect()
        if version == MQTT_5:
            assert older.expect(Disconnect).reason == Reason.SESSION_TAKEN_OVER
        assert older.ends_without_a_word()
        newer.send(Publish(name, b"x"))
        assert newer.settle() == []


@BOTH
def test_good_connect_is_acknowledged_with_success(broker: Hosted, name: str, version: int) -> None:
    """Is the answer to a good CONNECT a CONNACK of 0x00, with only one flag that can be set?"""
    with Talk(broker.port, name, version) as client:
        client.send_bytes(spelled.connect(version, name))
        raw = client.next_raw()
        assert raw[0] == 0x20
        assert spelled.body(raw)[:2] == b"\x00\x00"
    kept, _ = come_back(broker, name, version)
    kept.disconnect()
    kept, _ = come_back(broker, name, version)
    assert spelled.body(kept.raw)[:2] == b"\x01\x00"
    kept.close()


@BOTH
def test_first_packet_from_the_broker_is_connack_and_there_is_one(
    broker: Hosted, name: str, version: int
) -> None:
    """Does a session with much to deliver, and a client in a hurry, still begin with CONNACK?"""
    client, _ = come_back(broker, name, version)
    client.subscribe(f"{name}/#", qos=1)
    client.disconnect()
    with join(broker, name + "p", version) as writer:
        writer.publish_all(f"{name}/a", 30, qos=1)
        writer.publish(f"{name}/r", b"retained", 1, retain=True)
    client = Talk(broker.port, name, version)
    asked = Properties(session_expiry_interval=60) if version == MQTT_5 else Properties()
    client.send(
        Connect(name, False, version=version, properties=asked),
        Subscribe(9, (Wanted(f"{name}/#", 1),)),
        Pingreq(),
    )
    said = [client.next() for _ in range(34)]
    assert isinstance(said[0], Connack) and said[0].session_present
    assert not any(isinstance(packet, Connack) for packet in said[1:])
    client.close()


@BOTH
def test_refusal_says_no_session_is_present_and_closes(
    broker: Hosted, name: str, version: int
) -> None:
    """Has a CONNACK that refuses the flag at 0, even where a session is kept, and then the end?"""
    kept, _ = come_back(broker, name, version)
    kept.disconnect()
    levels = {MQTT_3_1_1: (3, b"\x20\x02\x00\x01"), MQTT_5: (6, b"\x20\x03\x00\x84\x00")}
    level, answer = levels[version]
    with Talk(broker.port, name, version) as client:
        packet = bytearray(spelled.connect(version, name, flags=0))
        packet[8] = level
        client.send_bytes(bytes(packet))
        assert client.next_raw() == answer
        assert client.ends_without_a_word()


@BOTH
def test_broker_says_nothing_but_connack_before_it_lets_in(
    broker: Hosted, name: str, version: int
) -> None:
    """Is a client that breaks the rules before its CONNACK closed without a DISCONNECT?"""
    for packet in (b"\xc0\x00", b"\xe0\x00", b"\x36\x00", b"\x10\x00", b"\x00\x00"):
        with Talk(broker.port, name, version) as client:
            client.send_bytes(packet)
            assert client.ends_without_a_word()


def test_connection_that_no_return_code_describes_is_closed_without_one(
    broker: Hosted, name: str
) -> None:
    """Does 3.1.1, which has no code for it, get nothing for a will under an impossible name?"""
    will = Will("w", b"gone")
    packet = encode(Connect(name, will=will, version=MQTT_3_1_1), MQTT_3_1_1)
    for bad in (b"#", b"+", b"\0"):
        with Talk(broker.port, name, MQTT_3_1_1) as client:
            client.send_bytes(packet.replace(b"\x00\x01w", b"\x00\x01" + bad))
            assert client.ends_without_a_word()
