"""Kill -9 under MQTT traffic: is what was acknowledged there afterwards, once where it must be?"""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path

import pytest

from penstock import Broker
from penstock.log.files.disk import RealDisk
from penstock.log.files.upkeep.verify import verify_log
from penstock.mqtt.packets import Packet, Puback, Pubcomp, Pubrec
from tests.crash.mqtt_clients import Client, Publisher, Subscriber, Trigger
from tests.doors.served import Served
from tests.doors.wire import Wire

SEED = int(os.environ.get("PENSTOCK_SEED", random.SystemRandom().randrange(1 << 32)))
EAGER = Path(__file__).with_name("eager_child.py")
DRAIN_S = 60.0
LOSS_S = 5.0  # of a broker that loses messages, so that some never come


class Traffic:
    """Publishers and subscribers over several lives of one broker."""

    def __init__(self, broker: Served, **storage: str) -> None:
        self._broker = broker
        self._storage = storage  # settings that say where topics are, if not in files
        self.once = Publisher("once", 2, "m/2")
        self.least = Publisher("least", 1, "m/1")
        self.keeping = Publisher("keeping", 1, "r", names=7)
        self.online = [Subscriber(f"online-{qos}", qos, "m/#") for qos in (1, 2)]
        self.offline = [Subscriber(f"offline-{qos}", qos, "m/+") for qos in (1, 2)]
        self.online += [Subscriber(f"feed-{qos}", qos, "m/#", start="-1h") for qos in (1, 2)]
        self.offline.append(Subscriber("offline-feed-2", 2, "m/+", start="earliest"))

    @property
    def clients(self) -> list[Client]:
        return [self.once, self.least, self.keeping, *self.online, *self.offline]

    def begin(self) -> None:
        self._broker.start()
        for one in (*self.online, *self.offline):
            one.subscribe(self._broker.port)

    def run(self, kind: type[Packet] | None, count: int, wait_s: float, others: int) -> None:
        """All but the offline ones, until the broker is killed; then it is there again."""
        trigger = Trigger(self._broker.pid, kind, count)
        running: list[Client] = [self.once, self.least, self.keeping, *self.online]
        running += self.offline[:others]
        threads = self._start(running, trigger)
        if kind is None:
            time.sleep(wait_s)
            trigger.fire()
        assert trigger.fired.wait(DRAIN_S)
        self._broker.kill()
        for thread in threads:
            thread.join(DRAIN_S)
            assert not thread.is_alive()
        if not self._storage:
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

    def drain(self, patience_s: float = DRAIN_S) -> None:
        """Every subscriber takes all there is, then the broker stops as it should.

        It is given up when nothing comes for `patience_s`.
        """
        readers = [*self.online, *self.offline]
        threads = self._start(list(readers), Trigger(0, None, 0))
        with Wire(self._broker.port, "last") as last:
            last.connect()
            last.publish("m/end", b"end 0", 2)
        deadline, received = 0.0, -1
        while not all(b"end 0" in one.received for one in readers):
            if sum(len(one.received) for one in readers) != received:
                received = sum(len(one.received) for one in readers)
                deadline = time.monotonic() + patience_s
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        self._broker.stop()
        for thread in threads:
            thread.join(DRAIN_S)

    def problems(self) -> list[str]:
        """Everything that contradicts an acknowledgement."""
        found = [problem for one in self.clients for problem in one.problems]
        for reader in (*self.online, *self.offline):
            for publisher in (self.once, self.least):
                numbers = numbers_of(publisher.client_id, reader.received)
                who = f"{reader.client_id} from {publisher.client_id}"
                lost = sorted(set(publisher.acked) - set(numbers))
                found += [f"{who}: {number} was acknowledged and lost" for number in lost]
                firsts = list(dict.fromkeys(numbers))
                if firsts != sorted(firsts):
                    found.append(f"{who}: out of order")
                is_exact = reader.client_id.endswith("2") and publisher is self.once
                if is_exact and len(firsts) != len(numbers):
                    again = sorted({n for n in numbers if numbers.count(n) > 1})
                    found.append(f"{who}: more than once: {again[:10]}")
        return found

    def stored_problems(self, *, in_order: bool = True) -> list[str]:
        """What the log holds of the QoS 2 publisher: once each, in order."""
        with Broker(self._broker.data, **self._storage) as broker:
            payloads = [record.payload for record in broker.read("default")]
        numbers = numbers_of("once", payloads)
        if not in_order:
            numbers.sort()
        if numbers != list(range(len(numbers))):
            return [f"stored: {len(numbers)} of the QoS 2 publisher, not once each in order"]
        return []

    def retained_problems(self) -> list[str]:
        """The retained message of a name is the newest acknowledged one, or one sent after it."""
        held: dict[int, int] = {}
        with Wire(self._broker.port, "looking") as looking:
            looking.connect()
            looking.subscribe("r/#", qos=1)
            for _ in range(min(7, len(self.keeping.acked))):
                message = looking.receive()
                held[int(message.name.split("/")[1])] = int(message.payload.split()[1])
        found = []
        for name in range(7):
            acked = [number for number in self.keeping.acked if number % 7 == name]
            if acked and held.get(name, -1) < max(acked):
                found.append(f"r/{name} holds {held.get(name)}, {max(acked)} was acknowledged")
        return found


def numbers_of(client_id: str, payloads: list[bytes]) -> list[int]:
    prefix = client_id.encode() + b" "
    return [int(payload.split()[1]) for payload in payloads if payload.startswith(prefix)]


def verify(data: Path) -> None:
    for directory in (data / "default").iterdir():
        assert verify_log(RealDisk(), directory).problems == []


@pytest.mark.slow
def test_killed_again_and_again_every_acknowledgement_holds(tmp_path: Path) -> None:
    print(f"PENSTOCK_SEED={SEED}")
    chance = random.Random(SEED)
    traffic = Traffic(Served(tmp_path / "data"))
    traffic.begin()
    kinds: list[type[Packet] | None] = [None, Puback, Pubrec, Pubcomp]
    for round_number in range(18):
        kind = kinds[round_number % 4]
        others = 2 if round_number % 6 == 5 else 0
        traffic.run(kind, chance.randint(1, 300), chance.uniform(0.05, 1.5), others)
        assert traffic.retained_problems() == []
    traffic.drain()
    assert traffic.problems() == []
    assert traffic.stored_problems() == []
    assert min(len(traffic.once.acked), len(traffic.least.acked)) > 300


@pytest.mark.slow
def test_the_test_notices_an_ack_that_comes_before_the_commit(tmp_path: Path) -> None:
    print(f"PENSTOCK_SEED={SEED}")
    chance = random.Random(SEED)
    problems: list[str] = []
    for attempt in range(10):
        traffic = Traffic(Served(tmp_path / f"{attempt}", program=EAGER))
        traffic.begin()
        try:
            traffic.run(chance.choice([Puback, Pubrec]), chance.randint(1, 50), 0.0, 0)
            traffic.drain(LOSS_S)
        except AssertionError as noticed:
            problems = [str(noticed)]
            break
        problems = [one for one in traffic.problems() if "lost" in one]
        if problems:
            break
    print(problems)
    assert problems
