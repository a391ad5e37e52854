"""Does a running broker give Spark what its files would, and say what is gone?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from penstock import Broker, Gap, NotAuthorized, UnavailableError, connect
from penstock.app.server import Server
from penstock.model.limits import PAYLOAD_BYTES_MAX
from penstock.pipeline.link import BrokerLink
from penstock.pipeline.source import remote
from penstock.pipeline.source.directory import DirectoryOrigin
from penstock.pipeline.source.origin import Origin
from penstock.pipeline.source.remote import RemoteOrigin
from penstock.pipeline.source.source import SCHEMA, PenstockSource
from tests.doors.hosted import Hosted
from tests.doors.users import add_users
from tests.pipeline.source.reading import (
    NOISE,
    address,
    offsets,
    only,
    payloads,
    ranges,
    read_batches,
    reader_of,
    rows,
    travelled,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def hosted(tmp_path: Path) -> Iterator[Hosted]:
    with Hosted(tmp_path, log__segment_bytes="64 KiB", log__upkeep_every="1h") as broker:
        yield broker


@pytest.fixture
def url(hosted: Hosted) -> str:
    return address(hosted)


def trim(hosted: Hosted, topic: str, keep: str) -> int:
    """Let retention take records; the first offset that is left."""

    async def work(server: Server) -> int:
        broker = server.broker
        await broker.alter_topic(topic, retention_bytes=keep)
        await broker.engine.upkeep.look_after_all()
        return broker.engine.topics.get(topic).log.bounds().first

    return hosted.run(work)


def read_planned(reader: Any, pieces: Any) -> list[int]:
    batches = read_batches(reader, pieces, only("offset"))
    return [offset for batch in batches for offset in batch["offset"].to_pylist()]


def test_files_and_address_give_the_same_rows(hosted: Hosted, url: str, tmp_path: Path) -> None:
    with connect(url) as client:
        client.create_topic("Sensors")
        for number in range(300):
            client.publish(
                {"n": number}, "sensors", name=f"sensors/{number % 7}", headers={"k": str(number)}
            )
    for options in (
        {},
        {"startingOffsets": "17", "endingOffsets": "251", "minPartitions": "3"},
        {"names": "sensors/3"},
        {"where": "payload.n > 250", "names": "sensors/+"},
        {"where": "payload.n > 1000"},
    ):
        for schema in (SCHEMA, only("name", "offset")):
            assert rows(url, schema, topic="sensors", **options) == rows(
                tmp_path, schema, topic="sensors", **options
            )


def test_sealed_batches_are_decoded_by_the_task_as_from_files(
    hosted: Hosted, url: str, tmp_path: Path
) -> None:
    with connect(url) as client:
        client.create_topic("t")
        for number in range(40):
            texts = [f"{number} {'x' * 200} {at}" for at in range(50)]
            client.publish_many(texts, "t", name=f"t/{number % 3}", headers={"n": str(number)})

    async def seal(server: Server) -> int:
        return await server.broker.engine.topics.get("t").log.seal_closed()

    assert hosted.run(seal) > 0
    for options in ({}, {"startingOffsets": "7", "endingOffsets": "1911", "minPartitions": "4"}):
        found = rows(url, topic="t", **options)
        assert found == rows(tmp_path, topic="t", **options)
        assert [row["offset"] for row in found] == list(range(7, 1911) if options else range(2000))


def test_both_origins_know_when_a_record_was_received(
    hosted: Hosted, url: str, tmp_path: Path
) -> None:
    with connect(url) as client:
        client.create_topic("t")
        client.publish_many([NOISE.randbytes(5_000) for _ in range(20)], "t")
        client.publish_many(["last"], "t")
        stamps = [record.timestamp for record in client.read("t")]
    origins: list[Origin] = [DirectoryOrigin(tmp_path), RemoteOrigin(BrokerLink(url))]
    for origin in origins:
        (state,) = origin.states(("t",))
        assert [origin.stamp_at(state, offset) for offset in range(21)] == stamps
        assert origin.stamp_at(state, 21) is None
        assert origin.stamp_at(state, 500) is None
    first = trim(hosted, "t", "1 B")
    assert first > 0
    for origin in origins:
        (state,) = origin.states(("t",))
        assert origin.stamp_at(state, first - 1) is None


def test_ranges_hold_for_filtered_reads_too(hosted: Hosted, url: str) -> None:
    """The broker looks at nothing past the end of a piece, however few records pass."""
    with connect(url) as client:
        client.create_topic("t")
        client.publish_many([{"n": number} for number in range(100)], "t")
    found = offsets(url, topic="t", where="payload.n >= 0", endingOffsets="50", minPartitions="4")
    assert found == list(range(50))


def test_records_of_no_bytes_and_of_16_mib_come_whole(hosted: Hosted, url: str) -> None:
    large = NOISE.randbytes(PAYLOAD_BYTES_MAX)
    with connect(url) as client:
        client.create_topic("t")
        for payload in (b"", large, b"x", large[:-1]):
            client.publish(payload, "t")
    assert payloads(url, topic="t") == [b"", large, b"x", large[:-1]]


def test_records_that_retention_takes_are_a_loss_that_is_named(hosted: Hosted, url: str) -> None:
    with connect(url) as client:
        client.create_topic("t")
        for _ in range(40):
            client.publish(NOISE.randbytes(5_000), "t")
        strict = reader_of(url, only("offset"), topic="t")
        easy = reader_of(url, only("offset"), topic="t", failOnDataLoss="false")
        plans = strict.partitions(), easy.partitions()
        first = trim(hosted, "t", "100 KiB")
        assert first > 0
        with pytest.raises(Gap, match=f"offsets 0 to {first - 1} are gone: retention"):
            read_planned(strict, plans[0])
        assert read_planned(easy, plans[1]) == list(range(first, 40))
        with pytest.raises(Gap, match=f"offsets 0 to {first - 1} are gone"):
            offsets(url, topic="t", startingOffsets="0")


def test_a_topic_deleted_and_made_anew_is_a_loss(hosted: Hosted, url: str) -> None:
    with connect(url) as client:
        client.create_topic("t")
        client.publish_many(["a", "b"], "t")
        reader = reader_of(url, only("offset"), topic="t")
        plan = reader.partitions()
        client.delete_topic("t")
        client.create_topic("t")
        client.publish_many(["c"], "t")
        with pytest.raises(Gap, match="offsets 0 to 1 are gone: the topic was deleted"):
            read_planned(reader, plan)
        assert payloads(url, topic="t") == [b"c"]


@pytest.mark.parametrize("columns", [[], ["payload"]])
@pytest.mark.parametrize("made_anew", [None, 0, 30])
@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_topic_that_goes_while_a_task_reads_it_is_a_loss(
    hosted: Hosted,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    fails: str,
    made_anew: int | None,
    columns: list[str],
) -> None:
    """One answer is asked for ahead: it may still be of the topic that was read.

    The topic is created again with so many records, or not at all.
    """
    monkeypatch.setattr(remote, "FETCH_RECORDS", dict.fromkeys(remote.FETCH_RECORDS, 10))
    with connect(url) as client:
        client.create_topic("t")
        client.publish_many(["a"] * 30, "t")
        reader = reader_of(url, only("offset", *columns), topic="t", failOnDataLoss=fails)
        batches = iter(reader.read(reader.partitions()[0]))
        assert next(batches).column(0).to_pylist() == list(range(10))
        client.delete_topic("t")
        if made_anew is not None:
            client.create_topic("t")
            if made_anew:
                client.publish_many(["b"] * made_anew, "t")
        if fails == "true":
            with pytest.raises(Gap, match=r"offsets [12]0 to 29 are gone: the topic was"):
                list(batches)
        else:
            ahead = [offset for batch in batches for offset in batch.column(0).to_pylist()]
            assert ahead in ([], list(range(10, 20)))


def test_a_reader_beside_a_broker_that_writes_seals_and_trims_reads_a_dense_range(
    hosted: Hosted, url: str
) -> None:
    with connect(url) as client:
        client.create_topic("t")
        client.publish_many([NOISE.randbytes(2_000) for _ in range(100)], "t")
        for _ in range(15):
            client.publish_many([NOISE.randbytes(2_000) for _ in range(40)], "t")
            reader = reader_of(url, only("offset"), topic="t", minPartitions="3")
            pieces = reader.partitions()
            client.publish_many([NOISE.randbytes(2_000) for _ in range(40)], "t")
            first = trim(hosted, "t", "256 KiB")
            (_, begin, _), *_, (_, _, end) = ranges(pieces)
            if first > begin:
                with pytest.raises(Gap, match=f"offsets {begin} to"):
                    read_planned(reader, pieces)
                begin = first
                reader = reader_of(url, only("offset"), topic="t", endingOffsets=str(end))
                pieces = reader.partitions()
            assert read_planned(reader, pieces) == list(range(begin, end))


def test_offsets_of_an_earlier_life_of_the_log_are_moved_back(
    hosted: Hosted, url: str, tmp_path: Path
) -> None:
    """The broker answers what an offset of a lost epoch means now."""
    with connect(url) as client:
        client.create_topic("t")
        client.publish_many(["a"] * 10, "t")

    async def pretend(server: Server) -> None:
        log: Any = server.broker.engine.topics.get("t").log
        log.epoch = 2  # as if what was past 10 had been lost

    hosted.run(pretend)
    with pytest.raises(Gap, match="offsets 10 to 14 are gone: the log lost them"):
        payloads(url, topic="t", startingOffsets='{"t":{"0":15,"epoch":1}}')


def test_a_stream_goes_on_from_its_offsets(hosted: Hosted, url: str) -> None:
    with connect(url) as client:
        client.create_topic("t")
        client.publish_many(["a"] * 5, "t")
        source = PenstockSource({"url": url, "topic": "t"})
        reader = travelled(source).streamReader(only("offset"))
        start = reader.initialOffset()
        client.publish_many(["b"] * 3, "t")
        end = reader.latestOffset(start, ReadAllAvailable())
        assert ranges(reader.partitions(start, end)) == [("t", 5, 8)]
        assert read_planned(reader, reader.partitions(start, end)) == [5, 6, 7]


def test_times_are_found(hosted: Hosted, url: str) -> None:
    with connect(url) as client:
        client.create_topic("t")
        client.publish_many(["a"] * 3, "t")
    assert offsets(url, topic="t", startingTimestamp="-1h") == [0, 1, 2]
    for far in ("32503680000000", "300000000000000", "99999999999999999"):  # ms; to the year 9999
        assert offsets(url, topic="t", startingTimestamp=far) == []
        assert offsets(url, topic="t", endingTimestamp=far) == [0, 1, 2]


def test_a_broker_with_users_wants_a_login(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        broker.create_topic("t")
        broker.publish("a", "t")
    add_users(tmp_path, alice="secret")
    with Hosted(tmp_path) as hosted:
        url = address(hosted)
        with pytest.raises(NotAuthorized):
            rows(url, topic="t")
        with pytest.raises(NotAuthorized):
            rows(url, topic="t", user="alice", password="wrong")
        assert payloads(url, topic="t", user="alice", password="secret") == [b"a"]
        with_login = url.replace("http://", "http://alice:secret@")
        assert payloads(with_login, topic="t") == [b"a"]
        link = BrokerLink(url, "alice", "secret")
        made = json.loads(link.ask("POST", "/v1/users/alice/keys").body)
        assert payloads(url, topic="t", token=made["key"]) == [b"a"]
        with pytest.raises(NotAuthorized, match="unknown or revoked key"):
            payloads(url, topic="t", token=made["key"] + "x")


def test_a_broker_that_is_gone_is_unavailable(tmp_path: Path) -> None:
    with Hosted(tmp_path) as hosted:
        url = address(hosted)
        with connect(url) as client:
            client.create_topic("t")
        reader = reader_of(url, topic="t")
        assert reader.partitions()
    with pytest.raises(UnavailableError, match="no answer from the broker at 127.0.0.1"):
        reader.partitions()
