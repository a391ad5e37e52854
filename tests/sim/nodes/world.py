"""One history of a cluster: clients publish, nodes fail; then what must be true is checked.

Checked: what was acknowledged is in the log for every reader, QoS 2 once; each client's numbers are
in order; every node showed the same records; every client can go on as long as one node lives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Final

from penstock.log.kafka.requests import Partition
from tests.sim.nodes.clockwork import Clockwork, ProcessLoop
from tests.sim.nodes.sim_kafka import SimKafka, SimPartition
from tests.sim.nodes.sim_node import LEASE_S, Link, SimNode
from tests.sim.nodes.sim_postgres import SimPostgres
from tests.sim.promises import demand

NODES: Final = 3
TOPICS: Final = {one: Partition(f"topic{one}", 0) for one in (1, 2)}
NUMBERS: Final = 12  # messages of each client
PACKET_IDS: Final = 3  # used again and again
PATIENCE_S: Final = 4.0
FAULTS_S: Final = 45.0
DONE_S_MAX: Final = 600.0


class SimClient:
    """Publishes numbers one after the other, at any node, until each is acknowledged."""

    def __init__(self, world: SimulatedCluster, client_id: str, qos: int, seed: int) -> None:
        self.client_id = client_id
        self.qos = qos
        self.acked = 0  # all numbers below it
        self.topic_id = 1 + seed % len(TOPICS)
        self._world = world
        self._rng = Random(seed)
        self._heard: asyncio.Queue[str] = asyncio.Queue()
        self._is_releasing = False

    async def run(self) -> None:
        while self.acked < NUMBERS:
            node = self._rng.choice(self._world.nodes)
            link = Link(lambda text: None)
            if node.is_serving:
                self._heard = asyncio.Queue()
                link = Link(self._world.to_client(self._heard))
                self._world.to_node(node, partial(self._arrive, node, link))
                if await self._hear(link) == "connected":
                    await self._serve(node, link)
            link.is_open = False
            await asyncio.sleep(self._rng.choice((0.01, 0.1, 0.5)))

    def _arrive(self, node: SimNode, link: Link) -> None:
        node.loop.create_task(node.connect(self.client_id, link))

    async def _serve(self, node: SimNode, link: Link) -> None:
        while self.acked < NUMBERS and self._rng.random() > 0.05:
            packet_id = self.acked % PACKET_IDS + 1 if self.qos == 2 else 0
            arguments = (self.client_id, link, self.topic_id, packet_id)
            if not self._is_releasing:
                payload = f"{self.client_id} {self.acked}".encode()
                self._world.to_node(node, partial(node.publish, *arguments, payload))
                if await self._hear(link) != "received":
                    return
                self._is_releasing = self.qos == 2
            if self._is_releasing:
                self._world.to_node(node, partial(node.release, *arguments))
                if await self._hear(link) != "completed":
                    return
                self._is_releasing = False
            self._world.say(f"{self.client_id}: {self.acked} acknowledged by {node.inc}")
            self.acked += 1
            await asyncio.sleep(self._rng.choice((0.0, 0.05, 1.0, 4.0)))

    async def _hear(self, link: Link) -> str:
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await self._heard.get()
        except TimeoutError:
            return "silence"


class SimulatedCluster:
    """All that a seed decides."""

    def __init__(self, seed: int, trace: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self._trace = trace or (lambda text: None)
        self.clockwork = Clockwork(Random(seed + 1))
        self.kafka = SimKafka(self.clockwork)
        self.kafka.partitions = {one: SimPartition() for one in TOPICS.values()}
        names = {topic_id: one.topic for topic_id, one in TOPICS.items()}
        self.postgres = SimPostgres(self.clockwork, names)
        self.nodes: list[SimNode] = []
        self._client_loop: ProcessLoop = self.clockwork.new_loop()
        self._clients = [
            SimClient(self, f"client{one}", 2 if one % 3 else 1, seed + one) for one in range(5)
        ]
        self._started = 0
        self._gone: list[SimNode] = []
        self._has_faults = True

    def say(self, text: str) -> None:
        self._trace(f"{self.clockwork.now_s:8.3f} {text}")

    def run_and_check(self) -> None:
        """Live through the whole history; raises at the first broken promise."""
        try:
            for _ in range(NODES):
                self._add_node()
            tasks: list[asyncio.Task[None]] = []

            def begin() -> None:
                tasks.extend(self._client_loop.create_task(one.run()) for one in self._clients)
                for task in tasks:
                    task.add_done_callback(self._see_end)

            self._client_loop.call_soon(begin)
            self.clockwork.after(1.0, self._fail_something)
            self.clockwork.run(
                lambda: self._is_late() or (bool(tasks) and all(one.done() for one in tasks))
            )
            demand(not self._is_late(), f"clients wait for ever: {self._progress()}")
            self._read_and_check()
        finally:
            self.clockwork.close()

    def _see_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (failed := task.exception()) is not None:
            self.clockwork.failures.append(failed)

    def _is_late(self) -> bool:
        return self.clockwork.now_s > DONE_S_MAX

    def _progress(self) -> dict[str, int]:
        return {one.client_id: one.acked for one in self._clients}

    # Nodes and what happens to them

    def _add_node(self) -> SimNode:
        self._started += 1
        node = SimNode(
            self.clockwork, (self.kafka, self.postgres), TOPICS, self.seed * 1_000 + self._started
        )
        self.nodes.append(node)

        def begin() -> None:
            task = node.loop.create_task(node.start())
            task.add_done_callback(lambda done: self._see_start(node, done))

        node.loop.call_soon(begin)
        return node

    def _see_start(self, node: SimNode, task: asyncio.Task[None]) -> None:
        """A start may fail if its servers are not there; then it is as if it were killed."""
        if not task.cancelled() and (failed := task.exception()) is not None:
            self.say(f"node {node.inc} did not start: {failed!r}")
            self.clockwork.after(0.0, node.kill)

    def _fail_something(self) -> None:
        """Something happens now, and something else later; in the end all that is left is whole."""
        now_s = self.clockwork.now_s
        dead = [node for node in self.nodes if node.loop.is_dead]
        for node in dead:
            self.say(f"node {node.inc} is gone: {node.why_ended or 'killed'}")
            self.nodes.remove(node)
            self._gone.append(node)
        if now_s > FAULTS_S or not self._has_faults:
            while len(self.nodes) < 2:
                self._add_node()
            self.clockwork.after(5.0, self._fail_something)
            return
        while len(self.nodes) < NODES:
            self._add_node()
        self._fail(self.rng.choice(self.nodes))
        self.clockwork.after(self.rng.choice((0.2, 1.0, 3.0, 6.0)), self._fail_something)

    def _fail(self, node: SimNode) -> None:
        now_s = self.clockwork.now_s
        long_s = self.rng.choice((0.5, 0.9 * LEASE_S, 1.5 * LEASE_S, 3 * LEASE_S))
        kind = self.rng.randrange(6)
        if kind == 0:
            self.say(f"node {node.inc} is killed")
            node.kill()
        elif kind == 1:
            self.say(f"node {node.inc} is frozen for {long_s:g} s")
            node.loop.frozen_until_s = now_s + long_s
        elif kind < 5:
            network, name = (
                (node.to_kafka, "Kafka") if self.rng.random() < 0.5 else (node.to_postgres, "SQL")
            )
            is_there, is_back = self.rng.choice(((True, True), (True, False), (False, True)))
            self.say(f"node {node.inc} and {name}: cut {is_there=} {is_back=} for {long_s:g} s")
            if is_there:
                network.there_cut_until_s = now_s + long_s
            if is_back:
                network.back_cut_until_s = now_s + long_s
        else:
            self.say(f"node {node.inc} loses its lock for {long_s:g} s")
            self.postgres.unlock(node.inc)
            self.clockwork.after(long_s, lambda: self._lock_again(node))

    def _lock_again(self, node: SimNode) -> None:
        if not node.loop.is_dead and self.postgres.state(node.inc) == "live":
            self.postgres.lock(node.inc)

    # Clients

    def to_node(self, node: SimNode, act: Callable[[], Any]) -> None:
        def arrive() -> None:
            if not node.loop.is_dead:
                node.loop.call_soon(act)

        self.clockwork.after(self.rng.choice((0.0002, 0.002)), arrive)

    def to_client(self, queue: asyncio.Queue[str]) -> Callable[[str], None]:
        def hear(text: str) -> None:
            self.clockwork.after(
                self.rng.choice((0.0002, 0.002)),
                lambda: self._client_loop.call_soon(queue.put_nowait, text) and None,
            )

        return hear

    # What must be true

    def _read_and_check(self) -> None:
        """A node that starts now reads everything; all that have lived saw the same."""
        self._has_faults = self.clockwork.loses_packets = False
        reader = self._add_node()
        self.clockwork.run(lambda: self._is_late() or reader.is_serving or reader.loop.is_dead)
        demand(reader.is_serving, f"a node cannot start: {reader.why_ended}")
        found: dict[int, list[tuple[int, bytes]]] = {}
        task = reader.loop.create_task(reader.read_all(found))
        task.add_done_callback(self._see_end)
        self.clockwork.run(lambda: self._is_late() or task.done())
        demand(task.done(), "the topics cannot be read")
        for client in self._clients:
            self._check_client(client, [payload for _, payload in found[client.topic_id]])
        for node in (*self.nodes, *self._gone):
            self._check_seen(node, found)

    def _check_client(self, client: SimClient, payloads: list[bytes]) -> None:
        name = client.client_id.encode()
        numbers = [int(one.split()[1]) for one in payloads if one.split()[0] == name]
        missing = set(range(client.acked)) - set(numbers)
        demand(not missing, f"{client.client_id}: acknowledged and lost: {sorted(missing)}")
        if client.qos == 2:
            demand(len(numbers) == len(set(numbers)), f"{client.client_id}: twice: {numbers}")
        first_seen = list(dict.fromkeys(numbers))
        demand(first_seen == sorted(first_seen), f"{client.client_id}: out of order: {numbers}")

    def _check_seen(self, node: SimNode, found: dict[int, list[tuple[int, bytes]]]) -> None:
        for topic_id, first in node.first_seen.items():
            seen = node.seen[topic_id]
            until = seen[-1][0] if seen else -1
            expected = [one for one in found[topic_id] if first <= one[0] <= until]
            demand(seen == expected, f"node {node.inc} saw {seen}, and others {expected}")
