"""Every way to read through a command, Spark's source, and the handlers of the bus."""

from __future__ import annotations

import json
import queue
from functools import partial
from typing import Any

from penstock import Bus
from penstock.core.bus import join_id
from tests.cli.mqtt.test_cli_pub_sub import invoke
from tests.matrix.house import Got, House, Place, Printing
from tests.matrix.publishers import BUS_GROUP
from tests.matrix.reading import add, got_json, has_end, late
from tests.pipeline.source.reading import At, rows

SUBS = {  # by reader: what a `penstock sub` that runs all the time is told besides filters
    "penstock-sub-qos0": ("-q", "0"),
    "penstock-sub-qos2": ("-q", "2"),
    "penstock-sub-from": ("-q", "1", "--from", "earliest"),
}


# Commands


class SubReader:
    """One process reads for all places."""

    def __init__(self, key: str, house: House, place: Place) -> None:
        self._house, self._place, self._key = house, place, key

    def collect(self) -> list[list[Got]]:
        printing: Printing = self._house.printing[self._key]
        lines = printing.lines(self._place.names, self._house.left_s)
        return [[got_json({**one, "qos": None}) for one in lines]]

    def close(self) -> None:
        pass


for _key in SUBS:
    add(_key, partial(SubReader, _key), needs_topic=False)


def output_of(*arguments: str) -> str:
    outcome = invoke(*arguments)
    assert outcome.code == 0, outcome
    return outcome.out


def shown(*arguments: str) -> list[Got]:
    return [got_json(json.loads(line)) for line in output_of(*arguments, "--json").splitlines()]


@late("penstock-consume")
def penstock_consume(house: House, place: Place) -> list[Got]:
    return shown("consume", place.topic, "--at", house.url, "--from", str(place.base))


@late("penstock-consume-consumer")
def penstock_consume_consumer(house: House, place: Place) -> list[Got]:
    """Through the directory, whose broker the command finds."""
    consumer = ("--consumer", f"command-{place.key}", "--from", str(place.base))
    return shown("consume", place.topic, "--at", str(house.data), *consumer)


@late("penstock-log-dump")
def penstock_log_dump(house: House, place: Place) -> list[Got]:
    return shown("log", "dump", place.topic, "--at", str(house.data), "--from", str(place.base))


@late("penstock-log-export")
def penstock_log_export(house: House, place: Place) -> list[Got]:
    target = house.scratch / f"export-{place.key}"
    output_of("log", "export", str(target), place.topic, "--lines", "--escape", "--at", house.url)
    lines = (target / place.topic / "messages.log").read_bytes().splitlines()[place.base :]
    escaped = {b"\\xff\x00\\n\\xfe": b"\xff\x00\n\xfe"}
    return [Got(escaped.get(one, one)) for one in lines]


# Spark, without a Java: the source as its driver and its tasks use it


def spark_rows(at: At, place: Place) -> list[Got]:
    found: list[dict[str, Any]] = rows(at, topic=place.topic, startingOffsets=str(place.base))
    return [Got(one["payload"], one["name"], one["offset"]) for one in found]


@late("spark-source-url")
def spark_source_url(house: House, place: Place) -> list[Got]:
    return spark_rows(house.url, place)


@late("spark-source-path")
def spark_source_path(house: House, place: Place) -> list[Got]:
    return spark_rows(house.data, place)


# The bus


class BusReader:
    """A process whose handlers are called."""

    def __init__(self, house: House, place: Place) -> None:
        self._house = house
        self._calls: queue.SimpleQueue[Got] = queue.SimpleQueue()
        self._bus = Bus.connect(house.bus_path)
        for number in place.numbers:
            self._bus.subscribe(join_id(BUS_GROUP, number), self._handle)

    def _handle(self, id: int, data: bytes) -> None:
        self._calls.put(Got(data, f"bus/{id & 0xFF}"))

    def collect(self) -> list[list[Got]]:
        found: list[Got] = []
        while not has_end(found):
            found.append(self._calls.get(timeout=self._house.left_s))
        return [found]

    def close(self) -> None:
        self._bus.close()


add("bus-handler", BusReader, is_for_bus=True)
