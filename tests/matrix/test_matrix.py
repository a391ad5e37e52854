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
OTHERWISE = (
    *("live-3.1.1-", "live-5-websocket-", "live-5-tcp-qos1", "live-5-tcp-qos2"),
    *("kept-", "away-", "share-", "from-latest-"),
)
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

# Readers that leave a client's messages of several names in one piece: none wants them otherwise.
PLAIN_PAIRS = [
    ("mqtt-in-one-write", reading.key)
    for reading in READERS.values()
    if not (reading.key.startswith(OTHERWISE) or reading.key in SUBS or reading.is_for_bus)
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

    def __init__(self, house: House, pairs: list[tuple[str, str]]) -> None:
        self._house = house
        self._pairs = pairs
        self._known: dict[str, Outcome | Exception] = {}

    def check(self, publisher: str, reader: str) -> None:
        """Raises what went wrong with this pair."""
        if publisher not in self._known:
            try:
                self._known[publisher] = self._run(PUBLISHERS[publisher])
            except Exception as error:
                self._known[publisher] = error
        outcome = self._known[publisher]
        if isinstance(outcome, Exception):
            raise outcome
        found = outcome.got[reader]
        if isinstance(found, Exception):
            raise found
        READERS[reader].check(found, outcome.messages)

    def _run(self, publisher: Publisher) -> Outcome:
        house, place = self._house, PLACES[publisher.key]
        if not publisher.makes_topic:
            place = replace(place, base=house.declare(place.topic))
        messages = place.messages(publisher.payloads, publisher.qos, retain=publisher.retain)
        readers: dict[str, Reader] = {}
        try:
            for key, reader in self._pairs:
                if key == publisher.key:
                    readers[reader] = READERS[reader].attach(house, place)
            publisher.publish(house, place, messages)
            end = house.finish(place, len(messages))
            got = {key: self._collected(reader) for key, reader in readers.items()}
        finally:
            for one in readers.values():
                with suppress(OSError):
                    one.close()
        return Outcome([*placed(messages, place.base), end], got)

    def _collected(self, reader: Reader) -> list[list[Got]] | Exception:
        """One that fails harms no other."""
        if self._house.is_late:
            return TimeoutError("the readers before it used up the time")
        try:
            return reader.collect()
        except Exception as error:
            return error


@pytest.fixture(scope="module")
def outcomes(house: House) -> Outcomes:
    return Outcomes(house, PAIRS)


@pytest.mark.parametrize(("publisher", "reader"), PAIRS)
def test_a_reader_gets_every_message_once_and_in_order(
    outcomes: Outcomes, publisher: str, reader: str
) -> None:
    outcomes.check(publisher, reader)


@pytest.fixture(scope="module")
def plain_outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcomes]:
    with House(tmp_path_factory.mktemp("plain")) as opened:
        yield Outcomes(opened, PLAIN_PAIRS)


@pytest.mark.parametrize(("publisher", "reader"), PLAIN_PAIRS)
def test_messages_that_are_stored_with_one_append_reach_every_reader(
    plain_outcomes: Outcomes, publisher: str, reader: str
) -> None:
    """The broker does so while all clients that read them take the bytes as they came."""
    plain_outcomes.check(publisher, reader)
