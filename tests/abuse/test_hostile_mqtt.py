"""May one MQTT client, known or not, stop the others or make the broker's memory grow?"""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path

import pytest

from penstock.core.naming.overlaps import OVERLAPS_MAX
from penstock.model.limits import KIB, MIB
from penstock.mqtt.encode import encode
from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import (
    Connect,
    Pingreq,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from penstock.mqtt.properties import Properties
from penstock.mqtt.reasons import Reason
from tests.abuse.healthy import Beside, queued_bytes
from tests.abuse.test_unread import flood
from tests.doors.served import Served
from tests.doors.wire import Wire, kept

DECLARES_16_MIB = b"\x10\x80\x80\x80\x08"
GROWN_BYTES_MAX = 48 * MIB
WILLS_BYTES_MAX = 128 * MIB  # what waits for its commit and to be read, twice
RETAINED_BYTES_MAX = 200 * MIB  # 320 MiB are retained; what is not saved yet, cache and output
UNREAD_BYTES_MAX = 128 * MIB  # a log's newest records, and what is on its way, besides
QUEUED_BYTES_MAX = 256 * KIB  # of one reader that does not read, in the system
SERVED_MIN = 10  # rounds of a healthy client during an attack


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path) as broker:
        yield broker


def stranger(served: Served) -> socket.socket:
    return socket.create_connection(("127.0.0.1", served.port), 20)


def test_forty_connects_that_declare_16_mib_cost_little(served: Served) -> None:
    piece = bytes(64 * KIB)
    with Beside.mqtt(served) as healthy, ExitStack() as stack:
        crowd = [stack.enter_context(stranger(served)) for _ in range(40)]
        for one in crowd:
            one.sendall(DECLARES_16_MIB + b"\x00\x04MQTT\x05")
            one.setblocking(False)
        for _ in range(255):
            for one in crowd:
                try:
                    one.send(piece)
                except OSError:
                    continue
    assert healthy.grown_bytes < GROWN_BYTES_MAX


def overlapping(levels: int, count: int) -> list[str]:
    """Filters that all match one name of so many levels `a`."""
    return [
        "/".join("+" if bits >> at & 1 else "a" for at in range(levels)) for bits in range(count)
    ]


@pytest.mark.parametrize("identifiers", [0, 10_000])
def test_overlapping_filters_of_some_do_not_stop_the_others(
    served: Served, identifiers: int
) -> None:
    filters = [one + "/+" for one in overlapping(14, 10_000)]
    names = ["/".join(["a"] * 14 + [f"{n:05}"]) for n in range(3_000)]
    with ExitStack() as stack:
        readers = [stack.enter_context(Wire(served.port, f"r{n}", MQTT_5)) for n in range(4)]
        writer = stack.enter_context(Wire(served.port, "writer", MQTT_5))
        writer.connect()
        for one in readers:
            one.connect()
        granted = 0
        with Beside.mqtt(served) as subscribing:
            size = 10 if identifiers else 1_000
            for one, at in product(readers, range(0, 10_000, size)):
                asked = Properties(subscription_identifiers=(at + 1,) if identifiers else ())
                wanted = tuple(Subscription(two, 0) for two in filters[at : at + size])
                one.send(Subscribe(1, wanted, asked))
                granted += one.pick(Suback).reasons.count(Reason.SUCCESS)
        with Beside.mqtt(served, "beside2") as publishing:
            writer.send_bytes(b"".join(encode(Publish(n, b"x", 0), MQTT_5) for n in names))
            writer.settle()
        print(granted, "filters granted;", [len(one._socket.recv(MIB)) for one in readers])
    assert subscribing.rounds >= SERVED_MIN
    assert publishing.rounds >= SERVED_MIN
    assert publishing.grown_bytes < GROWN_BYTES_MAX


def test_one_filter_too_many_is_refused_in_words_and_the_others_are_served(served: Served) -> None:
    with Wire(served.port, "wild", MQTT_5) as client:
        client.connect()
        wild = overlapping(8, OVERLAPS_MAX + 2)[1:]
        asked = Properties(subscription_identifiers=(7,))
        client.send(Subscribe(1, tuple(Subscription(one, 1) for one in wild), asked))
        answer = client.expect(Suback)
        assert answer.reasons == (Reason.GRANTED_QOS_1,) * OVERLAPS_MAX + (Reason.QUOTA_EXCEEDED,)
        assert "at most 64 may match one name" in (answer.properties.reason_string or "")
        client.send(Unsubscribe(2, (wild[0],)))
        client.expect(Unsuback)
        assert client.subscribe(wild[-1], qos=1).reasons == (Reason.GRANTED_QOS_1,)
        client.publish("/".join(["a"] * 8), b"once", 1)
        assert client.receive().payload == b"once"
        assert client.settle() == []


def test_two_thousand_subscribes_to_sys(served: Served) -> None:
    with Beside.mqtt(served) as healthy, Wire(served.port, "curious") as client:
        client.connect()
        client.send_bytes(
            b"".join(
                encode(Subscribe(n + 1, (Subscription("$SYS/#", 0),)), MQTT_3_1_1)
                for n in range(2_000)
            )
        )
        answered = 0
        while answered < 2_000:
            answered += sum(isinstance(one, Suback) for one in client.take())
    assert healthy.rounds >= SERVED_MIN


def test_a_flood_of_pings(served: Served) -> None:
    count = 200_000
    with Beside.mqtt(served) as healthy, Wire(served.port, "pinging") as client:
        client.connect()
        sock = client._socket
        data = encode(Pingreq(), MQTT_3_1_1) * count
        sock.setblocking(False)
        sent = received = 0
        while received < 2 * count:
            readable, writable, _ = select.select([sock], [sock] if sent < 2 * count else [], [])
            if readable:
                received += len(sock.recv(MIB))
            if writable:
                sent += sock.send(data[sent : sent + 256 * KIB])
    assert healthy.rounds >= SERVED_MIN
    assert healthy.worst_s < healthy.took_s / 4


@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize("kind", [Pubrec, Pubrel])
def test_answers_to_a_flood_of_acknowledgements_that_are_not_read(
    served: Served, kind: type[Pubrec] | type[Pubrel], is_kept: bool
) -> None:
    """A client that takes no PUBREL, or no PUBCOMP, is not read on."""
    with Beside.mqtt(served) as healthy, Wire(served.port, "deaf", MQTT_5) as client:
        client.connect(properties=kept() if is_kept else Properties())
        client.subscribe("twice", qos=2)
        client.send(Publish("twice", b"", 2, packet_id=1))
        received = client.pick(Publish)
        acks = encode(kind(received.packet_id), MQTT_5) * 64_000
        sent = flood(client._socket, acks, 64 * MIB, lambda: None)
    assert sent < 64 * MIB, "the broker read all of it"
    assert healthy.grown_bytes < GROWN_BYTES_MAX


@pytest.mark.slow
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("is_shared", [True, False])
def test_three_hundred_readers_that_do_not_read(served: Served, is_shared: bool, qos: int) -> None:
    """A message is in memory once for all its readers; where each has its own, some have to go."""
    count = 300
    asked = Properties(topic_alias_maximum=10)  # an alias does not make it another message
    with ExitStack() as stack:
        deaf = [stack.enter_context(Wire(served.port, f"deaf{n}", MQTT_5)) for n in range(count)]
        for number, one in enumerate(deaf):
            one.take_slowly()
            one.connect(properties=asked)
            name = "a-name-for-all" if is_shared else f"a-name-for-one/{number}"
            one.send(Subscribe(1, (Subscription(name, qos),)))
            one.pick(Suback)
        writer = stack.enter_context(Wire(served.port, "writer", MQTT_5))
        writer.connect()
        with Beside.mqtt(served) as healthy:
            names = ["a-name-for-all"] * 30
            if not is_shared:
                names = [f"a-name-for-one/{number}" for number in range(count)]
            for name in names:
                writer.publish(name, bytes(900 * KIB), 1)
            queued = queued_bytes(served.port)
        # A client that reads is served as before.
        reader = stack.enter_context(Wire(served.port, "reader", MQTT_5))
        reader.connect()
        reader.subscribe("a-name-for-all", qos=1)
        writer.publish("a-name-for-all", bytes(900 * KIB), 1)
        assert len(reader.receive().payload) == 900 * KIB
    print(f"{queued / MIB:.0f} MiB in the system's queues")
    assert queued < count * QUEUED_BYTES_MAX, "it counts as memory, too"
    healthy.check(UNREAD_BYTES_MAX if is_shared else 2 * UNREAD_BYTES_MAX)
    assert healthy.rounds >= SERVED_MIN


@pytest.mark.slow
def test_messages_of_a_reader_that_was_closed_come_when_it_is_back(served: Served) -> None:
    """Sessions go on from the log; nothing of it was lost, and no reader gets another's bytes."""
    count = 200
    with ExitStack() as stack:
        for number in range(count):
            deaf = stack.enter_context(Wire(served.port, f"deaf{number}", MQTT_5))
            deaf.take_slowly()
            deaf.connect(clean=False, properties=kept())
            deaf.send(Subscribe(1, (Subscription(f"own/{number}", 1), Subscription("all", 1))))
            deaf.pick(Suback)
        writer = stack.enter_context(Wire(served.port, "writer", MQTT_5))
        writer.connect()
        for number in range(count):
            writer.publish(f"own/{number}", bytes([number]) * (900 * KIB), 1)
        for number in range(3):
            writer.publish("all", bytes([number]) * (100 * KIB), 1)
    for number in range(0, count, 20):
        with Wire(served.port, f"deaf{number}", MQTT_5) as back:
            back.connect(clean=False, properties=kept())
            got = [back.receive() for _ in range(4)]
            own = [one.payload for one in got if one.name != "all"]
            assert own == [bytes([number]) * (900 * KIB)]
            shared = [one.payload for one in got if one.name == "all"]
            assert shared == [bytes([at]) * (100 * KIB) for at in range(3)]


def test_a_thousand_wills_of_60_kb_at_once(served: Served) -> None:
    will = Will("wills", bytes(60_000), 1)
    with Wire(served.port, "heir") as heir, Beside.mqtt(served) as healthy:
        heir.connect()
        heir.subscribe("wills", qos=1)
        for turn in range(4):
            with ExitStack() as stack:
                crowd = [stack.enter_context(stranger(served)) for _ in range(250)]
                for at, one in enumerate(crowd):
                    connect = Connect(f"w{turn}-{at}", will=will, version=MQTT_3_1_1)
                    one.sendall(encode(connect, MQTT_3_1_1))
                for one in crowd:
                    assert one.recv(4) == b"\x20\x02\x00\x00"
        for _ in range(1_000):
            assert len(heir.receive().payload) == 60_000
    assert healthy.rounds >= SERVED_MIN
    assert healthy.grown_bytes < WILLS_BYTES_MAX


def test_retained_messages_of_8_mib_are_not_kept_in_memory(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        with Beside.mqtt(served) as healthy, Wire(served.port, "writer") as writer:
            writer.connect()
            for number in range(40):
                writer.publish(f"big/{number}", bytes([number]) * (8 * MIB), 1, retain=True)
            check_retained(served)
        assert healthy.rounds >= SERVED_MIN
        assert healthy.grown_bytes < RETAINED_BYTES_MAX
    with Served(tmp_path) as served:  # the same from a broker that never saw them published
        with Beside.mqtt(served) as healthy:
            check_retained(served)
        assert healthy.grown_bytes < RETAINED_BYTES_MAX


def check_retained(served: Served) -> None:
    with Wire(served.port, "late") as reader:
        reader.connect()
        reader.subscribe("big/#", qos=1)
        found = {}
        while len(found) < 40:
            message = reader.receive()
            found[int(message.name[4:])] = set(message.payload), len(message.payload)
        assert found == {number: ({number}, 8 * MIB) for number in range(40)}


def test_endless_subscribing_to_what_is_retained_keeps_nobody_waiting(served: Served) -> None:
    with Wire(served.port, "writer") as writer, Wire(served.port, "greedy") as greedy:
        writer.connect()
        for number in range(2_000):
            writer.send(Publish(f"small/{number}", b"x", 0, retain=True))
        writer.settle()
        greedy.connect()
        asked = encode(Subscribe(1, (Subscription("#", 0),)), MQTT_3_1_1)
        with Beside.mqtt(served) as healthy:
            greedy.send_bytes(asked * 200)
            answered = 0
            while answered < 200:
                answered += sum(isinstance(one, Suback) for one in greedy.take())
    assert healthy.rounds >= SERVED_MIN
    assert healthy.grown_bytes < GROWN_BYTES_MAX
