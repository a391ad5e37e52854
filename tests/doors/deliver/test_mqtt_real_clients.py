"""Real clients: paho-mqtt in 3.1.1 and 5, and aiomqtt, against a real broker process."""

from __future__ import annotations

import asyncio
import os
import queue
from collections.abc import Iterator
from pathlib import Path

import aiomqtt
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import Disconnect
from penstock.mqtt.reasons import Reason
from tests.doors.served import Served
from tests.doors.wire import Wire
from tests.waiting import WAIT_S

VERSIONS = pytest.mark.parametrize("version", [paho.MQTTv31, paho.MQTTv311, paho.MQTTv5])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("data")) as broker:
        yield broker


class Paho:
    """A paho client in its own thread; what it receives comes out of a queue."""

    def __init__(self, port: int, client_id: str, version: int, *, is_kept: bool = False) -> None:
        clean = None if version == paho.MQTTv5 else not is_kept
        self._client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id, clean_session=clean, protocol=version
        )
        self.version = version
        self.messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self.is_present = False
        self._connected: queue.Queue[bool] = queue.Queue()
        self._subscribed: queue.Queue[list[int]] = queue.Queue()
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = self._on_subscribe
        self._client.on_message = lambda client, data, message: self.messages.put(message)
        self._client.will_set(f"will/{client_id}", b"gone", 1, True)
        asked = None
        if version == paho.MQTTv5 and is_kept:
            asked = Properties(PacketTypes.CONNECT)
            asked.SessionExpiryInterval = 1000
        start = not is_kept if version == paho.MQTTv5 else paho.MQTT_CLEAN_START_FIRST_ONLY
        self._client.connect("127.0.0.1", port, 60, clean_start=start, properties=asked)
        self._client.loop_start()
        self.is_present = self._connected.get(timeout=WAIT_S)

    def _on_connect(self, client, data, flags, reason, properties) -> None:  # type: ignore[no-untyped-def]
        assert not reason.is_failure, reason
        self._connected.put(flags.session_present)

    def _on_subscribe(self, client, data, mid, reasons, properties) -> None:  # type: ignore[no-untyped-def]
        self._subscribed.put([reason.value for reason in reasons])

    def subscribe(self, filter: str, qos: int) -> None:
        self._client.subscribe(filter, qos)
        assert self._subscribed.get(timeout=WAIT_S) == [qos]

    def subscribe_with(self, filter: str, options: SubscribeOptions) -> None:
        self._client.subscribe(filter, options=options)
        self._subscribed.get(timeout=WAIT_S)

    def publish(
        self,
        name: str,
        payload: bytes,
        qos: int,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> None:
        sent = self._client.publish(name, payload, qos, retain, properties)
        sent.wait_for_publish(WAIT_S)
        assert sent.is_published()

    def receive(self) -> paho.MQTTMessage:
        return self.messages.get(timeout=WAIT_S)

    def lose(self) -> None:
        """The connection breaks, and nobody says a word."""
        self._client.loop_stop()
        sock = self._client.socket()
        assert sock is not None
        sock.close()

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_paho_publishes_and_subscribes(served: Served, version: int, qos: int) -> None:
    name = f"paho/{version}/{qos}"
    reader = Paho(served.port, f"r{version}{qos}", version)
    writer = Paho(served.port, f"w{version}{qos}", version)
    reader.subscribe(name + "/#", qos)
    for number in range(20):
        writer.publish(f"{name}/{number % 3}", b"%d" % number, qos)
    received = [reader.receive() for _ in range(20)]
    assert [message.payload for message in received] == [b"%d" % number for number in range(20)]
    assert {message.qos for message in received} == {qos}
    reader.close()
    writer.close()


@VERSIONS
def test_paho_comes_back_to_its_session(served: Served, version: int) -> None:
    name = f"kept/{version}"
    reader = Paho(served.port, f"kept{version}", version, is_kept=True)
    reader.subscribe(name, 2)
    reader.close()
    writer = Paho(served.port, f"kw{version}", version)
    for number in range(30):
        writer.publish(name, b"%d" % number, 1 + number % 2)
    reader = Paho(served.port, f"kept{version}", version, is_kept=True)
    if version != paho.MQTTv31:  # which has no word for it
        assert reader.is_present
    received = [int(reader.receive().payload) for _ in range(30)]
    for parity in (0, 1):  # paho hands a QoS 2 message on at its release, others at once
        assert [one for one in received if one % 2 == parity] == list(range(parity, 30, 2))
    assert reader.messages.empty()
    reader.close()
    writer.close()


@VERSIONS
def test_paho_is_given_retained_messages(served: Served, version: int) -> None:
    name = f"retained/{version}"
    writer = Paho(served.port, f"rw{version}", version)
    writer.publish(name, b"old", 1, True)
    writer.publish(name, b"new", 1, True)
    reader = Paho(served.port, f"rr{version}", version)
    reader.subscribe(name, 1)
    message = reader.receive()
    assert (message.payload, message.retain) == (b"new", True)
    writer.publish(name, b"", 1, True)
    assert reader.receive().payload == b""
    reader.close()
    writer.close()


@VERSIONS
def test_paho_lost_leaves_its_will_and_paho_that_leaves_does_not(
    served: Served, version: int
) -> None:
    reader = Paho(served.port, f"wr{version}", version)
    for client_id in (f"leaves{version}", f"lost{version}"):
        reader.subscribe(f"will/{client_id}", 1)
    Paho(served.port, f"leaves{version}", version).close()
    Paho(served.port, f"lost{version}", version).lose()
    message = reader.receive()
    assert (message.topic, message.payload) == (f"will/lost{version}", b"gone")
    late = Paho(served.port, f"wl{version}", version)
    late.subscribe(f"will/lost{version}", 1)
    assert late.receive().retain
    assert reader.messages.empty()
    reader.close()
    late.close()


@VERSIONS
def test_paho_clients_share_a_subscription(served: Served, version: int) -> None:
    name = f"jobs/{version}"
    workers = [Paho(served.port, f"worker{version}{n}", version) for n in range(3)]
    for worker in workers:
        worker.subscribe(f"$share/workers/{name}/#", 1)
    writer = Paho(served.port, f"jw{version}", version)
    for number in range(30):
        writer.publish(f"{name}/{number % 4}", b"%d" % number, 1)
    got = [[worker.receive().payload for _ in range(10)] for worker in workers]
    assert sorted(int(one) for mine in got for one in mine) == list(range(30))
    for client in (*workers, writer):
        client.close()
    assert all(worker.messages.empty() for worker in workers)


def test_paho_5_sends_and_receives_properties(served: Served) -> None:
    reader = Paho(served.port, "p5r", paho.MQTTv5)
    options = SubscribeOptions(qos=1, noLocal=True, retainAsPublished=True)
    reader.subscribe_with("props", options)
    writer = Paho(served.port, "p5w", paho.MQTTv5)
    sent = Properties(PacketTypes.PUBLISH)
    sent.ContentType = "application/json"
    sent.ResponseTopic = "answers"
    sent.CorrelationData = b"\x00\xff"
    sent.MessageExpiryInterval = 100
    sent.UserProperty = ("a", "1")
    sent.UserProperty = ("a", "2")
    writer.publish("props", b"{}", 1, True, sent)
    message = reader.receive()
    got = message.properties
    assert got is not None
    assert (got.ContentType, got.ResponseTopic) == ("application/json", "answers")
    assert got.CorrelationData == b"\x00\xff"
    assert got.UserProperty == [("a", "1"), ("a", "2")]
    assert 98 <= got.MessageExpiryInterval <= 100
    assert message.retain
    reader.close()
    writer.close()


@pytest.mark.parametrize("protocol", [aiomqtt.ProtocolVersion.V311, aiomqtt.ProtocolVersion.V5])
async def test_aiomqtt_publishes_and_subscribes(
    served: Served, protocol: aiomqtt.ProtocolVersion
) -> None:
    received = []
    name = f"aiomqtt/{protocol.value}"
    address = {"hostname": "127.0.0.1", "port": served.port, "protocol": protocol}
    will = aiomqtt.Will("will", b"gone", 1)
    async with aiomqtt.Client(**address, will=will) as reader:
        await reader.subscribe(name + "/+", qos=2)
        async with aiomqtt.Client(**address) as writer:
            for number in range(30):
                await writer.publish(f"{name}/x", b"%d" % number, qos=number % 3)
        async with asyncio.timeout(WAIT_S):
            async for message in reader.messages:
                assert isinstance(message.payload, bytes)
                received.append((message.payload, message.qos))
                if len(received) == 30:
                    break
    assert sorted(received) == sorted((b"%d" % n, n % 3) for n in range(30))


def test_keep_alive_given_by_the_server_is_kept_to_by_a_real_client(tmp_path: Path) -> None:
    """A client that asks for a minute is given a second: does it ping in time, and stay?"""
    env = os.environ | {"PENSTOCK_MQTT__KEEP_ALIVE_S_MAX": "1"}
    with (
        Served(tmp_path, env=env) as broker,
        Wire(broker.port, "silent", MQTT_5) as silent,
        Wire(broker.port, "older", MQTT_3_1_1) as older,
    ):
        for asked_s in (60, 0):
            with Wire(broker.port, "asking", MQTT_5) as asking:
                answer = asking.connect(keep_alive_s=asked_s)
                assert answer.properties.server_keep_alive == 1
        real = Paho(broker.port, "real", paho.MQTTv5)
        older.connect(keep_alive_s=60)  # it cannot be told, so its own counts
        for _ in range(2):  # each time longer than one and a half keep alives
            silent = Wire(broker.port, "silent", MQTT_5)
            silent.connect(keep_alive_s=60)
            assert silent.expect(Disconnect).reason == Reason.KEEP_ALIVE_TIMEOUT
        assert older.settle() == []
        real.subscribe("a", 1)
        older.publish("a", b"still here", 1)
        assert real.messages.get(timeout=WAIT_S).payload == b"still here"
        real.close()
