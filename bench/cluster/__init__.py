"""Topics in a real Kafka: what Penstock adds to its clients, and what following a topic costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bench.cluster.latency import latency_rows
from bench.cluster.rows import following_rows, publishing_rows, replay_rows
from bench.cluster.scaling import scaling_rows
from bench.measure import Row
from bench.run import Bench

PARTS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "publish": publishing_rows,
    "replay": replay_rows,
    "follow": following_rows,
    "latency": latency_rows,
    "nodes": scaling_rows,
}


def measure(bench: Bench, only: str) -> Iterator[Row]:
    """All rows, or those of the part called `only`."""
    for name, part in PARTS.items():
        if only in name:
            yield from part(bench)
