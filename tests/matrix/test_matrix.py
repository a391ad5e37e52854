"""Does every reader get what every publisher publishes: each message once, as it was, in order?

A test is a publisher with all readers, which are attached at once; it publishes once. A failure
names each reader that got something else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.each import every_failure
from tests.matrix import http_readers, mqtt_readers, other_readers, python_readers
from tests.matrix.house import BUS, House, Printing, placed
from tests.matrix.other_readers import SUBS
from tests.matrix.publishers import PUBLISHERS, Publisher
from tests.matrix.reading import READERS, Reader, Reading

assert http_readers and mqtt_readers and other_readers and python_readers  # each adds its own
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("matrix")]  # one worker has the broker
OTHERWISE = (
    *("live-3.1.1-", "live-5-websocket-", "live-5-tcp-qos1", "live-5-tcp-qos2"),
    *("kept-", "away-", "share-", "from-latest-"),
)
PLACES = {key: publisher.place(key) for key, publisher in PUBLISHERS.items()}


def reads(reading: Reading, publisher: Publisher) -> bool:
    if reading.is_for_bus and PLACES[publisher.key].topic != BUS:
        return False
    return not (reading.needs_topic and publisher.makes_topic)


# Readers that leave a client's messages of several names in one piece: none wants them otherwise.
PLAIN = [
    reading
    for reading in READERS.values()
    if not (reading.key.startswith(OTHERWISE) or reading.key in SUBS or reading.is_for_bus)
]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with House(tmp_path_factory.mktemp("matrix")) as opened:
        for key, arguments in SUBS.items():
            opened.printing[key] = Printing(opened.hosted.port, "-t", "#", *arguments)
        yield opened


def check_every_reader(house: House, publisher: Publisher, readings: list[Reading]) -> None:
    """Raises what went wrong, with the reader of each failure."""
    place = PLACES[publisher.key]
    if not publisher.makes_topic:
        place = replace(place, base=house.declare(place.topic))
    messages = place.messages(publisher.payloads, publisher.qos, retain=publisher.retain)
    readers: dict[str, Reader] = {}
    assert readings
    try:
        for reading in readings:
            readers[reading.key] = reading.attach(house, place)
        publisher.publish(house, place, messages)
        end = house.finish(place, len(messages))
        stored = [*placed(messages, place.base), end]
        with every_failure() as tried:
            for reading in readings:
                with tried(f"{publisher.key} to {reading.key}"):
                    assert not house.is_late, "the readers before it used up the time"
                    reading.check(readers[reading.key].collect(), stored)
    finally:
        for one in readers.values():
            with suppress(OSError):
                one.close()


@pytest.mark.parametrize("publisher", PUBLISHERS)
def test_every_reader_gets_every_message_once_and_in_order(house: House, publisher: str) -> None:
    one = PUBLISHERS[publisher]
    check_every_reader(house, one, [other for other in READERS.values() if reads(other, one)])


def test_messages_that_are_stored_with_one_append_reach_every_reader(tmp_path: Path) -> None:
    """The broker does so while all clients that read them take the bytes as they came."""
    with House(tmp_path) as opened:
        check_every_reader(opened, PUBLISHERS["mqtt-in-one-write"], PLAIN)
