"""Records in a history: what it costs to put them there, and to read them again."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bench.history.reading import reading_rows
from bench.history.tiering import tiering_rows
from bench.measure import Row
from bench.run import Bench

PARTS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "tiering": tiering_rows,
    "reading": reading_rows,
}


def measure(bench: Bench, only: str) -> Iterator[Row]:
    """All rows, or those of the part called `only`."""
    for name, part in PARTS.items():
        if only in name:
            yield from part(bench)
