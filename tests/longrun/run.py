"""Random traffic against a broker that is killed again and again, and the ledger that judges it.

A run is rounds. In a round everybody does whatever chance says, and the broker is killed at any
moment; then it is calm, everybody who has something to come is there, and what is owed must come.
The seed gives the same decisions again; the moments at which packets arrive are the machine's.
"""

from __future__ import annotations

import os
import random
import select
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from penstock import Broker
from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import Publish
from tests.doors.served import Served
from tests.doors.session.test_mqtt_wills import stored_wills
from tests.doors.wire import Wire
from tests.longrun.clients import Arrival, Client, Publisher, State, Subscriber, Watcher
from tests.longrun.ledger import Ledger, Receiver
from tests.longrun.wills import Wills

VERSIONS = (MQTT_3_1_1, MQTT_5)
NAMES = 3  # of each publisher, and as many retained
FILTERS = ["#", "d/#", "d/+/0", "+/p0/#", "d/p1/#", "d/p2/+", "+/+/1", "r/#", "d/p5/2", "r/p4/+"]
SHARED = {1: "d/#", 2: "+/+/+"}  # QoS of a group -> what it shares
GRACE_S = 1
QUIET_S = 15.0  # when nothing was heard for so long, what is owed does not come any more


class Failure(AssertionError):
    """The broker did what it must not, or did not what it must."""


class Run:
    """All clients and the broker, for some time."""

    def __init__(self, data: Path, seed: int, program: Path | None = None) -> None:
        self.ledger = Ledger()
        self.wills = Wills(self.ledger)
        self.rounds = self.kills = 0
        self._heard_s = 0.0  # when a packet last came
        self.chance = random.Random(seed)
        env = dict(os.environ, PENSTOCK_MQTT__WILL_GRACE_S=str(GRACE_S))
        self.broker = Served(data, env=env, program=program)
        make = (self.ledger, self.wills)
        self.watcher = Watcher(*make, "watcher", MQTT_5, 2, is_kept=True)
        self.publishers = [
            Publisher(*make, f"p{n}", VERSIONS[n % 2], qos) for n, qos in enumerate((0, 1, 1, 2, 2))
        ]
        self.publishers.append(Publisher(*make, "p5", MQTT_5, 2))
        self.readers = [
            Subscriber(*make, f"{kind}{version}-{qos}-{n}", version, qos, is_kept=kind == "kept")
            for kind, count in (("kept", 2), ("passing", 1))
            for version in VERSIONS
            for qos in range(3)
            for n in range(count)
        ]
        self.groups = {
            qos: Receiver(self.ledger, f"group {qos}", qos, is_group=True) for qos in SHARED
        }
        self.members = [
            Subscriber(*make, f"m{qos}-{n}", VERSIONS[n % 2], qos, is_kept=is_kept, group=group)
            for qos, group in self.groups.items()
            for n, is_kept in enumerate((True, True, True, True, qos == 2, qos == 2))
        ]
        self.visitors: list[Client] = []  # come with a will, go, and never come back

    @property
    def clients(self) -> list[Client]:
        return [
            self.watcher,
            *self.publishers,
            *self.readers,
            *self.members,
            *self.visitors,
        ]

    @property
    def received(self) -> int:
        return sum(one.count for one in (*self.readers, *self.members))

    # A run

    def begin(self) -> None:
        """Those that must miss nothing are subscribed before anything is sent."""
        self.broker.start()
        for one in (self.watcher, *self.members):
            self._connect(one, Arrival(clean=self._is_clean(one)))
            self._pump_until(one)
        self.watcher.subscribe("w/#")
        for one in self.members:
            self.groups[one.qos].asked(SHARED[one.qos])
            self._join(one)
        while not all(one.is_idle for one in self.clients):
            self._pump(0.02)
            self._judge()
        for qos, group in self.groups.items():
            group.granted(SHARED[qos])

    def round(self, steps: int) -> None:
        self.rounds += 1
        fatal = self.chance.randrange(steps)  # at least one kill
        for step in range(steps):
            self._kill() if step == fatal else self._step()
            self._pump(self.chance.choice((0.0, 0.0, 0.002, 0.01)))
            self._judge()
        self._settle()
        self._judge()

    def end(self) -> None:
        """The broker stops as it should; then the log itself is looked at."""
        self._heard_s = time.monotonic()
        while any(one.wire for one in self.clients) or stored_wills(self.broker.data):
            for one in self.clients:
                if one.state is State.ONLINE:
                    one.leave()
            self._pump(0.05)
            if time.monotonic() > self._heard_s + QUIET_S:
                self.ledger.complain(f"wills are left over: {stored_wills(self.broker.data)}")
                break
        self.broker.stop()
        command = [sys.executable, "-m", "penstock.cli.main", "log", "verify"]
        verified = subprocess.run(
            [*command, "--at", str(self.broker.data)], capture_output=True, text=True
        )
        if verified.returncode:
            self.ledger.complain(f"log verify: {verified.stdout}{verified.stderr}")
        self._look_at_the_log()
        self._judge()

    def _judge(self) -> None:
        if self.ledger.problems:
            raise Failure(self.ledger.story())

    # Chance

    def _step(self) -> None:
        chance = self.chance
        roll = chance.random()
        if roll < 0.004:
            self._kill()
        elif roll < 0.6:
            self._burst(chance.choice(self.publishers))
        elif roll < 0.75:
            self._come(chance.choice(self.clients))
        elif roll < 0.82:
            self._go(chance.choice(self.clients))
        elif roll < 0.90:
            self._change(chance.choice(self.readers))
        elif roll < 0.93:
            self._change_share(chance.choice([one for one in self.members if one.qos == 1]))
        elif roll < 0.95:
            self._visit()
        else:
            self._dawdle(chance.choice((*self.readers, *self.members)))

    def _burst(self, publisher: Publisher) -> None:
        if publisher.state is not State.ONLINE:
            return
        chance = self.chance
        for _ in range(chance.choice((1, 2, 5, 20))):
            number = chance.randrange(NAMES)
            if publisher.qos and chance.random() < 0.2:
                is_empty = chance.random() < 0.2
                name = f"r/{publisher.client_id}/{number}"
                publisher.publish(name, retain=True, is_empty=is_empty)
            else:
                publisher.publish(f"d/{publisher.client_id}/{number}")

    def _come(self, client: Client) -> None:
        chance = self.chance
        is_new = client.state is State.AWAY
        if not is_new and (client.state is not State.ONLINE or chance.random() > 0.1):
            return
        is_v5 = client.version == MQTT_5
        has_will = chance.random() < 0.3 and client is not self.watcher
        arrival = Arrival(
            self._is_clean(client),
            chance.randrange(3) if has_will else None,
            chance.choice((0, 0, 1)) if is_v5 else 0,
            chance.choice((0, 1, 3, 20)) if is_v5 else 0,
        )
        self._connect(client, arrival)

    def _is_clean(self, client: Client) -> bool:
        """Publishers and members of the QoS 2 group never: a promise of theirs hangs on it."""
        if not client.is_kept and client.version == MQTT_3_1_1:
            return True  # there it is one and the same thing
        return client in self.readers and self.chance.random() < 0.15

    def _connect(self, client: Client, arrival: Arrival) -> None:
        client.connect(self.broker.port, arrival)

    def _go(self, client: Client) -> None:
        if client.state is State.ONLINE and self.chance.random() < 0.6:
            client.leave() if self.chance.random() < 0.5 else client.hang_up()
        elif client.state is State.COMING and self.chance.random() < 0.2:
            client.hang_up()

    def _change(self, reader: Subscriber) -> None:
        if reader.state is not State.ONLINE or not reader.is_idle:
            return  # one at a time, so that it is known which answer ends what
        chance = self.chance
        filters = reader.receiver.filters
        if filters and chance.random() < 0.25:
            reader.unsubscribe(chance.choice(filters))
        elif len(filters) < 4:
            reader.subscribe(chance.choice(FILTERS), self._retain_handling(reader))

    def _retain_handling(self, reader: Subscriber) -> int:
        return self.chance.randrange(3) if reader.version == MQTT_5 else 0

    def _change_share(self, member: Subscriber) -> None:
        """The first member of a group stays in it, so that the group stays."""
        if member.state is State.ONLINE and member.client_id != "m1-0":
            if self.chance.random() < 0.2:
                member.unsubscribe(f"$share/g1/{SHARED[1]}")
            else:
                self._join(member)

    def _join(self, member: Subscriber) -> None:
        member.subscribe(f"$share/g{member.qos}/{SHARED[member.qos]}")

    def _visit(self) -> None:
        version = self.chance.choice(VERSIONS)
        client_id = f"visitor-{self.ledger.moment}"
        visitor = Subscriber(self.ledger, self.wills, client_id, version, 0, is_kept=False)
        self.ledger.receivers.remove(visitor.receiver)
        self.visitors = [one for one in self.visitors if one.wire is not None]
        self.visitors.append(visitor)
        self._connect(visitor, Arrival(True, self.chance.randrange(3)))

    def _dawdle(self, client: Subscriber) -> None:
        if client.state is not State.ONLINE:
            return
        if client.is_deaf or client.is_lazy:
            client.is_deaf = False
            client.acknowledge_late()
        elif self.chance.random() < 0.5:
            client.is_deaf = True
        else:
            client.is_lazy = True

    def _kill(self) -> None:
        how = "stopped" if self.chance.random() < 0.15 else "killed"
        for one in self.chance.sample(self.publishers, 3):
            self._burst(one)  # something is on its way for sure
        self.ledger.note(f"the broker is {how}")
        if how == "killed":
            self.broker.kill()
        else:
            self.broker.stop()
        self.kills += 1
        for client in self.clients:
            client.killed(self.chance.random() < 0.7)
        self.wills.killed()
        self.visitors.clear()
        self.broker.start()
        self.ledger.note("the broker is there again")

    # Packets

    def _pump(self, wait_s: float) -> None:
        """Everybody who listens takes what has come."""
        by_wire = {one.wire: one for one in self.clients if one.wire and not one.is_deaf}
        ready, _, _ = select.select([*by_wire], [], [], wait_s)
        for wire in ready:
            by_wire[wire].take()
        if ready:
            self._heard_s = time.monotonic()

    def _pump_until(self, client: Client) -> None:
        while client.state is not State.ONLINE:
            self._pump(0.05)
            self._judge()

    # Calm

    def _settle(self) -> None:
        self.ledger.note("now it is calm")
        for one in (*self.readers, *self.members):
            one.is_deaf = False
            if one.state is State.ONLINE:
                one.acknowledge_late()
        staying = [one for one in self.clients if one.is_kept]
        self._heard_s = time.monotonic()
        while not self._is_settled(staying):
            for client in staying:
                if client.state is State.AWAY:
                    self._connect(client, Arrival())
            self._pump(0.02)
            self._judge()
            if time.monotonic() > self._heard_s + QUIET_S:
                self._complain_unsettled()
                return
        self._look_at_retained()
        self.ledger.close()
        self.wills.close()

    def _is_settled(self, staying: list[Client]) -> bool:
        return (
            all(one.state is State.ONLINE for one in staying)
            and all(one.is_idle for one in self.clients)
            and not any(one.owed for one in self.ledger.receivers)
            and not self.wills.due
        )

    def _complain_unsettled(self) -> None:
        for one in self.clients:
            if not one.is_idle:
                self.ledger.complain(f"{one.client_id} waits for acknowledgements")
            if one.is_kept and one.state is not State.ONLINE:
                self.ledger.complain(f"{one.client_id} is {one.state}")
        for receiver in self.ledger.receivers:
            receiver.complain_of_owed()
        for payload in self.wills.due:
            self.ledger.complain(f"{payload!r} was never published: {self.wills.rows[payload]}")

    def _look_at_retained(self) -> None:
        """Nothing is on its way: what is retained is the last that each publisher sent."""
        expected = {
            name: message.payload
            for publisher in self.publishers
            for name, message in publisher.retained.items()
            if not message.is_empty
        }
        for version in VERSIONS:
            with Wire(self.broker.port, "", version) as looking:
                looking.connect()
                looking.subscribe("r/#")
                found: dict[str, bytes] = {}
                while found != expected and isinstance(packet := looking.poll(QUIET_S), Publish):
                    found[packet.name] = packet.payload
                more = [packet for packet in looking.settle() if isinstance(packet, Publish)]
                found |= {packet.name: packet.payload for packet in more}
                looking.disconnect()
            if found != expected:
                self.ledger.complain(f"retained are {found}, expected {expected}")

    def _look_at_the_log(self) -> None:
        """What was acknowledged is stored; at QoS 2 once and in order; wills as they should be."""
        stored: dict[str, list[int]] = {one.client_id: [] for one in self.publishers}
        wills: Counter[bytes] = Counter()
        with Broker(self.broker.data) as broker:
            for record in broker.read("default"):
                if record.name.startswith("w/"):
                    wills[record.payload] += 1
                elif record.payload:
                    publisher, number = record.payload.decode().split()
                    stored[publisher].append(int(number))
        self.wills.check_stored(wills)
        for one in self.publishers:
            numbers = stored[one.client_id]
            if one.qos == 2 and numbers != sorted(set(numbers)):
                self.ledger.complain(f"{one.client_id}: not stored once each in order")
