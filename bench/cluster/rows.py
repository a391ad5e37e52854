"""One node on a real Kafka beside other clients of that Kafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from http.client import HTTPConnection
from statistics import median
from typing import Final

from pyarrow.ipc import open_stream

from bench.cluster.clients import consume, fill, send_batches
from bench.cluster.servers import TOPIC, Node, nodes
from bench.measure import Bar, Figure, Row, alternate, engine_figures
from bench.mqtt.flows import acknowledged
from bench.mqtt.servers import HOST
from bench.mqtt.wire import NAME
from bench.run import Bench

CONNECTIONS: Final = 16
WINDOW: Final = 100
AIOKAFKA: Final = "aiokafka send_batch"
CONFLUENT: Final = "confluent-kafka"
PAGE: Final = 50_000
ARROW: Final = {"Accept": "application/vnd.apache.arrow.stream"}
NAMES: Final = 50
CORES: Final = "Kafka and the load generator have the same cores: figures are of all together"


def publishing_rows(bench: Bench) -> Iterator[Row]:
    """QoS 1 over MQTT against the same messages by a client of Kafka."""
    with nodes(bench) as running:
        peer = next(iter(running.values()))
        turns: dict[str, Callable[[], float]] = {
            AIOKAFKA: partial(
                send_batches, peer.bootstrap, peer.kafka_topic, CONNECTIONS * WINDOW, bench.turn_s
            )
        }
        for name, node in running.items():
            turn = acknowledged(node.mqtt, NAME, CONNECTIONS, WINDOW, [])
            turns[name] = partial(turn, bench.turn_s)
        taken = alternate(turns, bench.rounds)
        yield Row(
            f"one node, QoS 1, {CONNECTIONS} × {WINDOW} in flight",
            "/s",
            engine_figures(running, taken, taken[AIOKAFKA]),
            (AIOKAFKA, median(taken[AIOKAFKA])),
            Bar(0.7, goal=1.0),
            (CORES,),
        )


def replay_rows(bench: Bench) -> Iterator[Row]:
    """All messages of a topic over HTTP as Arrow, against a consumer of Kafka."""
    count = 200_000 if bench.is_quick else 1_000_000
    with nodes(bench) as running:
        for node in running.values():
            fill(node.bootstrap, node.kafka_topic, count, NAMES)
            node.wait_end(count)
        peer = next(iter(running.values()))
        turns: dict[str, Callable[[], float]] = {
            CONFLUENT: partial(consume, peer.bootstrap, peer.kafka_topic, count)
        }
        for name, node in running.items():
            turns[name] = partial(_replay, node, count)
        taken = alternate(turns, bench.rounds)
        yield Row(
            f"replay of {count:,} messages, HTTP Arrow, {PAGE:,} a fetch",
            "/s",
            engine_figures(running, taken, taken[CONFLUENT]),
            (CONFLUENT, median(taken[CONFLUENT])),
            Bar(1.0, goal=2.0),
            (CORES,),
        )


def _replay(node: Node, count: int) -> float:
    """Read pages one after the other, decoded into columns as a program would."""
    connection = HTTPConnection(HOST, node.http_port)
    read, begin = 0, time.perf_counter()
    while read < count:
        connection.request(
            "GET", f"/v1/topics/{TOPIC}/records?from={read}&limit={PAGE}", None, ARROW
        )
        read += open_stream(connection.getresponse().read()).read_all().num_rows
    taken_s = time.perf_counter() - begin
    connection.close()
    return count / taken_s


def following_rows(bench: Bench) -> Iterator[Row]:
    """Processor time of a message that a node follows and has no reader for."""
    count = 100_000 if bench.is_quick else 500_000
    with nodes(bench) as running:
        ends = dict.fromkeys(running, 0)

        def turn(name: str) -> float:
            node = running[name]
            node.mqtt.wait_quiet()
            before_s = node.mqtt.cpu_s()
            fill(node.bootstrap, node.kafka_topic, count, NAMES)
            ends[name] += count
            node.wait_end(ends[name])
            return (node.mqtt.cpu_s() - before_s) / count * 1e6

        taken = alternate({name: partial(turn, name) for name in running}, bench.rounds)
        yield Row(
            "processor time of a message that another producer wrote and nobody reads",
            "µs",
            {name: Figure(median(values), median(values)) for name, values in taken.items()},
            ("one µs", 1.0),
            Bar(0.3, at_most=True, goal=0.15),
            ("asking for the end of the topic over HTTP is counted, too",),
        )
