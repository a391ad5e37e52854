"""DISCONNECT, PINGREQ and silence: how connections end and how they are kept."""

from __future__ import annotations

from pathlib import Path

from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Connack, Disconnect, Packet, Publish
from penstock.mqtt.reasons import Reason
from tests.conformance import spelled
from tests.conformance.talk import BOTH, Talk, join
from tests.doors.hosted import Hosted


@BOTH
def test_ping_is_answered(broker: Hosted, name: str, version: int) -> None:
    """Is every PINGREQ answered with one PINGRESP?"""
    with join(broker, name, version) as client:
        client.send_bytes(b"\xc0\x00" * 3)
        assert [client.next_raw() for _ in range(3)] == [b"\xd0\x00"] * 3
        assert client.settle() == []


@BOTH
def test_silent_client_is_let_go(broker: Hosted, name: str, version: int) -> None:
    """Is a client that says nothing for one and a half keep alives closed, whatever it is sent?"""
    with (
        Talk(broker.port, name, version) as client,
        Talk(broker.port, name + "2", version) as patient,
    ):
        for one, keep_alive_s in ((client, 1), (patient, 60)):
            answer = one.connect(keep_alive_s=keep_alive_s)
            assert answer.properties.server_keep_alive is None  # so the client's own counts
        client.subscribe(name)
        patient.send(Publish(name, b"x"))
        while (packet := _poll(client)) is None or isinstance(packet, Publish):
            patient.send(Publish(name, b"x"))
        if version == MQTT_5:
            assert isinstance(packet, Disconnect)
            assert packet.reason == Reason.KEEP_ALIVE_TIMEOUT
        assert client.ends_without_a_word()
        assert patient.settle() == []


def _poll(client: Talk) -> Packet | EOFError | None:
    try:
        return client.poll(0.2)
    except EOFError as end:
        return end


@BOTH
def test_client_without_a_keep_alive_may_be_silent(broker: Hosted, name: str, version: int) -> None:
    """Is nobody closed for silence whose keep alive is 0?"""
    with (
        Talk(broker.port, name, version) as quiet,
        Talk(broker.port, name + "2", version) as impatient,
    ):
        quiet.connect(keep_alive_s=0)
        impatient.connect(keep_alive_s=1)
        impatient.assert_ended(Reason.KEEP_ALIVE_TIMEOUT)
        assert quiet.settle() == []


def test_keep_alive_of_the_broker_counts_where_it_gives_one(tmp_path: Path) -> None:
    """Is a client closed by the Server Keep Alive it was given, and not by its own?"""
    with (
        Hosted(tmp_path, mqtt__keep_alive_s_max=1) as broker,
        Talk(broker.port, "x", MQTT_5) as client,
    ):
        assert client.connect(keep_alive_s=600).properties.server_keep_alive == 1
        client.assert_ended(Reason.KEEP_ALIVE_TIMEOUT)


@BOTH
def test_disconnect_ends_the_connection(broker: Hosted, name: str, version: int) -> None:
    """Does the broker close after a DISCONNECT, and read nothing that comes behind it?"""
    with join(broker, name, version) as client, join(broker, name + "w", version) as witness:
        witness.subscribe(name)
        client.send_bytes(b"\xe0\x00" + spelled.publish(version, name, b"late"))
        assert client.ends_without_a_word()
        assert witness.settle() == []


@BOTH
def test_nothing_follows_the_last_packet_of_the_broker(
    broker: Hosted, name: str, version: int
) -> None:
    """Is the DISCONNECT of a client that is taken over the last it hears, and then the end?"""
    with Talk(broker.port, name, version) as older, join(broker, name + "p", version) as writer:
        older.connect()
        older.subscribe(f"{name}/#", qos=1)
        with Talk(broker.port, name, version) as newer:
            newer.connect()
            writer.publish(f"{name}/x", b"x", 1)
            if version == MQTT_5:
                assert older.expect(Disconnect).reason == Reason.SESSION_TAKEN_OVER
            assert older.ends_without_a_word()


def test_broker_that_stops_tells_its_clients_and_closes(tmp_path: Path) -> None:
    """Do MQTT 5 clients hear that the server shuts down, and older ones nothing?"""
    with Hosted(tmp_path) as broker:
        new, old = join(broker, "new", 5), join(broker, "old", 4)
        early = Talk(broker.port, "early", 5)  # not connected yet
    new.assert_ended(Reason.SERVER_SHUTTING_DOWN)
    assert old.ends_without_a_word()
    assert early.ends_without_a_word()


def test_broker_does_not_take_leave_before_it_said_hello(broker: Hosted, name: str) -> None:
    """Is there no DISCONNECT before a CONNACK of success, whatever the client does?"""
    for data in (
        b"\xe0\x00",
        spelled.frame(0x10),
        spelled.connect(MQTT_5, name, flags=0xFF),
        spelled.connect(MQTT_5, name, asked=b"\x22\x00"),
        spelled.publish(MQTT_5, name, b"x"),
    ):
        with Talk(broker.port, name, MQTT_5) as client:
            client.send_bytes(data)
            try:
                packet = client.next()
            except (EOFError, ConnectionError):
                continue
            assert isinstance(packet, Connack) and packet.reason
            assert client.ends_without_a_word()
