"""What does a filter cost per record? Against a hand-written function, in the same run.

Each row is an expression over one 200-byte JSON record. `filter` is `Where.passes`; `by hand` is
the Python function somebody would write for exactly this case (wrong types, missing fields and
invalid JSON all considered); `decode` is msgspec reading the payload and nothing else. Rounds
alternate and the medians are shown.
"""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Final

import msgspec

from bench.measure import Figure, Row, alternate
from bench.run import Bench
from penstock.core.where import compile_where
from penstock.core.where.parser import parse
from penstock.model.record import Record

CALLS_PER_ROUND: Final = 10_000
PARSES_PER_ROUND: Final = 200

PAYLOAD: Final = (
    b'{"device":"sensor-0042","site":"lisbon","temp":21.375,"hum":48.25,"ok":true,"seq":123456,'
    b'"tags":["a","b","c"],"pos":{"lat":38.7223,"lon":-9.1393},'
    b'"note":"periodic report from the field unit, fw 1.2"}'
)
RECORD: Final = Record(
    topic="sensors",
    partition=0,
    offset=7,
    timestamp=1_767_225_600_000_000,
    name="sensors/42/temp",
    payload=PAYLOAD,
    headers=(("unit", "C"),),
)

_decode: Final = msgspec.json.Decoder().decode


def _fields(record: Record) -> dict[str, object]:
    try:
        document = _decode(record.payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _temp_above(record: Record) -> bool:
    temp = _fields(record).get("temp")
    return isinstance(temp, (int, float)) and not isinstance(temp, bool) and temp > 20


def _three_fields(record: Record) -> bool:
    fields = _fields(record)
    temp = fields.get("temp")
    return (
        isinstance(temp, (int, float))
        and not isinstance(temp, bool)
        and temp > 20
        and fields.get("site") == "lisbon"
        and fields.get("ok") is True
    )


def _latitude_between(record: Record) -> bool:
    position = _fields(record).get("pos")
    latitude = position.get("lat") if isinstance(position, dict) else None
    return isinstance(latitude, float) and 38 <= latitude <= 39


def _site_in(record: Record) -> bool:
    return _fields(record).get("site") in ("porto", "lisbon")


def _name_first(record: Record) -> bool:
    return record.name == "other" and _temp_above(record)


def _name_like(record: Record) -> bool:
    return record.name.startswith("sensors/") and record.name.endswith("/temp")


ROWS: Final[list[tuple[str, Callable[[Record], bool]]]] = [
    ("payload.temp > 20", _temp_above),
    ("payload.temp > 20 AND payload.site = 'lisbon' AND payload.ok", _three_fields),
    ("payload.pos.lat BETWEEN 38 AND 39", _latitude_between),
    ("payload.site IN ('porto', 'lisbon')", _site_in),
    ("payload.temp > 20 AND name = 'other'", _name_first),
    ("name LIKE 'sensors/%/temp'", _name_like),
]


def _turn(contender: Callable[[], object], calls: int) -> float:
    """µs of processor time for one call."""
    return timeit.timeit(contender, timer=time.process_time, number=calls) / calls * 1e6


def measure(bench: Bench, only: str) -> Iterator[Row]:
    """A row for each expression."""
    for expression, by_hand in ROWS:
        where = compile_where(expression)
        assert where.passes(RECORD) is by_hand(RECORD), expression
        turns: dict[str, Callable[[], float]] = {
            "filter": partial(_turn, partial(where.passes, RECORD), CALLS_PER_ROUND),
            "by hand": partial(_turn, partial(by_hand, RECORD), CALLS_PER_ROUND),
            "decode": partial(_turn, partial(_decode, PAYLOAD), CALLS_PER_ROUND),
            "parse": partial(_turn, partial(parse, expression), PARSES_PER_ROUND),
        }
        taken = alternate(turns, bench.rounds * 2)
        others = ", ".join(f"{name} {median(taken[name]):.2f} µs" for name in ("decode", "parse"))
        yield Row(
            expression,
            "µs",
            {"value": Figure.of(taken["filter"], taken["by hand"])},
            ("by hand", median(taken["by hand"])),
            notes=(others,),
        )
