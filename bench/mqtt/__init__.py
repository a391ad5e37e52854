"""The broker as MQTT clients see it, against Mosquitto, alternating, over loopback."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

from bench.measure import Row
from bench.mqtt.rows import (
    acknowledged_rows,
    fan_out_rows,
    ingest_rows,
    many_names_row,
    memory_row,
    paced_rows,
    plain_rows,
    property_rows,
)
from bench.mqtt.sessions import away_rows, storm_rows
from bench.mqtt.subscriptions import filters_row, shared_rows
from bench.mqtt.wire import allow_many_sockets
from bench.run import Bench

PARTS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "plain": plain_rows,
    "fan": fan_out_rows,
    "names": many_names_row,
    "filters": filters_row,
    "shared": shared_rows,
    "acknowledged": acknowledged_rows,
    "ingest": ingest_rows,
    "paced": paced_rows,
    "memory": memory_row,
    "properties": property_rows,
    "away": away_rows,
    "storm": storm_rows,
}


def measure(bench: Bench, only: str) -> Iterator[Row]:
    """All rows, or those of the part called `only`."""
    allow_many_sockets()
    gc.disable()  # the generator makes no cycles; a collection would look like the broker's delay
    for name, part in PARTS.items():
        if only in name:
            yield from part(bench)
    gc.enable()
