"""Whatever one client does, are the others served on, and does the memory come back?

The fixture `patient` asks both after every test: a healthy client's message goes round within a
second, and the broker's memory is back near where it was.
"""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack

import pytest

from penstock.model.limits import KIB, MIB
from penstock.mqtt.encode import encode
from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from penstock.mqtt.properties import Properties
from penstock.mqtt.reasons import Reason
from tests.abuse.conftest import MEMORY_BYTES_MAX, Patient
from tests.doors.wire import Wire

VERSIONS = [MQTT_3_1_1, MQTT_5]
ANNOUNCED_256_MB = b"\xff\xff\xff\x7f"


def raw(patient: Patient) -> socket.socket:
    return socket.create_connection(("127.0.0.1", patient.port), 10)


def ends(sock: socket.socket) -> bool:
    """Has the broker let go of it, whatever it said before?"""
    try:
        while sock.recv(65_536):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


def test_five_thousand_idle_connections_cost_little(patient: Patient) -> None:
    hello = encode(Connect("", version=MQTT_3_1_1), MQTT_3_1_1)
    with ExitStack() as stack:
        crowd = [stack.enter_context(raw(patient)) for _ in range(5_000)]
        for sock in crowd:
            sock.sendall(hello)
        for sock in crowd:
            assert sock.recv(4) == b"\x20\x02\x00\x00"
        grown = patient.memory - patient.memory_before
        assert grown / len(crowd) < 8 * KIB
        patient.check()


def test_half_packets_that_are_held_open_stop_nobody(patient: Patient) -> None:
    beginnings = [b"", b"\x10", b"\x10\xff", b"\x10\x20\x00\x04MQ", b"\x30\xff\xff\xff"]
    with ExitStack() as stack:
        for number in range(500):
            sock = stack.enter_context(raw(patient))
            sock.sendall(beginnings[number % len(beginnings)])
        patient.check()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_packet_that_comes_byte_by_byte_is_taken(patient: Patient, version: int) -> None:
    with Wire(patient.port, "slow", version) as slow:
        slow.connect()
        slow.subscribe("slow", qos=1)
        for byte in encode(Publish("slow", b"x" * 300, 1, packet_id=7), version):
            slow.send_bytes(bytes((byte,)))
        said = {type(slow.next()).__name__ for _ in range(2)}
        assert said == {"Puback", "Publish"}


@pytest.mark.parametrize("qos", [0, 1])
def test_a_reader_that_never_reads_under_a_flood_of_256_mb(patient: Patient, qos: int) -> None:
    payload = bytes(range(256)) * 256  # 64 KiB
    with Wire(patient.port, f"stuck-{qos}") as stuck, Wire(patient.port, "flood") as flood:
        stuck.connect()
        stuck.subscribe(f"flood/{qos}", qos=qos)
        flood.connect()
        packets = encode(Publish(f"flood/{qos}", payload, 0), MQTT_3_1_1) * 16
        highest = 0
        for _ in range(256):  # of 1 MiB
            flood.send_bytes(packets)
            highest = max(highest, patient.memory)
        flood.settle()
        assert highest - patient.memory_before <= MEMORY_BYTES_MAX
        patient.check()


def test_names_of_64_kb_and_of_thousands_of_levels(patient: Patient) -> None:
    long_name = "x" * 65_535
    with Wire(patient.port, "long", MQTT_5) as client:
        client.connect()
        assert client.subscribe(long_name, qos=1).reasons[0] == 1
        client.publish(long_name, b"hello", 1)
        assert client.receive().name == long_name
    for deep in ("/" * 65_535, "a/" * 30_000 + "a"):
        with Wire(patient.port, "deep", MQTT_5) as client:
            client.connect()
            client.send(Publish(deep, b"", 1, packet_id=1))
            assert client.expect(Disconnect).reason == Reason.TOPIC_NAME_INVALID
            assert client.is_closed()
        with Wire(patient.port, "deep", MQTT_5) as client:
            client.connect()
            client.send(Subscribe(1, (Subscription(deep, 1),)))
            packet = client.next()
            refused = getattr(packet, "reasons", None) or (getattr(packet, "reason", 0),)
            assert refused[0] >= 0x80


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("first_byte", [0x10, 0x30, 0x82, 0xA2, 0xC0])
def test_an_announced_quarter_gigabyte_takes_no_memory(
    patient: Patient, version: int, first_byte: int
) -> None:
    with ExitStack() as stack:
        for number in range(50):
            if first_byte == 0x10:
                sock = stack.enter_context(raw(patient))
                sock.sendall(bytes((first_byte,)) + ANNOUNCED_256_MB + b"\x00\x04MQTT")
            else:
                wire = stack.enter_context(Wire(patient.port, f"huge-{number}", version))
                wire.connect()
                wire.send_bytes(bytes((first_byte,)) + ANNOUNCED_256_MB + b"\x00\x01")
        patient.check()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_second_connect_and_a_connack_from_a_client_end_it(
    patient: Patient, version: int
) -> None:
    for wrong in (Connect("again", version=version), Connack()):
        with Wire(patient.port, "rude", version) as client:
            client.connect()
            client.send(wrong)
            if version == MQTT_5:
                assert client.expect(Disconnect).reason >= 0x80
            assert client.is_closed()


@pytest.mark.parametrize(
    "packet",
    [
        encode(Pingreq(), MQTT_3_1_1),
        encode(Publish("a", b"x"), MQTT_3_1_1),
        encode(Subscribe(1, (Subscription("a", 0),)), MQTT_3_1_1),
        encode(Disconnect(), MQTT_3_1_1),
        b"\x20\x02\x00\x00",
        b"\xf0\x00",
        b"\x00\x00",
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_whatever_comes_before_connect_ends_the_connection(patient: Patient, packet: bytes) -> None:
    with raw(patient) as sock:
        sock.sendall(packet)
        assert ends(sock)


@pytest.mark.parametrize("first_byte", [0x1F, 0x32 | 0x06, 0x42, 0x60, 0x80, 0xA0, 0xC4, 0xE1])
def test_reserved_bits_end_the_connection(patient: Patient, first_byte: int) -> None:
    with Wire(patient.port, "bits") as client:
        client.connect()
        client.send_bytes(bytes((first_byte, 2, 0, 1)))
        assert client.is_closed()


def test_a_length_of_five_bytes_ends_the_connection(patient: Patient) -> None:
    with raw(patient) as sock:
        sock.sendall(b"\x10\xff\xff\xff\xff\x01" + b"x" * 100)
        assert ends(sock)


def test_user_property_bombs_are_bounded(patient: Patient) -> None:
    bomb = Properties(user_properties=(("k", "v"),) * 20_000)
    for packet in (
        Publish("bomb", b"", 1, packet_id=1, properties=bomb),
        Subscribe(1, (Subscription("bomb", 0),), bomb),
        Disconnect(properties=bomb),
    ):
        with Wire(patient.port, "bomber", MQTT_5) as client:
            client.connect()
            client.send(packet)
            if isinstance(packet, Disconnect):
                while not client.is_closed():
                    pass
            else:  # taken or refused, never stuck
                assert isinstance(client.next(), (Disconnect, Puback, Suback))
    with raw(patient) as sock:
        sock.sendall(encode(Connect("bomber", version=MQTT_5, properties=bomb), MQTT_5))
        assert sock.recv(1) in (b"\x20", b"")


@pytest.mark.parametrize("client_id", ["#", "+", "a/+/b", "$SYS", "\u00e9" * 1_000, "x" * 65_535])
@pytest.mark.parametrize("version", VERSIONS)
def test_any_client_id_is_only_a_name(patient: Patient, client_id: str, version: int) -> None:
    with Wire(patient.port, client_id, version) as client:
        connack = client.connect()
        if connack.reason == Reason.SUCCESS:
            client.subscribe("ids", qos=1)
            client.publish("ids", b"mine", 1)
            assert client.receive().payload == b"mine"
        else:
            assert connack.reason in (Reason.CLIENT_IDENTIFIER_NOT_VALID, 2)


def test_a_client_that_comes_and_goes_without_end(patient: Patient) -> None:
    until_s = time.monotonic() + 3
    rounds = 0
    while time.monotonic() < until_s:
        with Wire(patient.port, f"restless-{rounds % 7}", VERSIONS[rounds % 2]) as client:
            client.connect(clean=rounds % 3 != 0)
            client.subscribe_later(f"restless/{rounds}", qos=rounds % 3)
        rounds += 1
    assert rounds > 10


def test_subscribing_and_unsubscribing_a_thousand_filters_leaves_nothing(
    patient: Patient,
) -> None:
    with Wire(patient.port, "fickle") as client:
        client.connect()
        for turn in range(5):
            filters = tuple(f"fickle/{turn}/{n}" for n in range(1_000))
            client.subscribe(*filters, qos=1)
            client.send(Unsubscribe(client.take_id(), filters))
            client.expect(Unsuback)
            client.publish(filters[-1], b"x", 1)
        assert client.settle() == [], "nothing comes through a filter that was given back"


def test_a_publisher_that_never_reads_its_acknowledgements_is_bounded(patient: Patient) -> None:
    packet = encode(Publish("deaf", b"x" * 100, 1, packet_id=1), MQTT_3_1_1) * 500
    with Wire(patient.port, "deaf") as deaf:
        deaf.connect()
        deaf.send_some(packet, time.monotonic() + 3)
        assert patient.memory - patient.memory_before <= MEMORY_BYTES_MAX
        patient.check()


def test_a_message_of_the_largest_size_goes_round(patient: Patient) -> None:
    with Wire(patient.port, "large") as client:
        client.connect()
        client.subscribe("large", qos=0)
        client.send(Publish("large", bytes(16 * MIB), 0))
        assert len(client.receive().payload) == 16 * MIB
