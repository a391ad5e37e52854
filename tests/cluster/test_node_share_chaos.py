"""Nodes are killed while members of a share work: does each message reach one, none lost?

PENSTOCK_CHAOS_S says for how many seconds, as in `test_node_chaos.py`.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from penstock.mqtt.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from tests.cluster.node_world import NodeWorld
from tests.cluster.traffic import Client
from tests.doors.wire import Wire
from tests.kafka_server import KafkaServer
from tests.postgres_server import PostgresServer
from tests.waiting import wait_until

CHAOS_S = float(os.environ.get("PENSTOCK_CHAOS_S", "15"))
SEED = int(os.environ.get("PENSTOCK_SEED", random.SystemRandom().randrange(1 << 32)))


class Writer(Client):
    """Publishes numbers at QoS 2 under many names, each again until it is acknowledged."""

    def __init__(self, world: NodeWorld, seed: int) -> None:
        super().__init__(world, "share-writer", seed)
        self.acked = 0  # all below it are
        self._was_sent = False
        self._is_releasing = False

    def serve(self, wire: Wire) -> None:
        while not self.stopping.is_set():
            packet_id = self.acked % 60_000 + 1
            if not self._is_releasing:
                name, payload = f"jobs/{self.acked % 40}", b"%d" % self.acked
                dup, self._was_sent = self._was_sent, True
                wire.send(Publish(name, payload, qos=2, packet_id=packet_id, dup=dup))
                if wire.pick(Pubrec, packet_id).reason >= 0x80:
                    raise EOFError("rejected")
                self._is_releasing = True
            wire.send(Pubrel(packet_id))
            wire.pick(Pubcomp, packet_id)
            self._is_releasing = self._was_sent = False
            self.acked += 1


class Worker(Client):
    """A member of two shares: what it got of each, as a client that forgets nothing."""

    def __init__(self, world: NodeWorld, at: int, got: dict[int, list[int]], seed: int) -> None:
        super().__init__(world, f"worker-{at}", seed)
        self.got = got
        self.is_subscribed = threading.Event()
        self._unreleased: set[int] = set()

    def serve(self, wire: Wire) -> None:
        if not self.is_subscribed.is_set():
            wire.subscribe("$share/once/jobs/#", qos=2)
            wire.subscribe("$share/least/+/+", qos=1)
            self.is_subscribed.set()
        while not self.stopping.is_set():
            packet = wire.poll(0.2)
            if isinstance(packet, Publish):
                self._take(wire, packet)
            elif isinstance(packet, Pubrel):
                self._unreleased.discard(packet.packet_id)
                wire.send(Pubcomp(packet.packet_id))
            elif packet is not None:
                raise EOFError(f"sent away: {packet}")

    def _take(self, wire: Wire, message: Publish) -> None:
        if message.qos == 1:
            self.got[1].append(int(message.payload))
            wire.send(Puback(message.packet_id))
            return
        if message.packet_id not in self._unreleased:
            self._unreleased.add(message.packet_id)
            self.got[2].append(int(message.payload))
        wire.send(Pubrec(message.packet_id))


@pytest.mark.timeout(CHAOS_S + 300)
def test_members_on_killed_nodes_get_everything_and_no_qos_2_message_twice(
    kafka: KafkaServer, postgres: PostgresServer, tmp_path: Path
) -> None:
    print(f"seed {SEED}")
    chosen = random.Random(SEED)
    got: dict[int, list[int]] = {1: [], 2: []}
    with NodeWorld(kafka, postgres, tmp_path, count=3, partitions=4) as world:
        workers = [Worker(world, at, got, SEED + at) for at in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            assert worker.is_subscribed.wait(60)
        writer = Writer(world, SEED + 99)
        writer.start()
        until_s = time.monotonic() + CHAOS_S
        kills = 0
        while time.monotonic() < until_s or not kills:
            time.sleep(chosen.uniform(1, 3))
            at = chosen.randrange(3)
            world[at].kill()
            kills += 1
            time.sleep(chosen.uniform(0, 3))
            world[at].start()
        writer.join()
        sent = set(range(writer.acked))
        try:
            wait_until(lambda: sent <= set(got[1]) and sent <= set(got[2]))
        finally:
            print(f"{kills} kills, {len(sent)} acknowledged, got {len(got[1])} and {len(got[2])}")
            print(f"missing {sorted(sent - set(got[1]))} and {sorted(sent - set(got[2]))}")
        for worker in workers:
            worker.join()
    assert not {one: count for one, count in Counter(got[2]).items() if count > 1}
