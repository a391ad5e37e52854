"""How long a message takes from a publisher at one node to a subscriber at another one."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

from bench.cluster.clients import Relay, make_topic
from bench.cluster.rows import CONFLUENT, CORES
from bench.cluster.servers import TOPIC, kafka_settings, start_server
from bench.engines import Engine
from bench.http.talks import http_ask
from bench.measure import Bar, Row, alternate, engine_figures
from bench.mqtt.servers import free_port
from bench.mqtt.wire import ACK_BYTES, NAME, connect, exactly, publish_packet, subscribe
from bench.run import Bench
from tests.kafka_server import KafkaServer
from tests.postgres_server import PostgresServer

PEER_TOPIC: Final = "peer"
PACKET_ID: Final = 1
KNOWN_S_MAX: Final = 30.0  # until the second node knows what the first one made


def latency_rows(bench: Bench) -> Iterator[Row]:
    """QoS 1 over two nodes, one message at a time, against a producer and a consumer of Kafka."""
    with bench.scratch() as directory, ExitStack() as stack:
        kafka = KafkaServer()
        stack.callback(kafka.stop)
        postgres = PostgresServer()
        stack.callback(postgres.stop)
        make_topic(kafka.bootstrap, PEER_TOPIC)
        relay = Relay(kafka.bootstrap, PEER_TOPIC)
        stack.callback(relay.close)
        turns: dict[str, Callable[[], float]] = {CONFLUENT: partial(relay.turn, bench.turn_s)}
        for engine in bench.engines:
            clients = _start_pair(stack, engine, directory / engine.name, kafka, postgres)
            turns[engine.name] = partial(_turn, *clients, bench.turn_s)
        taken = alternate(turns, bench.rounds)
        yield Row(
            "publish at one node, deliver at another, QoS 1, one at a time, p50",
            "ms",
            engine_figures([one.name for one in bench.engines], taken, taken[CONFLUENT]),
            (CONFLUENT, median(taken[CONFLUENT])),
            Bar(2.0, at_most=True, is_required=False, goal=1.2),
            (CORES, "a message is sent when the one before was delivered and acknowledged"),
        )


def _start_pair(
    stack: ExitStack, engine: Engine, directory: Path, kafka: KafkaServer, postgres: PostgresServer
) -> tuple[socket.socket, socket.socket]:
    """A publisher at one of two nodes, and a subscriber at the other one that hears it."""
    settings = {
        **kafka_settings(kafka, f"bench-{engine.name}-{free_port()}"),
        "PENSTOCK_CATALOG__URL": postgres.url,
        "PENSTOCK_CATALOG__SCHEMA": postgres.new_schema(),
    }
    servers, http_ports = [], []
    for name in ("a", "b"):
        named = {**settings, "PENSTOCK_NODE__NAME": name}
        server, http_port = start_server(engine, directory / name, named)
        stack.callback(server.stop)
        servers.append(server)
        http_ports.append(http_port)
    http_ask(http_ports[0], "PUT", f"/v1/topics/{TOPIC}")
    give_up_s = time.monotonic() + KNOWN_S_MAX
    while not http_ask(http_ports[1], "GET", "/v1/topics")["topics"]:
        if time.monotonic() > give_up_s:
            raise RuntimeError(f"the second node did not hear of the topic in {KNOWN_S_MAX:g} s")
        time.sleep(0.01)
    reader = subscribe(servers[1], NAME, qos=1)
    publisher = connect(servers[0])
    for client in (reader, publisher):
        stack.callback(client.close)
    return publisher, reader


def _turn(publisher: socket.socket, reader: socket.socket, turn_s: float) -> float:
    """Milliseconds from sending a message until it is received, the median."""
    packet = publish_packet(NAME, 1, PACKET_ID)
    id_at = 2 + 2 + len(NAME)  # one byte of length: the packet is shorter than 128 bytes
    taken_s = []
    end_s = time.perf_counter() + turn_s
    while time.perf_counter() < end_s:
        begin = time.perf_counter()
        publisher.sendall(packet)
        got = exactly(reader, len(packet))
        taken_s.append(time.perf_counter() - begin)
        reader.sendall(b"\x40\x02" + got[id_at : id_at + 2])
        exactly(publisher, ACK_BYTES)
    return median(taken_s) * 1e3
