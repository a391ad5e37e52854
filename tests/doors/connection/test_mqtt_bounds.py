"""Every bound is reached once: large messages, many filters, floods, readers that do not read."""

from __future__ import annotations

import re
import socket
import threading
import time
from pathlib import Path

import pytest

from penstock.doors.mqtt.receive.publishing import UNACKED_MAX
from penstock.doors.mqtt.receive.subscribing import SUBSCRIPTIONS_MAX
from penstock.doors.mqtt.unsent import OUT_BYTES_MAX
from penstock.model.limits import MIB, PAYLOAD_BYTES_MAX
from penstock.mqtt.encode import encode
from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import (
    Disconnect,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Subscription,
)
from penstock.mqtt.reasons import Reason
from tests.doors.hosted import Hosted
from tests.doors.served import Served
from tests.doors.wire import Wire, connect_kept

SLOW_DISK = Path(__file__).with_name("slow_disk_child.py")


def memory_bytes(pid: int) -> int:
    """The most a process has had in memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_largest_message_arrives_and_a_larger_one_is_refused(
    broker: Hosted, name: str, qos: int
) -> None:
    with Wire(broker.port, name, MQTT_5) as client, Wire(broker.port, name + "2") as reader:
        client.connect()
        reader.connect()
        reader.subscribe(name, qos=qos)
        payload = b"x" * PAYLOAD_BYTES_MAX
        client.publish(name, payload, qos)
        assert reader.receive().payload == payload
        client.send(Publish(name, payload + b"x", qos, packet_id=9 if qos else 0))
        assert client.expect(Disconnect).reason == Reason.PACKET_TOO_LARGE
        assert client.is_closed()
        assert reader.settle() == []


def test_ten_thousand_subscriptions_are_taken_and_no_more(broker: Hosted, name: str) -> None:
    with Wire(broker.port, name, MQTT_5) as client:
        client.connect()
        for start in range(0, SUBSCRIPTIONS_MAX, 2000):
            filters = [Subscription(f"{name}/{n}", 1) for n in range(start, start + 2000)]
            client.send(Subscribe(1, tuple(filters)))
            assert set(client.expect(Suback).reasons) == {Reason.GRANTED_QOS_1}
        known, new = f"{name}/17", f"{name}/new"
        assert client.subscribe(known, new).reasons == (Reason.SUCCESS, Reason.QUOTA_EXCEEDED)
        client.publish(f"{name}/9999", b"x", 1)
        assert client.receive().payload == b"x"


def test_more_in_flight_than_any_receive_maximum_is_held_back_not_lost(
    broker: Hosted, name: str
) -> None:
    """A client that sends far more than 65,535 at once: is every message acknowledged?"""
    with Wire(broker.port, name) as client:
        client.connect()
        count = UNACKED_MAX * 3 // 2
        data = b"".join(
            encode(Publish(name, b"", 1, packet_id=n % UNACKED_MAX + 1), MQTT_3_1_1)
            for n in range(count)
        )
        sender = threading.Thread(target=client.send_bytes, args=(data,))
        sender.start()
        for number in range(count):
            assert client.expect(Puback).packet_id == number % UNACKED_MAX + 1
        sender.join()


def test_connections_beyond_the_bound_are_closed(tmp_path: Path) -> None:
    with Hosted(tmp_path, mqtt__connections_max=3) as broker:
        inside = [Wire(broker.port) for _ in range(3)]
        for one in inside:
            one.connect()
        assert Wire(broker.port).is_closed()
        inside.pop().disconnect()
        with Wire(broker.port) as again:
            again.connect()
            assert again.settle() == []


def test_reader_that_never_reads_costs_bounded_memory_and_the_others_nothing(
    tmp_path: Path,
) -> None:
    """QoS 0 beyond its buffer is dropped; QoS 1 waits in the log and comes when it reads on."""
    with Served(tmp_path) as broker:
        stuck, _ = connect_kept(broker.port, "stuck", MQTT_5)
        stuck.subscribe("zero", qos=0)
        stuck.subscribe("one", qos=1)
        with Wire(broker.port) as writer, Wire(broker.port, "fine") as fine:
            writer.connect()
            fine.connect()
            fine.subscribe("end", qos=1)
            writer.publish("one", b"0", 1)
            before = memory_bytes(broker.pid)
            large = bytes(64 * 1024)
            for number in range(1, 41):
                for _ in range(40):  # 100 MB in all
                    writer.send(Publish("zero", large, 0))
                writer.publish("one", b"%d" % number, 1)
            writer.publish("end", b"x", 1)
            assert fine.receive().payload == b"x"
            assert memory_bytes(broker.pid) - before < 64 * MIB
            strong, weak = [], 0
            while len(strong) < 41:
                message = stuck.receive()
                if message.qos:
                    strong.append(int(message.payload))
                else:
                    weak += 1
            assert strong == list(range(41))
            assert 0 < weak * len(large) < 2 * OUT_BYTES_MAX
        stuck.close()


def test_what_is_dropped_for_a_full_buffer_is_counted(broker: Hosted, name: str) -> None:
    with Wire(broker.port, name) as stuck, Wire(broker.port, name + "p") as writer:
        stuck.connect()
        stuck.subscribe(name)
        writer.connect()
        before = broker.dropped["queue_full"]
        count = 40
        for _ in range(count):
            writer.send(Publish(name, bytes(MIB), 0))
        writer.settle()
        dropped = broker.dropped["queue_full"] - before
        assert 0 < dropped < count
        stuck.subscribe_later("end" + name)
        received = 0
        while (packet := stuck.next()) and not isinstance(packet, Suback):
            received += 1
        assert received + dropped == count


@pytest.mark.parametrize("qos", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_publishers_faster_than_the_disk_are_held_back(tmp_path: Path, qos: int) -> None:
    """Does what waits for the disk stay bounded, whoever sends, at any QoS?"""
    broker = Served(tmp_path, program=SLOW_DISK).start()
    writers = [Wire(broker.port, f"w{n}") for n in range(8)]
    for writer in writers:
        writer.connect()
    before = memory_bytes(broker.pid)
    publish = Publish("a", bytes(32_000), qos, packet_id=1 if qos else 0)
    chunk = encode(publish, MQTT_3_1_1) * 32
    until_s = time.monotonic() + 4  # several syncs
    sent = 0
    while time.monotonic() < until_s:
        sent += sum(writer.send_some(chunk, until_s) for writer in writers)
    assert memory_bytes(broker.pid) - before < 96 * MIB
    assert sent > 16 * MIB
    for writer in writers:
        writer.close()
    broker.kill()


def test_many_half_open_connections_do_no_harm(broker: Hosted) -> None:
    half = [socket.create_connection(("127.0.0.1", broker.port)) for _ in range(300)]
    for number, one in enumerate(half):
        one.sendall(b"\x10" if number % 2 else b"\x30\xff")
    with Wire(broker.port) as client:
        client.connect()
        assert client.settle() == []
    for one in half:
        one.close()
