"""Brokers that people choose from, in turns: what each acknowledges, and how fast its bridge is.

Penstock over MQTT is beside Mosquitto, NATS JetStream, Kafka and Redis Streams. Those that sync
only from time to time by default are measured twice: so, and synced. docs/COMPARISON.md shows the
results.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

from bench.brokers.bridge import bridge_rows
from bench.brokers.storing import storing_rows
from bench.measure import Row
from bench.mqtt.wire import allow_many_sockets
from bench.run import Bench

PARTS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "storing": storing_rows,
    "bridge": bridge_rows,
}


def measure(bench: Bench, only: str) -> Iterator[Row]:
    """All rows, or those of the part called `only`."""
    allow_many_sockets()
    gc.disable()  # the generator makes no cycles; a collection would look like the server's delay
    for name, part in PARTS.items():
        if only in name:
            yield from part(bench)
    gc.enable()
