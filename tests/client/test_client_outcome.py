"""Does a client whose answer was lost say so, and can the call be repeated without harm?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import penstock
from penstock import (
    NotSubscribed,
    OutcomeUnknown,
    PenstockError,
    RefusedError,
    TopicNotFound,
    UnavailableError,
)
from penstock.client.sync import Client
from tests.cutting_proxy import CuttingProxy
from tests.doors.served import Served

ATTEMPTS = 2  # of one call of a client without patience: the request, and its repetition


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("served")) as broker:
        yield broker


@pytest.fixture
def proxy(served: Served) -> Iterator[CuttingProxy]:
    with CuttingProxy(served.http_port, seed=11) as one:
        yield one


@pytest.fixture
def direct(served: Served) -> Iterator[Client]:
    with penstock.connect(f"http://127.0.0.1:{served.http_port}") as one:
        yield one


def address(proxy: CuttingProxy) -> str:
    return f"http://127.0.0.1:{proxy.port}"


@pytest.fixture
def client(proxy: CuttingProxy) -> Iterator[Client]:
    with penstock.connect(address(proxy), patience_s=0) as one:
        yield one


_numbers = iter(range(1_000_000))


@pytest.fixture
def topic(direct: Client) -> str:
    name = f"topic-{next(_numbers)}"
    direct.create_topic(name)
    return name


def lost(proxy: CuttingProxy, act: Callable[[], Any], answers: int = ATTEMPTS) -> OutcomeUnknown:
    """What a call raises whose answers do not arrive."""
    proxy.answers_lost = answers
    with pytest.raises(OutcomeUnknown, match="may or may not have been carried out") as caught:
        act()
    assert proxy.answers_lost == 0
    return caught.value


# The class


def test_an_unknown_outcome_is_not_caught_as_unavailable() -> None:
    assert not issubclass(OutcomeUnknown, UnavailableError | RefusedError)
    assert issubclass(OutcomeUnknown, PenstockError)


# Publishing


def test_a_publish_whose_answer_is_lost_is_repeated_with_its_key(
    proxy: CuttingProxy, client: Client, direct: Client, topic: str
) -> None:
    error = lost(proxy, lambda: client.publish({"n": 1}, topic, headers={"a": "b"}))
    assert error.key and error.key in str(error)
    assert direct.size(topic) == 1
    for publisher in (client, direct):
        assert publisher.publish({"n": 1}, topic, headers={"a": "b"}, key=error.key) == 0
    assert direct.size(topic) == 1


def test_publish_many_whose_answer_is_lost_is_repeated_with_its_key(
    proxy: CuttingProxy, client: Client, direct: Client, topic: str
) -> None:
    error = lost(proxy, lambda: client.publish_many(range(50), topic))
    assert direct.publish_many(range(50), topic, key=error.key) == range(50)
    assert direct.size(topic) == 50


def test_a_key_of_your_own_stores_once(client: Client, direct: Client, topic: str) -> None:
    assert [client.publish("x", topic, key="order 17") for _ in range(3)] == [0, 0, 0]
    assert client.publish("x", topic, key="order 18") == 1
    with pytest.raises(RefusedError, match="'order 17' was used with another body"):
        client.publish("y", topic, key="order 17")
    assert direct.size(topic) == 2


@pytest.mark.parametrize("key", ["", "ü", "a\nb", " a", "x" * 256, 5])
def test_a_key_that_a_header_cannot_hold_is_refused(client: Client, topic: str, key: Any) -> None:
    for act in (
        lambda: client.publish("x", topic, key=key),
        lambda: client.publish_many(["x"], topic, key=key),
        lambda: client.consume("c", topic, key=key),
    ):
        with pytest.raises(RefusedError, match="printable ASCII"):
            act()
    assert client.size(topic) == 0


def test_a_broker_that_is_not_there_has_changed_nothing(
    direct: Client, proxy: CuttingProxy
) -> None:
    client = penstock.connect(address(proxy), patience_s=0)
    with proxy:
        pass  # closed: nobody listens any more
    with pytest.raises(UnavailableError):
        client.publish("x", "any")


async def test_messages_that_went_together_are_repeated_one_by_one(
    proxy: CuttingProxy, direct: Client, topic: str
) -> None:
    """Also when only some of them are repeated, in another order, and more than once."""
    async with penstock.aio.connect(address(proxy), patience_s=0) as client:
        proxy.answers_lost = ATTEMPTS
        works = [client.publish(n, topic) for n in range(20)]
        errors: list[Any] = await asyncio.gather(*works, return_exceptions=True)
    assert all(isinstance(error, OutcomeUnknown) for error in errors)
    assert len({error.key for error in errors}) == 20
    assert direct.size(topic) == 20
    for n in (7, 3, 7, 19):
        assert direct.publish(n, topic, key=errors[n].key) == n
    assert direct.size(topic) == 20
    with pytest.raises(RefusedError, match="belongs to another message"):
        direct.publish(8, topic, key=errors[7].key)


def test_hundreds_of_publishes_over_a_line_that_loses_answers_are_stored_once_each(
    served: Served, direct: Client, topic: str
) -> None:
    """Cut at every stage: in the request, behind it, in the answer. The caller repeats by key."""
    unknown = 0
    with (
        CuttingProxy(served.http_port, seed=5, bytes_each=6_000) as proxy,
        penstock.connect(address(proxy), patience_s=0) as client,
    ):
        proxy.answer_loss = 0.3
        for number in range(400):
            key = None
            while True:
                try:
                    client.publish({"number": number, "padding": "x" * 100}, topic, key=key)
                    break
                except OutcomeUnknown as error:
                    assert key in (None, error.key)
                    key = error.key
                    unknown += 1
                except UnavailableError:
                    pass  # nothing was stored: repeated as it is
    assert [record.value["number"] for record in direct.read(topic)] == list(range(400))
    assert unknown > 10


async def test_concurrent_publishes_over_a_line_that_loses_answers_are_stored_once_each(
    served: Served, direct: Client, topic: str
) -> None:
    async def publish(client: Any, number: int) -> int:
        key, repeats = None, 0
        while True:
            try:
                await client.publish(number, topic, key=key)
                return repeats
            except OutcomeUnknown as error:
                key = error.key
                repeats += 1
            except UnavailableError:
                pass

    repeats = 0
    with CuttingProxy(served.http_port, seed=9) as proxy:
        async with penstock.aio.connect(address(proxy), patience_s=0) as client:
            proxy.answer_loss = 0.5
            for start in range(0, 300, 30):
                works = [publish(client, n) for n in range(start, start + 30)]
                repeats += sum(await asyncio.gather(*works))
    assert repeats > 10
    assert sorted(record.value for record in direct.read(topic)) == list(range(300))


def test_the_outcome_stays_unknown_when_the_broker_is_gone_afterwards(
    served: Served, direct: Client, topic: str
) -> None:
    """The answer is lost, then nobody listens: that says nothing about the request."""
    with CuttingProxy(served.http_port) as proxy:
        client = penstock.connect(address(proxy), patience_s=0.2)
        proxy.answers_lost = 1
        proxy.on_loss = proxy.stop_listening
        with pytest.raises(OutcomeUnknown) as caught:
            client.publish("x", topic)
        client.close()
    assert direct.publish("x", topic, key=caught.value.key) == 0
    assert direct.size(topic) == 1


# Consuming


def test_records_of_a_lost_answer_are_consumed_with_its_key(
    proxy: CuttingProxy, client: Client, direct: Client, topic: str
) -> None:
    direct.publish_many(range(10), topic)
    direct.subscribe("reader", topic)
    assert [r.value for r in client.consume("reader", topic, limit=2)] == [0, 1]
    error = lost(proxy, lambda: client.consume("reader", topic, limit=3))
    again = client.consume("reader", topic, limit=3, key=error.key)
    assert [r.value for r in again] == [2, 3, 4]
    assert [r.value for r in client.consume("reader", topic)] == [5, 6, 7, 8, 9]


def test_a_consume_repeats_by_itself_when_an_answer_is_lost(
    proxy: CuttingProxy, direct: Client, topic: str
) -> None:
    direct.publish_many(range(300), topic)
    direct.subscribe("reader", topic)
    seen: list[int] = []
    with penstock.connect(address(proxy), patience_s=60) as client:
        proxy.answer_loss = 0.3
        while len(seen) < 300:
            seen += [r.value for r in client.consume("reader", topic, limit=7)]
        proxy.answer_loss = 0.0
    assert seen == list(range(300))


def test_a_batch_of_several_answers_comes_whole_when_one_of_them_is_lost(
    proxy: CuttingProxy, client: Client, direct: Client, topic: str
) -> None:
    for start in range(0, 25_000, 5_000):
        direct.publish_many(range(start, start + 5_000), topic)
    direct.subscribe("reader", topic)
    error = lost_page(proxy, client, topic)
    records = client.consume("reader", topic, key=error.key)
    assert [r.value for r in records] == list(range(25_000))
    assert direct.size(topic, "reader") == 0


def lost_page(proxy: CuttingProxy, client: Client, topic: str) -> OutcomeUnknown:
    """Consumes until the second page or a later one is lost."""
    proxy.answers_spared = 2  # how far the topic is, and the first page
    proxy.answers_lost = ATTEMPTS
    with pytest.raises(OutcomeUnknown) as caught:
        client.consume("reader", topic)
    return caught.value


# Every other call that changes something


def test_calls_that_are_lost_say_so_and_were_carried_out(
    proxy: CuttingProxy, client: Client, direct: Client, topic: str
) -> None:
    name = f"{topic}-new"
    direct.publish_many(range(5), topic)
    group = client.join_group("workers", topic)
    calls: list[tuple[Callable[[], Any], int]] = [
        (lambda: client.create_topic(name), ATTEMPTS),
        (lambda: client.alter_topic(name, durability="os"), ATTEMPTS),
        (lambda: client.bind(f"{name}/#", name), ATTEMPTS),
        (lambda: client.unbind(f"{name}/#"), ATTEMPTS),
        (lambda: client.subscribe("reader", topic), ATTEMPTS),
        (lambda: client.seek("reader", topic, 3), ATTEMPTS),
        (lambda: client.commit("reader", topic, 4), ATTEMPTS),
        (lambda: group.fetch(2), 1),
        (lambda: group.delete(), 1),
        (lambda: client.delete_topic(name), ATTEMPTS),
    ]
    for act, answers in calls:
        error = lost(proxy, act, answers)
        assert error.key is None
    assert direct.size(topic, "reader") == 1
    assert direct.groups(topic) == []
    assert name not in [one.topic for one in direct.topics()]
    lost(proxy, lambda: client.unsubscribe("reader", topic))
    with pytest.raises(NotSubscribed):
        direct.size(topic, "reader")


def test_an_ack_whose_answer_is_lost_was_carried_out(
    proxy: CuttingProxy, client: Client, direct: Client, topic: str
) -> None:
    direct.publish_many(range(2), topic)
    group = client.join_group("workers", topic)
    first, second = group.fetch(2)
    lost(proxy, lambda: group.ack([first]), 1)
    lost(proxy, lambda: group.nack([second]), 1)
    (again,) = direct.join_group("workers", topic).fetch(2)
    assert again.record.value == 1
    with pytest.raises(RefusedError, match="does not hold"):
        group.ack([first])


def test_a_call_that_refuses_its_own_repetition_says_that_the_outcome_is_unknown(
    proxy: CuttingProxy, client: Client, direct: Client, topic: str
) -> None:
    """The first request created the topic; its repetition is told that the topic exists."""
    for act in (
        lambda: client.create_topic(f"{topic}-new"),
        lambda: client.subscribe("reader", topic),
        lambda: client.unsubscribe("reader", topic),
        lambda: client.delete_topic(f"{topic}-new"),
    ):
        proxy.answers_lost = 1
        with pytest.raises(OutcomeUnknown, match="repetition was refused"):
            act()
    with pytest.raises(TopicNotFound):
        direct.size(f"{topic}-new")


def test_reading_through_a_line_that_breaks_changed_nothing(
    proxy: CuttingProxy, client: Client, topic: str
) -> None:
    for act in (client.topics, lambda: client.read(topic), lambda: client.size(topic)):
        proxy.answers_lost = ATTEMPTS
        with pytest.raises(UnavailableError, match="broke"):
            act()
