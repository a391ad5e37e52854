"""Do dead letters come back to their topic as they were, each of them once?"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock import AsyncBroker, Broker, InvalidExpression, InvalidName, NotAuthorized
from penstock.broker.queue import redrives
from penstock.core.access import NOTHING, Principal
from penstock.core.position import Earliest
from penstock.model.errors import RefusedError


@pytest.fixture
async def broker() -> AsyncIterator[AsyncBroker]:
    async with AsyncBroker.memory() as opened:
        await opened.create_topic("jobs")
        await opened.create_group("workers", "jobs", deliveries_max=1)
        yield opened


async def let_die(broker: AsyncBroker, reason: str = "no", group: str = "workers") -> None:
    """Every record that the group has not done becomes a dead letter."""
    engine = broker.engine
    topic = engine.topics.get("jobs")
    while True:
        receipt, given = await engine.groups.fetch(topic, group, 100, 0, Earliest())
        if not given:
            return
        await engine.groups.nack(topic, group, receipt, None, 0, reason)


async def test_a_dead_letter_comes_back_as_the_record_it_was(broker: AsyncBroker) -> None:
    headers = [("k", "v"), ("k", "w")]
    await broker.publish({"n": 1}, "jobs", name="jobs/a/b", headers=headers)
    await broker.publish(b"\xff", "jobs", name="jobs/raw")
    await let_die(broker)
    assert await broker.redrive("workers", "jobs", dry_run=True) == 2
    assert await broker.redrive("workers", "jobs") == 2
    assert await broker.redrive("workers", "jobs") == 0
    records = await broker.read("jobs")
    for before, after in zip(records[:2], records[2:], strict=True):
        for what in ("name", "payload", "headers", "kind", "qos", "publisher", "retain"):
            assert getattr(before, what) == getattr(after, what)
    counted = broker.engine.metrics.snapshot()
    assert counted["penstock_dead_records_total"] == 2
    assert counted["penstock_redriven_records_total"] == 2


async def test_a_letter_that_dies_again_comes_back_again(broker: AsyncBroker) -> None:
    await broker.publish("x", "jobs")
    for turn in range(1, 4):
        await let_die(broker)
        assert await broker.redrive("workers", "jobs") == 1
        assert len(await broker.read("jobs")) == turn + 1


async def test_only_letters_of_the_group_that_match_and_up_to_the_limit_come_back(
    broker: AsyncBroker,
) -> None:
    await broker.create_group("others", "jobs", deliveries_max=1)
    await broker.publish_many([{"n": n} for n in range(10)], "jobs")
    await let_die(broker, "busy", "others")
    await let_die(broker, "no boxes")
    assert await broker.redrive("workers", "jobs", where="payload.n >= 8") == 2
    assert await broker.redrive("workers", "jobs", where="payload.n >= 8") == 0
    assert await broker.redrive("workers", "jobs", limit=3) == 3
    reason = "headers['penstock.dead.reason'] = 'no boxes'"
    assert await broker.redrive("workers", "jobs", where=reason) == 5
    back = [record.value["n"] for record in (await broker.read("jobs"))[10:]]
    assert back == [8, 9, 0, 1, 2, 3, 4, 5, 6, 7]
    assert await broker.redrive("others", "jobs", dry_run=True) == 10


async def test_records_that_others_put_beside_dead_letters_stay_there(broker: AsyncBroker) -> None:
    await broker.publish("x", "jobs")
    await let_die(broker)
    (letter,) = await broker.read("jobs.dead")
    facts = dict(letter.headers)
    await broker.publish("plain", "jobs.dead")
    await broker.publish("part", "jobs.dead", headers=list(facts.items())[:3])
    for change in ({"penstock.dead.topic": "other"}, {"penstock.dead.name": "a/#"}):
        await broker.publish("wrong", "jobs.dead", headers=facts | change)
    assert await broker.redrive("workers", "jobs") == 1


async def test_a_redrive_needs_the_right_to_publish_under_the_original_name(
    broker: AsyncBroker,
) -> None:
    await broker.publish("x", "jobs")
    await let_die(broker)
    nobody = Principal("default", "eve", NOTHING)
    engine = broker.engine
    with pytest.raises(NotAuthorized, match="'eve' may not publish"):
        await engine.redrives.redrive(engine.topics.get("jobs"), "workers", nobody)
    assert len(await broker.read("jobs")) == 1


async def test_what_cannot_be_redriven_is_said(broker: AsyncBroker) -> None:
    assert await broker.redrive("workers", "jobs") == 0  # no record ever died
    with pytest.raises(InvalidExpression):
        await broker.redrive("workers", "jobs", where="((")
    with pytest.raises(InvalidName):
        await broker.redrive("", "jobs")


async def test_too_many_separate_letters_are_refused_before_anything_is_done(
    broker: AsyncBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.publish_many([{"n": n % 2} for n in range(10)], "jobs")
    await let_die(broker)
    monkeypatch.setattr(redrives, "RANGES_MAX", 3)
    with pytest.raises(RefusedError, match="redrive without a filter"):
        await broker.redrive("workers", "jobs", where="payload.n = 0")
    assert len(await broker.read("jobs")) == 10


async def test_letters_of_a_topic_that_was_made_anew_are_other_letters(
    broker: AsyncBroker,
) -> None:
    for _ in range(2):
        await broker.publish("x", "jobs")
        await let_die(broker)
        assert await broker.redrive("workers", "jobs") == 1
        await let_die(broker)
        await broker.delete_topic("jobs.dead")


def test_what_was_put_back_is_known_after_a_restart(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        broker.create_topic("jobs")
        broker.create_group("workers", "jobs", deliveries_max=1)
        broker.publish_many(range(2_500), "jobs")
        broker._call(let_die(broker._broker))
        assert broker.redrive("workers", "jobs", limit=2_200) == 2_200
    with Broker(tmp_path) as broker:
        assert broker.redrive("workers", "jobs") == 300
        assert [one.value for one in broker.read("jobs", start=2_500)] == list(range(2_500))
