"""Does every reader of the past get the same records, whether log, history or both hold them?

A test is a state of the topic with all readers. Readers that must be known before, such as
sessions of clients that are away, are attached before anything is published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from penstock.app.server import Server
from tests.each import every_failure
from tests.history.cooling import cool
from tests.matrix import http_readers, mqtt_readers, other_readers, python_readers
from tests.matrix.house import END, Got, House, Message, Place, Printing, placed, topic_place
from tests.matrix.publishers import PUBLISHERS
from tests.matrix.reading import READERS, Reader, Reading, got_json

assert http_readers and mqtt_readers and other_readers and python_readers  # each adds its own
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("matrix")]  # one worker has the broker
STATES = ("hot", "border", "cold")
ERASED = ("erased-hot", "erased-border")  # records of the first name
MQTT = ("away-", "share-away-", "from-earliest-", "penstock-sub-from")  # pass over erased records
EARLY = ("away-", "share-away-", "seed-consume")
LATE = (
    *("records-", "arrow-page", "consumer-fetch", "group-fetch", "sse-history"),
    *("websocket-stream-history", "from-earliest-", "penstock-consume", "penstock-log-export"),
    *("spark-source-url", "aio-client-", "client-consume", "client-read", "client-group"),
    *("broker-consume", "broker-read"),
)


class LateSub:
    """A `penstock sub --from earliest` that is started when everything is stored."""

    def __init__(self, house: House, place: Place) -> None:
        self._house, self._place = house, place
        (filter,) = place.wildcards
        start = ("-q", "1", "--from", "earliest")
        self._printing = Printing(house.hosted.port, "-t", filter, *start)

    def collect(self) -> list[list[Got]]:
        lines = self._printing.lines(self._place.names, self._house.left_s)
        return [[got_json({**one, "qos": None}) for one in lines]]

    def close(self) -> None:
        self._printing.close()


PAST: dict[str, Reading] = {
    key: reading for key, reading in READERS.items() if key.startswith((*EARLY, *LATE))
} | {"penstock-sub-from-late": Reading("penstock-sub-from-late", LateSub)}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    path = tmp_path_factory.mktemp("cold")
    settings = {"history__url": str(path / "history"), "topics__defaults__history": True}
    with House(path, **settings) as opened:
        yield opened


class Outcome:
    """What was published in one state, and what each reader got."""

    def __init__(self, house: House, state: str) -> None:
        place = topic_place(f"past-{state}")
        house.declare(place.topic)
        publisher = PUBLISHERS["mqtt-5-qos1-tcp"]
        messages = place.messages(publisher.payloads, publisher.qos, retain=False)
        attach: Callable[[str], Reader] = lambda key: PAST[key].attach(house, place)  # noqa: E731
        readers = {key: attach(key) for key in PAST if key.startswith(EARLY)}
        self.got: dict[str, list[list[Got]] | Exception] = {}
        try:
            publisher.publish(house, place, messages)
            if state.endswith("border"):
                house.wait_stored(place.topic, len(messages))
                house.hosted.run(lambda server: cool(server, place.topic))
            if state in ERASED:
                house.wait_stored(place.topic, len(messages))
                self.erase(house, place)
            end = house.finish(place, len(messages))
            if state == "cold":
                house.hosted.run(lambda server: cool(server, place.topic))
            for key in PAST:
                try:
                    if key not in readers:
                        readers[key] = attach(key)
                    self.got[key] = readers[key].collect()
                except Exception as error:  # one that fails harms no other
                    self.got[key] = error
        finally:
            for one in readers.values():
                with suppress(OSError):
                    one.close()
        self.messages: list[Message] = [*placed(messages, 0), end]
        self.name = place.names[0]

    def erase(self, house: House, place: Place) -> None:
        async def work(server: Server) -> int:
            erased = await server.broker.erase(place.names[0], place.topic)
            return erased.log_records + erased.history_records

        house.hosted.run(work)

    def is_erased(self, one: Message) -> bool:
        return one.name == self.name and one.payload != END

    def of(self, reader: str) -> list[list[Got]]:
        found = self.got[reader]
        if isinstance(found, Exception):
            raise found
        return found


@pytest.mark.parametrize("state", STATES)
def test_every_reader_of_the_past_gets_every_message_once_and_in_order(
    house: House, state: str
) -> None:
    outcome = Outcome(house, state)
    with every_failure() as tried:
        for reader, reading in PAST.items():
            with tried(reader):
                reading.check(outcome.of(reader), outcome.messages)


@pytest.mark.parametrize("state", ERASED)
def test_a_reader_gets_nothing_of_erased_records_and_everything_else(
    house: House, state: str
) -> None:
    outcome = Outcome(house, state)
    left = [one for one in outcome.messages if not outcome.is_erased(one)]
    assert 1 < len(left) < len(outcome.messages)
    kept = {one.payload for one in left}
    with every_failure() as tried:
        for reader, reading in PAST.items():
            with tried(reader):
                found = outcome.of(reader)
                others = [[got for got in stream if got.payload in kept] for stream in found]
                reading.check(others, left)
                empty = [got for stream in found for got in stream if got.payload not in kept]
                wanted = {(b"", outcome.name)}
                assert {(got.payload, got.name or outcome.name) for got in empty} <= wanted
                assert not (empty and reader.startswith(MQTT)), "MQTT passes over expired records"
