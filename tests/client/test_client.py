"""Does a program that moves from a Broker to a server by changing one line do the same?"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import penstock
from penstock import (
    AlreadySubscribed,
    Broker,
    HandlerError,
    InvalidExpression,
    InvalidFilter,
    InvalidName,
    InvalidPosition,
    InvalidSetting,
    InvalidTopic,
    NotAuthorized,
    NotSubscribed,
    OffsetBeyondEnd,
    Record,
    RefusedError,
    TooLarge,
    TopicExists,
    TopicNotFound,
    UnavailableError,
)
from penstock.client.sync import Client
from penstock.doors.http.v1.topics import streams
from penstock.model.limits import HEARTBEAT_S, SILENCE_HEARTBEATS_MAX
from penstock.mqtt.kinds import MQTT_5
from tests.cutting_proxy import CuttingProxy
from tests.doors.served import Served
from tests.doors.users import add_users
from tests.doors.wire import Wire
from tests.waiting import WAIT_S


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("served")) as broker:
        yield broker


def url(served: Served) -> str:
    return f"http://127.0.0.1:{served.http_port}"


@pytest.fixture
def client(served: Served) -> Iterator[Client]:
    with penstock.connect(url(served)) as one:
        yield one


_numbers = iter(range(1_000_000))


@pytest.fixture
def topic(client: Client) -> str:
    name = f"topic-{next(_numbers)}"
    client.create_topic(name)
    return name


# One line apart


def everyday(broker: Any, topic: str) -> list[Any]:
    """What a program does all day; the same with either."""
    broker.create_topic(topic, retention_age=3600)
    broker.create_topic(topic, exist_ok=True, retention_age=3600)
    seen: list[Any] = [broker.publish("text", topic)]
    seen.append(broker.publish(b"\xff\x00", topic, name=f"{topic}/bytes", headers={"k": "v"}))
    seen.append(broker.publish({"n": [1, None, 2.5]}, topic, name=f"{topic}/json"))
    seen.append(broker.publish_many([f"m{n}" for n in range(5)], topic))
    broker.subscribe("reader", topic)
    records = broker.consume("reader", topic, limit=3)
    seen += [(r.offset, r.name, r.value, r.headers, r.partition) for r in records]
    broker.commit("reader", topic)
    seen.append(broker.size(topic, "reader"))
    seen.append([r.value for r in broker.consume("reader", topic)])
    seen.append(broker.seek("reader", topic, 6))
    seen.append([r.offset for r in broker.consume("reader", topic, where="payload LIKE 'm%'")])
    seen.append([r.offset for r in broker.read(topic, start=2, limit=3)])
    seen.append([r.offset for r in broker.read(topic, names=f"{topic}/+")])
    seen.append([(c.consumer, c.waiting) for c in broker.consumers(topic)])
    seen.append(broker.size(topic))
    broker.unsubscribe("reader", topic)
    (info,) = [one for one in broker.topics() if one.topic == topic]
    seen.append((info.first_offset, info.end_offset, info.retention_age, info.durability))
    broker.alter_topic(topic, durability="os")
    seen.append([one.durability for one in broker.topics() if one.topic == topic])
    broker.bind(f"{topic}-elsewhere/#", topic)
    broker.bind(f"{topic}-elsewhere/#", topic)
    broker.unbind(f"{topic}-elsewhere/#")
    seen.append(broker.groups(topic))
    broker.delete_topic(topic)
    return seen


def test_a_program_moves_to_a_server_by_changing_one_line(client: Client, tmp_path: Path) -> None:
    with Broker(tmp_path) as embedded:
        assert everyday(client, "moving") == everyday(embedded, "moving")


def refusals(broker: Any) -> Iterator[tuple[type[Exception], Any]]:
    yield TopicNotFound, lambda: broker.publish("x", "nosuch")
    yield TopicNotFound, lambda: broker.read("nosuch")
    yield TopicExists, lambda: broker.create_topic("there")
    yield AlreadySubscribed, lambda: broker.subscribe("reader", "there")
    yield NotSubscribed, lambda: broker.consume("nobody", "there")
    yield NotSubscribed, lambda: broker.unsubscribe("nobody", "there")
    yield OffsetBeyondEnd, lambda: broker.read("there", start=99)
    yield InvalidPosition, lambda: broker.read("there", start=1.5)
    yield InvalidPosition, lambda: broker.read("there", start="tomorrow-ish")
    yield InvalidExpression, lambda: broker.read("there", where="payload ==")
    yield RefusedError, lambda: broker.publish(object(), "there")
    yield InvalidTopic, lambda: broker.create_topic("a/b")
    yield TopicNotFound, lambda: broker.bind("a/#", "nosuch")
    yield InvalidFilter, lambda: broker.bind("a/#/b", "there")
    yield RefusedError, lambda: broker.unbind("never/bound")
    yield NotSubscribed, lambda: broker.remove_group("nobody", "there")
    yield InvalidTopic, lambda: broker.create_topic(5)
    yield InvalidTopic, lambda: broker.create_topic("")
    yield InvalidTopic, lambda: broker.publish("x", 5)
    yield InvalidSetting, lambda: broker.create_topic("new", durability="none")
    yield InvalidSetting, lambda: broker.create_topic("new", retention_age=-1)
    yield InvalidSetting, lambda: broker.create_topic("new", colour="red")
    yield InvalidSetting, lambda: broker.alter_topic("there", durability="none")
    yield InvalidName, lambda: broker.publish("x", "there", name="a/#")
    yield InvalidName, lambda: broker.publish("x", "there", name=5)
    yield RefusedError, lambda: broker.publish("x", "there", headers={"a": 5})
    yield RefusedError, lambda: broker.publish(float("nan"), "there")
    yield RefusedError, lambda: broker.publish({"deep": [float("inf")]}, "there")
    yield RefusedError, lambda: broker.publish("\ud800", "there")
    yield TooLarge, lambda: broker.publish(bytes(17 << 20), "there")
    yield InvalidName, lambda: broker.subscribe("", "there")
    yield InvalidName, lambda: broker.subscribe("x" * 256, "there")
    yield OffsetBeyondEnd, lambda: broker.subscribe("late", "there", start=99)
    yield InvalidPosition, lambda: broker.subscribe("late", "there", start=datetime(2026, 1, 1))
    yield InvalidPosition, lambda: broker.seek("reader", "there", -1)
    yield InvalidPosition, lambda: broker.commit("reader", "there", -1)
    yield OffsetBeyondEnd, lambda: broker.commit("reader", "there", 99)
    yield InvalidSetting, lambda: broker.consume("reader", "there", limit=0)
    yield InvalidSetting, lambda: broker.consume("reader", "there", limit="3")
    yield InvalidSetting, lambda: broker.consume("reader", "there", on_gap="maybe")
    yield InvalidExpression, lambda: broker.consume("reader", "there", where="((")
    yield InvalidSetting, lambda: broker.read("there", limit=True)
    yield OffsetBeyondEnd, lambda: broker.stream("there", start=99)
    yield InvalidExpression, lambda: broker.stream("there", where="((")
    yield InvalidFilter, lambda: broker.stream("there", names="a/#/b")
    yield TopicNotFound, lambda: broker.stream("nosuch")
    yield InvalidSetting, lambda: broker.stream("there", on_gap="maybe")


def test_refusals_have_the_same_classes_on_both_sides(client: Client, tmp_path: Path) -> None:
    with Broker(tmp_path) as embedded:
        for broker in (embedded, client):
            broker.create_topic("there", exist_ok=True)
            broker.subscribe("reader", "there")
        for here, there in zip(refusals(embedded), refusals(client), strict=True):
            for kind, act in (here, there):
                with pytest.raises(kind) as caught:
                    act()
                assert type(caught.value) is kind and str(caught.value)
            assert here[0] is there[0]
    client.delete_topic("there")


def test_positions_may_be_times(client: Client, topic: str) -> None:
    client.publish("x", topic)
    long_ago = datetime.now(UTC) - timedelta(hours=1)
    assert len(client.read(topic, start=long_ago)) == 1
    assert len(client.read(topic, start=timedelta(hours=1))) == 1
    assert len(client.read(topic, start="-1h")) == 1
    with pytest.raises(InvalidPosition, match="time zone"):
        client.read(topic, start=datetime(2026, 1, 1))


def test_more_records_than_one_answer_holds_come_all(client: Client, topic: str) -> None:
    for _ in range(3):
        client.publish_many(range(5_000), topic)
    assert [record.offset for record in client.read(topic)] == list(range(15_000))
    client.subscribe("all", topic)
    assert len(client.consume("all", topic)) == 15_000


# Publishing


def test_messages_of_many_threads_are_stored_once_each_and_their_offsets_told(
    client: Client, topic: str
) -> None:
    offsets: dict[int, int] = {}

    def publish(start: int) -> None:
        for number in range(start, start + 50):
            offsets[number] = client.publish(number, topic)

    threads = [threading.Thread(target=publish, args=(50 * n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stored = {record.offset: record.value for record in client.read(topic)}
    assert len(stored) == 400
    assert {offset: number for number, offset in offsets.items()} == stored


def test_publishing_through_a_line_that_breaks_stores_each_message_once(served: Served) -> None:
    name = f"topic-{next(_numbers)}"
    with (
        CuttingProxy(served.http_port, seed=7, bytes_each=4_000) as proxy,
        penstock.connect(url(served)) as direct,
    ):
        direct.create_topic(name)
        with penstock.connect(f"http://127.0.0.1:{proxy.port}") as client:
            for number in range(100):
                client.publish({"number": number, "padding": "x" * 100}, name)
        values = [record.value["number"] for record in direct.read(name)]
    assert values == list(range(100))
    assert proxy.cuts > 5


# Streams


def test_a_stream_goes_on_after_every_cut_without_gap_or_repeat(served: Served) -> None:
    name = f"topic-{next(_numbers)}"
    total = 2_000
    with (
        CuttingProxy(served.http_port, seed=3, bytes_each=300_000) as proxy,
        penstock.connect(url(served)) as direct,
    ):
        direct.create_topic(name)

        def publish() -> None:
            for start in range(0, total, 20):
                direct.publish_many(range(start, start + 20), name)

        with penstock.connect(f"http://127.0.0.1:{proxy.port}") as client:
            writer = threading.Thread(target=publish)
            writer.start()
            seen: list[Record] = []
            for record in client.stream(name, start="earliest"):
                seen.append(record)
                if len(seen) % 300 == 0:
                    proxy.cut()
                if len(seen) == total:
                    break
            writer.join()
    assert [record.offset for record in seen] == list(range(total))
    assert [record.value for record in seen] == list(range(total))


def test_a_stream_whose_network_goes_silent_goes_on_after_two_heartbeats(served: Served) -> None:
    """No packet says that the connection is dead: only that nothing comes any more."""
    name = f"topic-{next(_numbers)}"
    with (
        CuttingProxy(served.http_port) as proxy,
        penstock.connect(url(served)) as direct,
        penstock.connect(f"http://127.0.0.1:{proxy.port}", heartbeat_s=0.3) as client,
    ):
        direct.create_topic(name)
        stream = client.stream(name, start="earliest")
        seen: list[int] = []

        def read(count: int) -> None:
            seen.extend(next(stream).value for _ in range(count))

        for start in range(0, 40, 10):
            direct.publish_many(range(start, start + 5), name)
            read(5)
            reader = threading.Thread(target=read, args=(5,), daemon=True)
            reader.start()  # it waits while the network goes silent
            proxy.silence()
            direct.publish_many(range(start + 5, start + 10), name)
            reader.join(WAIT_S)
            assert not reader.is_alive(), "the stream did not notice that its network is dead"
    assert seen == list(range(40))


def test_the_silence_that_ends_a_stream_follows_from_the_brokers_heartbeat() -> None:
    assert streams.HEARTBEAT_S == HEARTBEAT_S
    assert SILENCE_HEARTBEATS_MAX == 2


def test_a_stream_survives_a_restart_of_the_broker(tmp_path: Path) -> None:
    broker = Served(tmp_path)
    broker.start()
    with penstock.connect(f"http://127.0.0.1:{broker.http_port}") as client:
        client.create_topic("t")
        client.publish("before", "t")
        records = client.stream("t", start="earliest")
        assert next(records).value == "before"
        broker.kill()
        broker.start()
        client.publish("after", "t")
        assert next(records).value == "after"
    broker.stop()


def test_latest_is_the_end_when_the_stream_was_asked_for(client: Client, topic: str) -> None:
    client.publish("before", topic)
    records = client.stream(topic)
    client.publish("after", topic)
    assert next(records).value == "after"


async def test_what_a_client_publishes_behind_its_stream_comes(served: Served) -> None:
    async with penstock.aio.connect(url(served)) as client:
        await client.create_topic("behind")
        await client.publish("before", "behind")
        streams = [client.stream("behind") for _ in range(3)]
        unread = client.stream("nosuch")  # never asked for a record: nobody need hear of it
        await client.publish("after", "behind")
        for records in streams:
            assert (await anext(records)).value == "after"
        await client.publish_many(["more"], "behind")
        assert (await anext(streams[0])).value == "more"
        with pytest.raises(TopicNotFound):
            await anext(unread)


async def test_a_stream_ends_with_its_client(served: Served) -> None:
    client = await penstock.aio.connect(url(served)).open()
    await client.create_topic("ending")
    records = client.stream("ending", start="earliest")
    await client.publish("only", "ending")
    assert (await anext(records)).value == "only"
    await client.close()
    with pytest.raises(UnavailableError, match="closed"):
        await anext(records)


def test_a_stream_filters_where_the_broker_is(client: Client, topic: str) -> None:
    client.publish_many([{"n": n} for n in range(20)], topic, name=f"{topic}/a")
    client.publish({"n": 100}, topic, name=f"{topic}/b")
    records = client.stream(topic, start=0, where="payload.n >= 18", names=f"{topic}/+")
    assert [next(records).value["n"] for _ in range(3)] == [18, 19, 100]


# Groups


def test_readers_of_a_group_share_its_records(client: Client, topic: str) -> None:
    client.publish_many(range(10), topic)
    first, second = client.join_group("workers", topic), client.join_group("workers", topic)
    mine = first.fetch(4)
    theirs = second.fetch(100)
    assert [one.record.value for one in mine + theirs] == list(range(10))
    assert first.ack(mine) == 4
    assert second.nack(theirs[:1], reason="not now") == 1
    (again,) = first.fetch(100)
    assert (again.record.value, again.deliveries) == (4, 2)
    with pytest.raises(RefusedError, match="does not hold"):
        first.ack(mine)
    info = first.info()
    assert info["next_offset"] == 10 and len(info["pending"]) == 6
    (told,) = client.groups(topic)
    assert (told.group, told.next_offset, len(told.pending)) == ("workers", 10, 6)
    assert first.extend(theirs[1:2], lease_s=600) == 1
    client.alter_group("workers", topic, lease_s=60, deliveries_max=1)
    assert (first.info()["lease_s"], first.info()["deliveries_max"]) == (60, 1)
    first.nack([again], reason="never")
    assert client.redrive("workers", topic, dry_run=True) == 1
    assert client.redrive("workers", topic) == 1
    (back,) = first.fetch(lease_s=5, deliveries_max=3)
    assert (back.record.value, back.deliveries) == (4, 1)
    client.remove_group("workers", topic)
    assert client.groups(topic) == []
    with pytest.raises(NotSubscribed):
        first.info()


def test_the_old_way_to_join_a_group_works_and_says_what_replaces_it(
    client: Client, topic: str
) -> None:
    client.publish("x", topic)
    with pytest.warns(DeprecationWarning, match=r"join_group\(group, topic\)"):
        group = client.group(topic, "workers")
    assert len(group.fetch()) == 1


# Retained messages


def test_a_retained_message_reaches_a_subscriber_that_comes_later(
    served: Served, client: Client, topic: str
) -> None:
    client.publish("on", topic, name=f"{topic}/lamp", retain=True)
    client.publish_many(["a", "b"], topic, name=f"{topic}/many", retain=True)
    with Wire(served.port, f"late-{topic}", MQTT_5) as wire:
        wire.connect()
        wire.subscribe(f"{topic}/#", qos=1)
        got = {one.name: one for one in (wire.receive(), wire.receive())}
    assert [got[f"{topic}/lamp"].payload, got[f"{topic}/many"].payload] == [b"on", b"b"]
    assert all(one.retain for one in got.values())


# Handlers and requests


class Reading(msgspec.Struct):
    celsius: float


def test_handlers_are_given_what_their_model_says_and_may_answer(
    served: Served, client: Client, topic: str
) -> None:
    worker = penstock.connect(url(served))
    seen: list[float] = []

    @worker.handler(f"{topic}/+/temp", model=Reading)
    def warm(reading: Reading) -> dict[str, float] | None:
        seen.append(reading.celsius)
        return {"fahrenheit": reading.celsius * 1.8 + 32}

    thread = threading.Thread(target=_run_until_closed, args=(worker,), daemon=True)
    client.publish({"celsius": "hot"}, topic, name=f"{topic}/1/temp")
    client.publish({"celsius": 0}, topic, name=f"{topic}/1/temp")
    thread.start()
    answer = client.request({"celsius": 100}, topic, name=f"{topic}/2/temp", timeout_s=WAIT_S)
    assert answer.value == {"fahrenheit": 212}
    assert seen == [0, 100]


def test_a_handler_may_say_which_topic_holds_its_names(
    served: Served, client: Client, topic: str
) -> None:
    worker = penstock.connect(url(served))
    with pytest.raises(InvalidFilter, match="topic="):
        worker.handler("+/temp")

    @worker.handler("+/temp", topic=topic)
    def echo(record: Record) -> Any:
        return record.value

    threading.Thread(target=_run_until_closed, args=(worker,), daemon=True).start()
    answer = client.request("hello", topic, name="elsewhere/temp", timeout_s=WAIT_S)
    assert answer.value == "hello"


def _run_until_closed(client: Client) -> None:
    client.run(start="earliest")


def test_what_a_handler_raises_reaches_who_asked(
    served: Served, client: Client, topic: str
) -> None:
    worker = penstock.connect(url(served))

    @worker.handler(f"{topic}/+", model=Reading)
    def fail(reading: Reading) -> float:
        raise ValueError(f"too hot: {reading.celsius}")

    threading.Thread(target=_run_until_closed, args=(worker,), daemon=True).start()
    with pytest.raises(HandlerError, match="ValueError: too hot: 100") as failed:
        client.request({"celsius": 100}, topic, name=f"{topic}/2", timeout_s=WAIT_S)
    assert failed.value.kind == "ValueError"
    with pytest.raises(HandlerError, match=r"ValidationError: Expected `float`"):
        client.request({"celsius": "warm"}, topic, name=f"{topic}/2", timeout_s=WAIT_S)


def test_a_request_that_nobody_answers_says_so(client: Client, topic: str) -> None:
    with pytest.raises(UnavailableError, match="no reply within"):
        client.request("anybody?", topic, timeout_s=0.2)


# Coming in


def test_what_is_no_broker_is_told_with_the_way_out(served: Served) -> None:
    with pytest.raises(RefusedError, match="http://HOST:PORT"):
        penstock.connect("mqtt://127.0.0.1")
    with pytest.raises(UnavailableError, match="penstock serve"):
        penstock.connect("http://127.0.0.1:1")
    client = penstock.connect(url(served))
    client.close()
    client.close()
    with pytest.raises(UnavailableError, match="closed"):
        client.topics()


def test_a_user_comes_in_with_a_password_and_nobody_without(tmp_path: Path) -> None:
    add_users(tmp_path, ada="secret")
    with Served(tmp_path) as broker:
        address = f"127.0.0.1:{broker.http_port}"
        with pytest.raises(NotAuthorized):
            penstock.connect(f"http://{address}")
        with pytest.raises(NotAuthorized):
            penstock.connect(f"http://{address}", user="ada", password="wrong")
        inside: list[AbstractContextManager[Client]] = [
            penstock.connect(f"http://{address}", user="ada", password="secret"),
            penstock.connect(f"http://ada:secret@{address}"),
        ]
        for one in inside:
            with one as client:
                assert isinstance(client.topics(), list)
