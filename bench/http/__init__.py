"""The HTTP door against servers that also acknowledge what is on disk, over loopback."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

from bench.http.rows import batch_rows, replay_rows, single_rows
from bench.http.streams import catch_up_rows, crowd_rows, stream_rows
from bench.measure import Row
from bench.mqtt.wire import allow_many_sockets
from bench.run import Bench

PARTS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "single": single_rows,
    "batches": batch_rows,
    "replay": replay_rows,
    "stream": stream_rows,
    "catch-up": catch_up_rows,
    "crowd": crowd_rows,
}


def measure(bench: Bench, only: str) -> Iterator[Row]:
    """All rows, or those of the part called `only`."""
    allow_many_sockets()
    gc.disable()  # the generator makes no cycles; a collection would look like the server's delay
    for name, part in PARTS.items():
        if only in name:
            yield from part(bench)
    gc.enable()
