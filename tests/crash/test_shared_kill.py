"""Kill -9 under shared subscriptions: does a group lose or repeat what it must not?"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest

from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Packet, Puback, Pubcomp, Publish, Pubrec, Pubrel
from tests.crash.mqtt_clients import Client, Publisher, Subscriber, Trigger
from tests.crash.test_mqtt_kill import DRAIN_S, numbers_of, verify
from tests.doors.served import Served
from tests.doors.wire import Wire, connect_kept

SEED = int(os.environ.get("PENSTOCK_SEED", random.SystemRandom().randrange(1 << 32)))
GROUPS = (1, 2)  # one of each QoS, of three members


class Crowd:
    """Two publishers and two groups over several lives of one broker."""

    def __init__(self, broker: Served) -> None:
        self._broker = broker
        self.once = Publisher("once", 2, "m/2")
        self.least = Publisher("least", 1, "m/1")
        self.groups = {
            qos: [Subscriber(f"q{qos}-{n}", qos, f"$share/q{qos}/m/#") for n in range(3)]
            for qos in GROUPS
        }

    @property
    def members(self) -> list[Subscriber]:
        return [*chain.from_iterable(self.groups.values())]

    def begin(self) -> None:
        self._broker.start()
        for one in self.members:
            one.subscribe(self._broker.port)

    def run(
        self, clients: list[Client], kind: type[Packet] | None, count: int, wait_s: float
    ) -> None:
        """Until the broker is killed; then it is there again."""
        trigger = Trigger(self._broker.pid, kind, count)
        threads = self._start(clients, trigger)
        if kind is None or not trigger.fired.wait(10.0):
            time.sleep(wait_s)
            trigger.fire()
        self._broker.kill()
        for thread in threads:
            thread.join(DRAIN_S)
            assert not thread.is_alive()
        verify(self._broker.data)
        self._broker.start()

    def _start(self, clients: list[Client], trigger: Trigger) -> list[threading.Thread]:
        port = self._broker.port
        threads = [
            threading.Thread(target=one.run, args=(port, trigger.saw), daemon=True)
            for one in clients
        ]
        for thread in threads:
            thread.start()
        return threads

    def lost(self, qos: int) -> set[tuple[str, int]]:
        """What was acknowledged to a publisher and given to nobody of a group."""
        received = [*chain.from_iterable(one.received for one in self.groups[qos])]
        found = set()
        for publisher in (self.once, self.least):
            numbers = set(numbers_of(publisher.client_id, received))
            missing = set(publisher.acked) - numbers
            found |= {(publisher.client_id, number) for number in missing}
        return found

    def drain(self) -> None:
        """Every member takes all there is, then the broker stops as it should."""
        threads = self._start(list(self.members), Trigger(0, None, 0))
        deadline = time.monotonic() + DRAIN_S
        while any(self.lost(qos) for qos in GROUPS) and time.monotonic() < deadline:
            time.sleep(0.05)
        self._broker.stop()
        for thread in threads:
            thread.join(DRAIN_S)

    def problems(self) -> list[str]:
        clients: list[Client] = [self.once, self.least, *self.members]
        found = [problem for one in clients for problem in one.problems]
        for qos in GROUPS:
            found += [f"group {qos}: {one} was acknowledged and lost" for one in self.lost(qos)]
        received = [*chain.from_iterable(one.received for one in self.groups[2])]
        times = Counter(numbers_of("once", received))
        again = sorted(number for number, count in times.items() if count > 1)
        if again:
            found.append(f"group 2: more than once: {again[:10]}")
        return found


@pytest.mark.slow
def test_a_group_loses_nothing_and_repeats_no_qos_2_when_the_broker_is_killed(
    tmp_path: Path,
) -> None:
    print(f"PENSTOCK_SEED={SEED}")
    chance = random.Random(SEED)
    crowd = Crowd(Served(tmp_path / "data"))
    crowd.begin()
    kinds: list[type[Packet] | None] = [None, Puback, Pubrec, Pubcomp, Publish, Pubrel]
    for round_number in range(12):
        present = [one for one in crowd.members if chance.random() < 0.7]
        clients: list[Client] = [crowd.once, crowd.least, *present]
        crowd.run(
            clients, kinds[round_number % 6], chance.randint(1, 300), chance.uniform(0.05, 1.5)
        )
    crowd.drain()
    assert crowd.problems() == []
    assert min(len(crowd.once.acked), len(crowd.least.acked)) > 300
    took = [len(one.received) for one in crowd.members]
    assert all(took), f"somebody got nothing: {took}"


@pytest.mark.parametrize("wait_s", [0.0, 1.5])
def test_what_a_member_without_a_kept_session_had_is_given_to_one_that_has_after_a_kill(
    tmp_path: Path, wait_s: float
) -> None:
    """Also when a checkpoint came between; and nothing from before the group was made."""
    broker = Served(tmp_path).start()
    with Wire(broker.port, "writer", MQTT_5) as writer, Wire(broker.port, "passing") as passing:
        writer.connect()
        writer.publish_all("jobs", 5, 1)
        kept, _ = connect_kept(broker.port, "kept", MQTT_5)
        kept.subscribe("$share/g/jobs", qos=1)
        kept.disconnect()
        passing.connect()
        passing.subscribe("$share/g/jobs", qos=1)
        for number in range(100, 110):
            writer.publish("jobs", b"%d" % number, 1)
        assert [passing.expect(Publish).payload for _ in range(10)] == [
            b"%d" % number for number in range(100, 110)
        ]
        time.sleep(wait_s)
        broker.kill()
    broker.start()
    kept, present = connect_kept(broker.port, "kept", MQTT_5)
    assert present
    assert [int(kept.receive().payload) for _ in range(10)] == list(range(100, 110))
    with Wire(broker.port, "writer", MQTT_5) as writer:
        writer.connect()
        writer.publish("jobs", b"next", 1)
    assert kept.receive().payload == b"next"
    broker.stop()
