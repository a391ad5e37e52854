"""One node and two on the same machine, behind one port: what a second core brings."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

from bench.cluster.rows import CONNECTIONS, CORES, WINDOW
from bench.cluster.servers import kafka_settings
from bench.engines import Engine
from bench.measure import Row, alternate, engine_figures
from bench.mqtt.flows import acknowledged
from bench.mqtt.servers import HOST, Server, free_port
from bench.mqtt.wire import NAME
from bench.run import Bench
from tests.kafka_server import KafkaServer
from tests.postgres_server import PostgresServer

NODES: Final = 2
ONE_NODE: Final = "one node"


def scaling_rows(bench: Bench) -> Iterator[Row]:
    """QoS 1 over MQTT: two nodes against one, with the same Kafka, PostgreSQL and cores."""
    with bench.scratch() as directory, ExitStack() as stack:
        kafka = KafkaServer()
        stack.callback(kafka.stop)
        postgres = PostgresServer()
        stack.callback(postgres.stop)
        turns: dict[str, Callable[[], float]] = {}
        for engine in bench.engines:
            for count in (1, NODES):
                data = directory / f"{engine.name}-{count}"
                settings = _settings(kafka, postgres, f"{engine.name}-{count}")
                server = _start(engine, data, count, settings)
                stack.callback(server.stop)
                turn = acknowledged(server, NAME, CONNECTIONS, WINDOW, [])
                turns[f"{engine.name} {count}"] = partial(turn, bench.turn_s)
        taken = alternate(turns, bench.rounds)
        names = [engine.name for engine in bench.engines]
        ones = {name: taken[f"{name} 1"] for name in names}
        yield Row(
            f"{NODES} nodes behind one port, QoS 1, {CONNECTIONS} × {WINDOW} in flight",
            "/s",
            engine_figures(names, {name: taken[f"{name} {NODES}"] for name in names}, ones),
            (ONE_NODE, median(ones[names[0]])),
            None,
            (CORES, "all messages have one name, and so one partition"),
        )


def _settings(kafka: KafkaServer, postgres: PostgresServer, name: str) -> dict[str, str]:
    return {
        **kafka_settings(kafka, f"bench-{name}", NODES),
        "PENSTOCK_CATALOG__URL": postgres.url,
        "PENSTOCK_CATALOG__SCHEMA": postgres.new_schema(),
    }


def _start(engine: Engine, data: Path, count: int, settings: dict[str, str]) -> Server:
    mqtt_port, http_port = free_port(), free_port()
    command = [sys.executable, "-m", "penstock.cli.main", "serve", "--data", str(data)]
    doors = ["--http", f"{HOST}:{http_port}", "--mqtt", f"{HOST}:{mqtt_port}"]
    child = subprocess.Popen(
        [*command, *doors, "--nodes", str(count), *engine.quiet],
        env={**engine.environment, **settings},
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith(b"ready:"):  # all nodes are
            return Server(f"{count} nodes", mqtt_port, child)
    raise RuntimeError(f"{count} nodes ended with code {child.wait()}")
