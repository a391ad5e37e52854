"""A real Kafka with one broker, and Penstock nodes whose topics are in it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.engines import Engine
from bench.http.talks import http_ask
from bench.mqtt.servers import HOST, SERVE, Server, free_port
from bench.run import Bench
from tests.kafka_server import KafkaServer

TOPIC: Final = "bench"
TURN_S_MAX: Final = 120.0


@dataclass(frozen=True, slots=True)
class Node:
    """A broker process with its topic in Kafka."""

    mqtt: Server
    http_port: int
    kafka_topic: str  # what Kafka calls the topic
    bootstrap: str

    def wait_end(self, end: int) -> None:
        """Until it has seen all records before this offset."""
        give_up_s = time.monotonic() + TURN_S_MAX
        while http_ask(self.http_port, "GET", f"/v1/topics/{TOPIC}")["end_offset"] < end:
            if time.monotonic() > give_up_s:
                raise RuntimeError(f"the node did not reach offset {end} in {TURN_S_MAX:g} s")
            time.sleep(0.01)


def kafka_settings(kafka: KafkaServer, prefix: str, partitions: int = 1) -> dict[str, str]:
    """Variables of the environment for a broker whose topics are there."""
    return {
        "PENSTOCK_LOG__BACKEND": "kafka",
        "PENSTOCK_KAFKA__BOOTSTRAP": kafka.bootstrap,
        "PENSTOCK_KAFKA__PREFIX": prefix,
        "PENSTOCK_KAFKA__PARTITIONS": str(partitions),
        "PENSTOCK_KAFKA__REPLICATION": "1",
    }


def start_server(engine: Engine, directory: Path, settings: dict[str, str]) -> tuple[Server, int]:
    """A process that is ready, and the port of its HTTP."""
    mqtt_port, http_port = free_port(), free_port()
    command = [sys.executable, "-c", SERVE, "serve", "--data", str(directory), *engine.quiet]
    doors = ["--http", f"{HOST}:{http_port}", "--mqtt", f"{HOST}:{mqtt_port}"]
    child = subprocess.Popen(
        [*command, *doors], env={**engine.environment, **settings}, stdout=subprocess.DEVNULL
    )
    server = Server(engine.name, mqtt_port, child)
    server.wait_ready()
    return server, http_port


def start_node(engine: Engine, directory: Path, kafka: KafkaServer) -> Node:
    prefix = f"bench-{engine.name}-{free_port()}"
    server, http_port = start_server(engine, directory, kafka_settings(kafka, prefix))
    http_ask(http_port, "PUT", f"/v1/topics/{TOPIC}")
    (name,) = [one for one in kafka_topics(kafka.bootstrap) if one.startswith(f"{prefix}.default.")]
    return Node(server, http_port, name, kafka.bootstrap)


def kafka_topics(bootstrap: str) -> list[str]:
    from confluent_kafka.admin import AdminClient

    return list(AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=60).topics)


@contextmanager
def nodes(bench: Bench) -> Iterator[dict[str, Node]]:
    """A node of each engine on a Kafka of their own; all of it is gone afterwards."""
    with bench.scratch() as directory, ExitStack() as stack:
        kafka = KafkaServer()
        stack.callback(kafka.stop)
        found: dict[str, Node] = {}
        for engine in bench.engines:
            node = found[engine.name] = start_node(engine, directory / engine.name, kafka)
            stack.callback(node.mqtt.stop)
        yield found
