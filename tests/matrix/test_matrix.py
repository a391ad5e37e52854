"""Does every reader get what every publisher publishes: each message once, as it was, in order?

A test is a pair. All readers of a publisher are attached at once, and it publishes once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import pytest

from tests.matrix import http_readers, mqtt_readers, other_readers, python_readers
from tests.matrix.house import BUS, Got, House, Message, Printing, placed
from tests.matrix.other_readers import SUBS
from tests.matrix.publishers import PUBLISHERS, Publisher
from tests.matrix.reading import READERS, Reader, Reading

assert http_readers and mqtt_readers and other_readers and python_readers  # each adds its own
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("matrix")]  # one worker has the broker
PLACES = {key: publisher.place(key) for key, publisher in PUBLISHERS.items()}


def reads(reading: Reading, publisher: Publisher) -> bool:
    if reading.is_for_bus and PLACES[publisher.key].topic != BUS:
        return False
    return not (reading.needs_topic and publisher.makes_topic)


PAIRS = [
    (publisher.key, reading.key)
    for publisher in PUBLISHERS.values()
    for reading in READERS.values()
    if reads(reading, publisher)
]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with House(tmp_path_factory.mktemp("matrix")) as opened:
        for key, arguments in SUBS.items():
            opened.printing[key] = Printing(opened.hosted.port, "-t", "#", *arguments)
        yield opened


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one publisher published, and what each reader got, or why it got nothing."""

    messages: list[Message]
    got: dict[str, list[list[Got]] | Exception]


class Outcomes:
    """Each publisher publishes once, when the first of its pairs is looked at."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._known: dict[str, Outcome] = {}

    def of(self, publisher: Publisher) -> Outcome:
        if publisher.key not in self._known:
            self._known[publisher.key] = self._run(publisher)
        return self._known[publisher.key]

    def _run(self, publisher: Publisher) -> Outcome:
        house, place = self._house, PLACES[publisher.key]
        if not publisher.makes_topic:
            place = replace(place, base=house.declare(place.topic))
        messages = place.messages(publisher.payloads, publisher.qos, retain=publisher.retain)
        readers: dict[str, Reader] = {}
        try:
            for reading in READERS.values():
                if reads(reading, publisher):
                    readers[reading.key] = reading.attach(house, place)
            publisher.publish(house, place, messages)
            end = house.finish(place, len(messages))
            got = {key: collected(reader) for key, reader in readers.items()}
        finally:
            for reader in readers.values():
                with suppress(OSError):
                    reader.close()
        return Outcome([*placed(messages, place.base), end], got)


def collected(reader: Reader) -> list[list[Got]] | Exception:
    """One that fails harms no other."""
    try:
        return reader.collect()
    except Exception as error:
        return error


@pytest.fixture(scope="module")
def outcomes(house: House) -> Outcomes:
    return Outcomes(house)


@pytest.mark.parametrize(("publisher", "reader"), PAIRS)
def test_a_reader_gets_every_message_once_and_in_order(
    outcomes: Outcomes, publisher: str, reader: str
) -> None:
    outcome = outcomes.of(PUBLISHERS[publisher])
    found = outcome.got[reader]
    if isinstance(found, Exception):
        raise found
    READERS[reader].check(found, outcome.messages)
