"""Is what `/v1/sessions` says to be waiting exactly what the client is sent when it comes back?"""

from __future__ import annotations

import random
import time

import pytest

from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import (
    Disconnect,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
)
from penstock.mqtt.properties import NO_PROPERTIES, Properties
from tests.doors.hosted import Hosted
from tests.doors.wire import Wire
from tests.http.asking import Asking
from tests.http.v1.test_v1_sessions import show

STEPS = 120
CLIENTS = 4
SOON_S, LATE_S = 1, 3600
PATIENCE_S = 60.0


class RandomClients:
    """Clients that come, subscribe, publish and go at random, all under names of their own."""

    def __init__(self, broker: Hosted, client: Asking, name: str, seed: int) -> None:
        self._broker = broker
        self._client = client
        self._random = random.Random(seed)
        self.ids = [f"{name}-{number}" for number in range(CLIENTS)]
        self.wires: dict[str, Wire] = {}
        roots = [f"{name}a", f"{name}B", f"{name}-elsewhere", f"${name}"]
        for topic in roots[:2]:  # the others share the default topic
            assert client.ask("PUT", f"/v1/topics/{topic}").status == 201
        self._names = [f"{root}/{end}" for root in roots for end in ("x", "y", "x/deep", "y/z")]
        self._filters = [f"{root}/#" for root in roots] + self._names
        self._filters += [f"{roots[0]}/+", "+/x", "+/y/#", "#", f"{roots[3]}/+/deep", "+/+"]
        self._publisher = Wire(broker.port, f"{name}-publisher", MQTT_5)
        self._publisher.connect()

    def connect(self, client_id: str, receive_max: int | None = None) -> Wire:
        wire = self.wires[client_id] = Wire(self._broker.port, client_id, MQTT_5)
        properties = Properties(receive_maximum=receive_max, session_expiry_interval=3600)
        wire.connect(clean=False, properties=properties)
        return wire

    def step(self) -> None:
        dice = self._random
        client_id = dice.choice(self.ids)
        wire = self.wires.get(client_id)
        if dice.random() < 0.6 or wire is None:
            if wire is None and dice.random() < 0.3:
                self.connect(client_id, dice.randint(1, 4))
            else:
                self._publish(self._publisher)
        elif dice.random() < 0.4:
            self._subscribe(wire)
        elif dice.random() < 0.5:
            self._publish(wire)  # which its no-local filters do not want back
        else:
            self.leave(client_id)

    def _publish(self, wire: Wire) -> None:
        dice = self._random
        qos = dice.randint(0, 2)
        packet_id = wire.take_id() if qos else 0
        expiry_s = dice.choice([None, SOON_S, LATE_S])
        properties = Properties(message_expiry_interval=expiry_s)
        payload = dice.choice([b"yes", b"no", b""])
        name = dice.choice(self._names)
        retain = dice.random() < 0.2
        wire.send(Publish(name, payload, qos, retain, packet_id=packet_id, properties=properties))
        if qos == 1:
            wire.pick(Puback, packet_id)
        elif qos == 2:
            wire.pick(Pubrec, packet_id)
            wire.send(Pubrel(packet_id))
            wire.pick(Pubcomp, packet_id)
        else:
            wire.send(Publish(f"{name}/settled", b"", 1, packet_id=wire.take_id()))
            wire.pick(Puback)

    def _subscribe(self, wire: Wire) -> None:
        dice = self._random
        wish = Subscription(
            dice.choice(self._filters), dice.randint(0, 2), no_local=dice.random() < 0.3
        )
        asked = dice.choice([(), (), (("where", "payload = 'yes'"),), (("from", "earliest"),)])
        properties = Properties(user_properties=asked) if asked else NO_PROPERTIES
        packet_id = wire.take_id()
        wire.send(Subscribe(packet_id, (wish,), properties))
        wire.pick(Suback, packet_id)

    def leave(self, client_id: str) -> None:
        """Some of what came is acknowledged, and some not; some of that at QoS 2, half-way."""
        wire = self.wires.pop(client_id)
        for packet in wire.settle():
            if isinstance(packet, Publish) and self._random.random() < 0.5:
                if packet.qos == 1:
                    wire.send(Puback(packet.packet_id))
                elif packet.qos == 2:
                    wire.send(Pubrec(packet.packet_id))
        wire.settle()
        wire.send_and_close(Disconnect())
        deadline_s = time.monotonic() + PATIENCE_S
        while not self._broker.call(lambda: self._is_saved(client_id)):
            assert time.monotonic() < deadline_s

    def _is_saved(self, client_id: str) -> bool:
        exchange = self._broker.exchange
        return client_id not in exchange.sessions.connected and not exchange.store.tasks

    def received(self, client_id: str) -> int:
        """Come back and take everything; how many messages that is."""
        wire = self.connect(client_id)
        count = 0
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            is_level = self._broker.call(lambda: self._is_level(client_id))
            said = wire.settle()
            for packet in said:
                if isinstance(packet, Publish):
                    count += 1
                    wire.acknowledge(packet)
                elif isinstance(packet, Pubrel):  # of a message that it had before it went
                    wire.send(Pubcomp(packet.packet_id))
            if is_level and not said:
                return count
            assert time.monotonic() < deadline_s, "it does not come to an end"

    def _is_level(self, client_id: str) -> bool:
        session = self._broker.exchange.sessions.connected[client_id]
        behind = session.lags or session.window.count or any(one.lags for one in session.feeds)
        return not behind and not session.is_resending

    def close(self) -> None:
        for wire in [*self.wires.values(), self._publisher]:
            wire.close()


@pytest.mark.parametrize("seed", range(6))
def test_what_waits_and_what_is_out_is_what_comes(
    broker: Hosted, client: Asking, name: str, seed: int
) -> None:
    world = RandomClients(broker, client, name, seed)
    try:
        for _ in range(STEPS):
            world.step()
        for client_id in list(world.wires):
            world.leave(client_id)
        broker.wait_past_us(int(1.2 * SOON_S * 1_000_000))
        for client_id in world.ids:
            if client_id not in broker.exchange.store.stored:
                continue
            found = show(client, client_id)
            assert found["is_exact"] and not found["is_connected"]
            expected = found["waiting"] + found["outstanding"]
            assert world.received(client_id) == expected, (client_id, found)
            world.leave(client_id)
            assert show(client, client_id)["waiting"] == 0
    finally:
        world.close()
