"""Is what is counted as waiting what the delivery rule gives each reader from the log?"""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.session.session import TAG_SHIFT
from penstock.broker.session.waiting import Reader, Wish, count_waiting
from penstock.core.naming.names import matches
from penstock.core.where import compile_where
from penstock.model.clock import SystemClock
from penstock.model.timeline import Timeline
from tests.broker.deliver.test_catchup import FILTERS, TOPIC_ID, OneTopic, Stored, filled
from tests.core.delivery.delivery_model import ME, model
from tests.examples import examples

WHERE = "payload LIKE '%1%'"


def some_reader(chance: random.Random, number: int, end: int) -> Reader:
    """The position of a session or of one of its feeds; what its filters are owed differs."""
    wishes = []
    for filter in chance.sample(FILTERS, chance.randint(1, 3)):
        qos = chance.randrange(3)
        since = chance.choice([{}, {TOPIC_ID: chance.randint(0, end)}])
        is_owed = qos == 0 and chance.random() < 0.5
        owed = {TOPIC_ID: chance.randint(0, end)} if is_owed else None
        wishes.append(Wish(filter, qos, since, chance.random() < 0.3, owed))
    out = {TOPIC_ID << TAG_SHIFT | offset for offset in range(end) if chance.random() < 0.1}
    return Reader(
        f"rider-{number}",
        {} if chance.random() < 0.1 else {TOPIC_ID: chance.randint(0, end)},
        wishes,
        out if chance.random() < 0.3 else set(),
        where=compile_where(WHERE) if chance.random() < 0.2 else None,
        keeps_qos0=chance.random() < 0.3,
    )


def due(reader: Reader, records: list[Stored]) -> int:
    """How many records, each decided alone."""
    count = 0
    for offset in range(reader.positions.get(TOPIC_ID, len(records)), len(records)):
        name, qos, payload, publisher = records[offset]
        wants = [one.want(TOPIC_ID) for one in reader.wishes if matches(one.filter, name)]
        publisher = ME if publisher == reader.client_id else publisher
        if model(wants, offset, qos, publisher, reader.keeps_qos0).from_log is None:
            continue
        if TOPIC_ID << TAG_SHIFT | offset in reader.out:
            continue
        count += reader.where is None or b"1" in payload
    return count


@given(seed=st.integers(0, 1 << 32))
@examples(150)
async def test_every_reader_is_counted_what_it_would_be_sent(seed: int) -> None:
    chance = random.Random(seed)
    log, records = await filled(chance)
    readers = [some_reader(chance, number, len(records)) for number in range(5)]
    await count_waiting(OneTopic(log).only, readers, Timeline(SystemClock()))
    assert [one.waiting for one in readers] == [due(one, records) for one in readers]
    assert all(one.is_exact for one in readers)
