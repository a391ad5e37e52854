"""Messages of 100 bytes until they are acknowledged, by brokers that promise different things."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from bench.brokers.kafka import TOPICS, kafka_talk, start_kafka
from bench.brokers.kafka import missing as missing_kafka
from bench.http.flows import Asked, Contender, compare, conversing
from bench.http.peers import (
    NATS,
    REDIS,
    TOPIC,
    Absent,
    start_nats,
    start_redis,
)
from bench.http.rows import make_stream, redis_contender
from bench.http.talks import Talk, nats_publish, nats_talk, variants
from bench.measure import Row
from bench.mqtt.servers import MOSQUITTO, Server, start_mosquitto, start_penstock
from bench.mqtt.wire import ACK_BYTES, NAME, connect, subscribe
from bench.run import Bench
from penstock.mqtt.encode import encode
from penstock.mqtt.kinds import MQTT_3_1_1
from penstock.mqtt.packets import Publish

CROWD: Final = 100
SHAPES: Final = ((1, 1), (CROWD, 1), (1, CROWD))  # connections, messages at once
WARM_S: Final = 5.0
BY_DEFAULT: Final = {NATS: "nats, default", REDIS: "redis, default"}


def storing_rows(bench: Bench) -> Iterator[Row]:
    """The fastest engine beside all brokers that are here."""
    bench = replace(bench, engines=bench.fastest)
    with bench.scratch() as directory, ExitStack() as stack:
        brokers = Brokers(bench, directory, stack)
        for connections, batch in SHAPES:
            contenders = brokers.contenders(connections, batch)
            asked = [Asked(name, None) for name in contenders if name not in brokers.own]
            many = f"{connections} connections" if connections > 1 else "1 connection"
            scenario = f"{many}, {batch} in flight" if batch > 1 else f"{many}, 1 message each"
            yield from compare(bench, scenario, contenders, asked, brokers.notes)


class Brokers:
    """One of each, ready. Some are here twice: with their defaults and synced."""

    def __init__(self, bench: Bench, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self._stack = stack
        self.own = [engine.name for engine in bench.engines]
        self.notes: list[str] = []
        self._mqtt = [self._run(start_penstock(one, directory / one.name)) for one in bench.engines]
        if shutil.which(MOSQUITTO):
            mosquitto = self._run(start_mosquitto(directory, persists=True))
            leave_subscriber(mosquitto)
            self._mqtt.append(mosquitto)
        self._redis: dict[str, Server] = {}
        self._nats: dict[str, Server] = {}
        for syncs in (True, False):
            try:
                redis = start_redis(self._folder(f"redis-{syncs}"), syncs=syncs)
                self._redis[REDIS if syncs else BY_DEFAULT[REDIS]] = self._run(redis)
                nats = self._run(start_nats(self._folder(f"nats-{syncs}"), syncs=syncs))
                make_stream(nats.port)
                self._nats[NATS if syncs else BY_DEFAULT[NATS]] = nats
            except Absent as absent:
                self.notes.append(f"NOT COMPARED: {absent}")
        self._kafka: Server | None = None
        reason = missing_kafka()
        if reason:
            self.notes.append(f"NOT COMPARED: {reason}")
        else:
            self._kafka = self._run(start_kafka(directory))
            for topic in TOPICS.values():  # Java is slow until it has compiled what is used
                talk = partial(kafka_talk, self._kafka.port, topic, 1)
                conversing(talk, CROWD).turn(WARM_S)

    def _folder(self, name: str) -> Path:
        path = self._directory / name
        path.mkdir()
        return path

    def _run(self, server: Server) -> Server:
        self._stack.callback(server.stop)
        server.wait_ready()
        return server

    def contenders(self, connections: int, batch: int) -> dict[str, Contender]:
        """So many connections to each, with so many messages in flight on each."""

        def conversation(server: Server, talk: Callable[[], Talk]) -> Contender:
            return Contender(conversing(talk, connections, batch).turn, server)

        made: dict[str, Contender] = {}
        for server in self._mqtt:
            made[server.name] = conversation(server, partial(mqtt_talk, server, batch))
        for name, server in self._nats.items():
            made[name] = conversation(server, partial(nats_batch, server.port, batch))
        for name, server in self._redis.items():
            made[name] = redis_contender(server, connections, batch)
        if self._kafka is not None:
            for name, topic in TOPICS.items():
                talk = partial(kafka_talk, self._kafka.port, topic, batch)
                made[name] = conversation(self._kafka, talk)
        return made


class AckBytes:
    """PUBACKs, which all have one size."""

    def __init__(self, count: int) -> None:
        self._bytes = self._left_bytes = ACK_BYTES * count

    def take(self, data: bytes) -> bool:
        self._left_bytes -= len(data)
        assert self._left_bytes >= 0, "an answer nobody asked for"
        if self._left_bytes:
            return False
        self._left_bytes = self._bytes
        return True


def mqtt_talk(server: Server, batch: int) -> Talk:
    """So many PUBLISH of QoS 1 at once, then their PUBACKs."""
    requests = [
        b"".join(
            [
                encode(Publish(NAME, text.encode(), 1, packet_id=number), MQTT_3_1_1)
                for number, text in enumerate(texts, 1)
            ]
        )
        for texts in variants(batch)
    ]
    return Talk(connect(server), requests, AckBytes(batch))


def leave_subscriber(server: Server) -> None:
    """A session that is away: without one Mosquitto keeps no message."""
    with subscribe(server, "bench/#", 1, clean_start=False):
        pass


def nats_batch(port: int, batch: int) -> Talk:
    sock, inbox, answers = nats_talk(port, 2 * batch)
    requests = [
        b"".join([nats_publish(TOPIC, inbox, text) for text in texts]) for texts in variants(batch)
    ]
    return Talk(sock, requests, answers)
