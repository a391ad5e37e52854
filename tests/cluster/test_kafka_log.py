"""What a log in Kafka does beside the contract: other producers, outages, leaders that move."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic

from penstock.core.delivery.run import run_of
from penstock.log.format.batch import Batch
from penstock.log.format.marks import MARK_QOS2_RELEASED, Mark
from penstock.log.interface import FSYNC, Bounds, LogSettings
from penstock.log.kafka import work as kafka_work
from penstock.log.kafka.client import KafkaAddress
from penstock.log.kafka.store import KafkaLayout, KafkaStore
from penstock.model.clock import ManualClock
from penstock.model.errors import Gap, RefusedError, TooLarge, UnavailableError
from tests.appends import append
from tests.cluster.kafka_world import ORDERS, KafkaWorld, open_kafka, payloads
from tests.doors.certificates import Authority
from tests.kafka_server import PASSWORD, PLAIN_USER, SCRAM_USER, KafkaServer
from tests.log.files.stores import read_all, until


@pytest.fixture
async def world(kafka: KafkaServer) -> AsyncIterator[KafkaWorld]:
    async with open_kafka(kafka) as opened:
        yield opened


@pytest.fixture(scope="module")
def three() -> Iterator[KafkaServer]:
    server = KafkaServer(3)
    yield server
    server.stop()


def producer(server: KafkaServer, **settings: object) -> Producer:
    return Producer({"bootstrap.servers": server.bootstrap, "acks": "all", **settings})


def produce(world: KafkaWorld, *values: bytes, key: bytes = b"foreign/1") -> None:
    writing = producer(world.server)
    for value in values:
        writing.produce(world.topic, value, key=key)
    assert writing.flush(60) == 0


def consume(world: KafkaWorld, count: int) -> list[tuple[bytes | None, bytes | None]]:
    reading = Consumer({"bootstrap.servers": world.server.bootstrap, "group.id": "plain"})
    reading.assign([TopicPartition(world.topic, 0, 0)])
    try:
        found = reading.consume(count, 60)
        return [(one.key(), one.value()) for one in found]
    finally:
        reading.close()


async def test_a_plain_consumer_reads_what_is_appended(world: KafkaWorld) -> None:
    log = await world.create()
    await append(log, run_of("orders/1", [b"a", b"b"]))
    await append(log, run_of("orders/2", [b"c"], headers=(("k", "v"),)))
    found = await asyncio.to_thread(consume, world, 3)
    assert found == [(b"orders/1", b"a"), (b"orders/1", b"b"), (b"orders/2", b"c")]


async def test_a_foreign_record_becomes_visible_by_itself_and_is_announced(
    world: KafkaWorld,
) -> None:
    log = await world.create()
    heard: list[Batch] = []
    log.on_commit = lambda batch, runs: heard.append(batch)
    await append(log, run_of("orders/1", [b"ours"]))
    waiting = asyncio.ensure_future(log.wait_past(1))
    await asyncio.to_thread(produce, world, b"theirs")
    await asyncio.wait_for(waiting, 60)
    assert await payloads(log) == [b"ours", b"theirs"]
    assert [(one.base_offset, one.end_offset) for one in heard] == [(0, 1), (1, 2)]
    (theirs,) = await read_all(log, 1)
    assert (theirs.name, theirs.qos, theirs.publisher) == ("foreign/1", 1, "")


async def test_foreign_records_between_ours_are_shown_before_what_follows_them(
    world: KafkaWorld,
) -> None:
    log = await world.create()
    order: list[bytes] = []

    def note(batch: Batch, runs: object) -> None:
        order.extend(batch.payloads(0, batch.header.count))

    log.on_commit = note

    async def ours() -> None:
        for i in range(200):
            assert await append(log, run_of("ours", [b"ours-%d" % i])) == len(order) - 1

    values = [b"theirs-%d" % i for i in range(2_000)]
    await asyncio.gather(ours(), asyncio.to_thread(produce, world, *values))
    await asyncio.wait_for(log.wait_past(2_199), 60)
    assert order == await payloads(log)
    assert [one for one in order if one.startswith(b"t")] == values
    assert [one for one in order if one.startswith(b"o")] == [b"ours-%d" % i for i in range(200)]


async def test_aborted_transactions_are_never_seen_and_their_offsets_are_skipped(
    world: KafkaWorld,
) -> None:
    log = await world.create()

    def transact() -> None:
        writing = producer(world.server, **{"transactional.id": world.topic})
        writing.init_transactions(60)
        for outcome in (b"committed", b"aborted", b"committed too"):
            writing.begin_transaction()
            writing.produce(world.topic, outcome, key=b"t")
            writing.flush(60)
            end = writing.abort_transaction if outcome == b"aborted" else writing.commit_transaction
            end(60)

    await asyncio.to_thread(transact)
    await asyncio.wait_for(log.wait_past(5), 60)
    assert await append(log, run_of("n", [b"ours"])) == 6
    expected = [b"committed", b"committed too", b"ours"]
    assert await payloads(log) == expected
    log = await world.reopen(log)
    assert await payloads(log) == expected
    assert [record.offset for record in await read_all(log)] == [0, 4, 6]


async def test_marks_alone_take_an_offset_and_every_offset_can_be_read_from(
    world: KafkaWorld,
) -> None:
    log = await world.create()
    for i in range(4):
        await append(log, run_of("n", [b"%d" % i]))
        await append(log, run_of("n", []), [Mark(MARK_QOS2_RELEASED, b"%d" % i)])
    for _ in range(2):  # from memory, then from Kafka
        assert log.bounds() == Bounds(0, 8)
        for offset in range(8):
            found = [record.offset for record in await read_all(log, offset)]
            assert found == [one for one in (0, 2, 4, 6) if one >= offset]
        marks = [m.key async for batch in log.batches_since(0) for m in batch.marks()]
        assert marks == [b"0", b"1", b"2", b"3"]
        log = await world.reopen(log)


async def test_what_was_acknowledged_is_there_after_kafka_was_killed() -> None:
    server = KafkaServer()
    try:
        async with open_kafka(server) as world:
            log = await world.create()
            for i in range(20):
                await append(log, run_of("n", [b"%d" % i]))
            server.kill()
            during = asyncio.ensure_future(append(log, run_of("n", [b"during"])))
            await asyncio.to_thread(server.start)
            assert await asyncio.wait_for(during, 60) == 20  # repeated until answered, stored once
            assert await append(log, run_of("n", [b"after"])) == 21
            expected = [b"%d" % i for i in range(20)] + [b"during", b"after"]
            assert await payloads(log) == expected
            log = await world.reopen(log)
            assert await payloads(log) == expected
    finally:
        server.stop()


async def test_publishers_are_refused_while_kafka_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kafka_work, "TROUBLE_S", 0.5)
    server = KafkaServer()
    try:
        async with open_kafka(server) as world:
            log = await world.create()
            await append(log, run_of("n", [b"before"]))
            server.brokers[0].freeze()
            in_doubt = asyncio.ensure_future(append(log, run_of("n", [b"in doubt"])))
            await until(lambda: log._work.trouble != "")
            with pytest.raises(UnavailableError, match="does not confirm what is published"):
                await append(log, run_of("n", [b"refused"]))
            server.brokers[0].thaw()
            assert await asyncio.wait_for(in_doubt, 60) == 1
            assert await append(log, run_of("n", [b"after"])) == 2
            assert await payloads(log) == [b"before", b"in doubt", b"after"]
    finally:
        server.stop()


async def test_leaders_that_die_lose_nothing_and_repeat_nothing(three: KafkaServer) -> None:
    async with open_kafka(three, 3) as world:
        log = await world.create()
        count = 0
        stop = asyncio.Event()

        async def publish() -> None:
            nonlocal count
            while not stop.is_set():
                await append(log, run_of("n", [b"%d" % count]))
                count += 1

        publishing = asyncio.ensure_future(publish())
        epoch = log.epoch
        for _ in range(2):
            leader = log._work.client.leader(log.partition)
            before = count
            three.brokers[leader - 1].kill()
            await until(lambda before=before: count > before + 50)
            await asyncio.to_thread(three.brokers[leader - 1].start)
            await asyncio.to_thread(three.brokers[leader - 1].wait_ready)
        stop.set()
        await publishing
        assert log.epoch > epoch
        assert await log.clamp(log.epoch, count) == count
        log = await world.reopen(log)
        assert await payloads(log) == [b"%d" % i for i in range(count)]
        assert await log.clamp(log.epoch, count) == count
        assert await log.clamp(epoch, count) < count  # the end of the epoch of the first leader


@pytest.mark.parametrize(
    ("mechanism", "user"), [("PLAIN", PLAIN_USER), ("SCRAM-SHA-256", SCRAM_USER)]
)
async def test_a_login_is_made_and_a_wrong_password_is_told(
    kafka: KafkaServer, mechanism: str, user: str
) -> None:
    bootstrap = f"127.0.0.1:{kafka.sasl_ports[0]}"
    layout = KafkaLayout(kafka.new_prefix(), 1, "one")
    address = KafkaAddress(bootstrap, "", mechanism, user, PASSWORD)
    store = await KafkaStore.start(address, layout, ManualClock())
    try:
        log = await store.create(ORDERS, "Orders", LogSettings())
        assert await append(log, run_of("n", [b"x"])) == 0
        await log.close()
    finally:
        await store.close()
    wrong = KafkaAddress(bootstrap, "", mechanism, user, "wrong")
    with pytest.raises(UnavailableError, match="cannot be reached or rejects the login"):
        await KafkaStore.start(wrong, layout, ManualClock())


async def test_a_connection_is_encrypted_and_the_certificate_checked(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    bootstrap = f"127.0.0.1:{kafka.tls_ports[0]}"
    layout = KafkaLayout(kafka.new_prefix(), 1, "one")
    login = ("SCRAM-SHA-256", SCRAM_USER, PASSWORD)
    address = KafkaAddress(bootstrap, str(kafka.tls_ca), *login)
    store = await KafkaStore.start(address, layout, ManualClock())
    try:
        log = await store.create(ORDERS, "Orders", LogSettings())
        assert await append(log, run_of("n", [b"x"])) == 0
        await log.close()
    finally:
        await store.close()
    other = KafkaAddress(bootstrap, str(Authority(tmp_path).cert), *login)
    with pytest.raises(UnavailableError, match="cannot be reached or rejects the login"):
        await KafkaStore.start(other, layout, ManualClock())
    missing = KafkaAddress(bootstrap, "/nowhere.pem", *login)
    with pytest.raises(RefusedError, match="tls_ca '/nowhere.pem' cannot be used"):
        await KafkaStore.start(missing, layout, ManualClock())


async def test_nobody_there_is_told_with_the_address() -> None:
    with pytest.raises(UnavailableError, match="Kafka at 127.0.0.1:1 cannot be reached"):
        await KafkaStore.start(
            KafkaAddress("127.0.0.1:1"), KafkaLayout("x", 1, "one"), ManualClock()
        )


async def test_the_topic_in_kafka_is_set_up_so_that_nothing_confirmed_is_lost(
    world: KafkaWorld,
) -> None:
    await world.create(LogSettings(durability=FSYNC))
    admin = AdminClient({"bootstrap.servers": world.server.bootstrap})
    resource = ConfigResource(ConfigResource.Type.TOPIC, world.topic)
    (asked,) = admin.describe_configs([resource]).values()
    found = {name: entry.value for name, entry in (await asyncio.to_thread(asked.result)).items()}
    assert found["flush.messages"] == "1"
    assert found["cleanup.policy"] == "delete"
    assert found["unclean.leader.election.enable"] == "false"
    assert (found["retention.ms"], found["retention.bytes"]) == ("-1", "-1")


def make_anew(world: KafkaWorld) -> None:
    """Delete the topic and create it again, empty."""
    admin = AdminClient({"bootstrap.servers": world.server.bootstrap})
    (gone,) = admin.delete_topics([world.topic]).values()
    gone.result(60)
    while world.topic in admin.list_topics(timeout=60).topics:
        time.sleep(0.05)
    (made,) = admin.create_topics([NewTopic(world.topic, 1, 1)]).values()
    made.result(60)


async def test_a_log_whose_records_are_gone_is_fenced(world: KafkaWorld) -> None:
    log = await world.create()
    await append(log, run_of("n", [b"a", b"b"]))
    await asyncio.to_thread(make_anew, world)
    await until(lambda: log.fence != "")
    assert "ends at offset 0 there, but readers have seen records before offset 2" in log.fence
    with pytest.raises(UnavailableError, match="restart the broker"):
        await append(log, run_of("n", [b"c"]))


async def test_records_that_others_delete_are_a_gap_for_readers(world: KafkaWorld) -> None:
    log = await world.create()
    for number in range(4):
        await append(log, run_of("n", [b"%d" % number]))
    admin = AdminClient({"bootstrap.servers": world.server.bootstrap})
    (asked,) = admin.delete_records([TopicPartition(world.topic, 0, 2)]).values()
    await asyncio.to_thread(asked.result, 60)
    await until(lambda: log.bounds().first == 2)
    with pytest.raises(Gap, match="first record is 2"):
        await log.read(1)
    assert await payloads(log) == [b"2", b"3"]
    assert await append(log, run_of("n", [b"4"])) == 4


async def test_refused_messages_take_no_room(world: KafkaWorld) -> None:
    log = await world.create()
    long = "n" * 60_000
    log._work.trouble = "for a test"
    for _ in range(300):
        with pytest.raises(UnavailableError, match="for a test"):
            await append(log, run_of(long, [b"x"]))
    log._work.trouble = ""
    assert not log.is_congested
    with pytest.raises(TooLarge, match="use shorter names"):
        await append(log, run_of(long, [b"x"] * 1_000))
    waiting = [append(log, run_of(long, [b"x"] * 20)) for _ in range(20)]  # 24 MB of names
    assert log.is_congested
    assert await asyncio.gather(*waiting) == list(range(0, 400, 20))


async def test_a_topic_with_more_partitions_than_we_made_is_refused(world: KafkaWorld) -> None:
    log = await world.create()
    await log.close()
    admin = AdminClient({"bootstrap.servers": world.server.bootstrap})
    (asked,) = admin.create_partitions([NewPartitions(world.topic, 2)]).values()
    await asyncio.to_thread(asked.result, 60)
    with pytest.raises(Exception, match="has 2 partitions in Kafka"):
        await world.store.open(ORDERS, log.settings)


async def test_small_pages_and_large_ones_are_right_and_no_chunk_is_fetched_twice(
    world: KafkaWorld,
) -> None:
    log = await world.create()
    values = [b"%04d" % i + bytes(1_020) for i in range(8_000)]  # twice what the tail holds
    for start in range(0, len(values), 1_000):
        await append(log, run_of("orders/1", values[start : start + 1_000]))

    async def read_pages(size: int) -> None:
        for offset in range(0, len(values), size):
            (first, *_) = await log.read(offset)
            at = offset - first.base_offset
            assert first.payloads(at, at + 1) == [values[offset]]

    await asyncio.gather(read_pages(200), read_pages(1_000))
    assert 1 <= log.loads <= 8
