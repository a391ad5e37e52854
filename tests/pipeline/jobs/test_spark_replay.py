"""Do the records of a range come once more, once each and in order, when they are due?"""

from __future__ import annotations

import json
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from penstock import Broker, InvalidPosition, InvalidSetting, RefusedError, TopicNotFound
from penstock.cli.main import main
from penstock.model.errors import UnavailableError
from penstock.model.record import Record
from penstock.pipeline import archive, clean, replay
from penstock.pipeline.jobs import Progress
from penstock.pipeline.jobs.replay import replaying
from penstock.pipeline.jobs.replay.job import SLICE_RECORDS_MAX, _Replayer
from penstock.pipeline.jobs.replay.replaying import Checkpoint, Slice
from tests.doors.hosted import Hosted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS = 30


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with Broker(tmp_path / "data") as broker:
        for topic in ("In", "out"):
            broker.create_topic(topic)
        for number in range(RECORDS):
            headers = {"n": str(number)}
            broker.publish(str(number), "in", name=f"in/{number % 3}", headers=headers)
    return tmp_path / "data"


def records(data: Path, topic: str = "out") -> list[Record]:
    with Broker(data) as broker:
        return broker.read(topic)


def told(found: list[Record]) -> list[tuple[Any, ...]]:
    return [(one.name, one.payload, one.headers) for one in found]


def test_everything_comes_once_more_with_its_name_and_headers_in_order(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    reported: list[Progress] = []
    done = replay(
        "in", "OUT", checkpoint=tmp_path / "c", path=data, speed=None, spark=spark,
        report=reported.append,
    )  # fmt: skip
    assert (done.rows, done.batches, done.offsets, done.lag) == (RECORDS, 1, {"In": RECORDS}, 0)
    assert len(reported) == 1
    assert told(records(data)) == told(records(data, "in"))
    again = replay("in", "out", checkpoint=tmp_path / "c", path=data, spark=spark)
    assert (again.rows, len(records(data))) == (0, RECORDS)
    replay("in", "out", checkpoint=tmp_path / "other", path=data, speed=None, spark=spark)
    assert len(records(data)) == 2 * RECORDS


def test_values_and_headers_of_a_topic_come_again_as_they_were_published(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    values: list[Any] = ["text", b"\xff\x00", {"a": [1, None]}, "", b"", "again"]
    headers = [("z", "1"), ("a", "2"), ("z", "3"), ("a", "")]
    with Broker(data) as broker:
        broker.create_topic("mixed")
        for value in values:
            broker.publish(value, "mixed", headers=headers if value else None)
    replay("mixed", "out", checkpoint=tmp_path / "c", path=data, speed=None, spark=spark)
    with Hosted(data) as broker:
        url = f"http://127.0.0.1:{broker.ports['http']}"
        replay("mixed", "out", checkpoint=tmp_path / "d", path=data, url=url, spark=spark)
    again = records(data)
    assert [one.value for one in again] == values * 2
    all_pairs = [tuple(headers) if value else () for value in values]
    assert [one.headers for one in again] == all_pairs * 2


def test_a_range_is_given_by_offsets_or_by_times(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    replay(
        "in", "out", checkpoint=tmp_path / "1", path=data, start=5, until=8, speed=None,
        spark=spark,
    )  # fmt: skip
    assert [one.payload for one in records(data)] == [b"5", b"6", b"7"]
    times = [one.time for one in records(data, "in")]
    replay(
        "in", "out", checkpoint=tmp_path / "2", path=data, start=times[20],
        until=times[-1] + timedelta(microseconds=1), speed=None, spark=spark,
    )  # fmt: skip
    from_time = next(at for at, one in enumerate(times) if one >= times[20])
    assert [int(one.payload) for one in records(data)[3:]] == list(range(from_time, RECORDS))


def test_two_lives_of_a_topic_in_an_archive_are_never_mixed(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    archive("in", table, path=data, spark=spark)
    with Broker(data) as broker:
        broker.delete_topic("in")
        broker.create_topic("In")
        broker.publish_many(["new"] * 40, "in")
    archive("in", table, path=data, spark=spark, fail_on_data_loss=False)

    def again(life: str | int | None, checkpoint: str) -> Progress:
        return replay(
            "in", "out", checkpoint=tmp_path / checkpoint, archive=table, path=data, start=0,
            until=10, speed=None, life=life, spark=spark,
        )  # fmt: skip

    with pytest.raises(RefusedError, match=r"several lives of topic 'In'.*\(1, 3; or newest\)"):
        again(None, "a")
    with pytest.raises(InvalidSetting, match="life '2' is not in the table: use 1, 3 or newest"):
        again(2, "a")
    assert (again(1, "b").rows, again("newest", "c").rows) == (10, 10)
    payloads = [one.payload for one in records(data)]
    assert payloads == [*(b"%d" % number for number in range(10)), *[b"new"] * 10]


def archived(*lives: tuple[int | None, int | None, range]) -> pa.Table:
    """Rows of an archive: topic id, epoch, offsets; the payload says all of it."""
    life = [(*life, offset) for *life, offsets in lives for offset in offsets]
    count = len(life)
    return pa.table({
        "topic": ["t"] * count,
        "offset": pa.array([offset for *_, offset in life], pa.int64()),
        "timestamp": pa.array([offset for *_, offset in life], pa.timestamp("us", tz="UTC")),
        "name": ["n"] * count,
        "headers": pa.array([[]] * count, pa.map_(pa.string(), pa.string())),
        "payload": [f"{life} {epoch} {offset}".encode() for life, epoch, offset in life],
        "topic_id": pa.array([life for life, *_ in life], pa.int64()),
        "epoch": pa.array([epoch for _, epoch, _ in life], pa.int64()),
    })  # fmt: skip


@pytest.mark.parametrize(
    ("lives", "wanted"),
    [
        # The log lost records from 3 on and went on there in a new epoch; then again from 5 on.
        (
            [(7, 1, range(6)), (7, 2, range(3, 8)), (7, 3, range(5, 7))],
            [(7, 1, range(3)), (7, 2, range(3, 5)), (7, 3, range(5, 7))],
        ),
        # An archive of before did not note it.
        ([(None, None, range(4)), (7, 1, range(4, 6))], None),
        ([(None, None, range(4))], None),
    ],
)
def test_of_one_life_the_records_of_the_newest_epoch_are_replayed(
    spark: SparkSession, data: Path, tmp_path: Path, lives: Any, wanted: Any
) -> None:
    write_deltalake(str(tmp_path / "table"), archived(*lives))
    replay(
        "t", "out", checkpoint=tmp_path / "c", archive=tmp_path / "table", path=data, speed=None,
        spark=spark,
    )  # fmt: skip
    found = [one.payload for one in records(data)]
    assert found == archived(*(wanted or lives))["payload"].to_pylist()


def test_an_archive_of_before_with_two_records_at_one_offset_is_refused(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    lives = archived((None, None, range(4)), (None, None, range(2)))
    write_deltalake(str(tmp_path / "table"), lives.drop_columns(["topic_id", "epoch"]))
    with pytest.raises(RefusedError, match="several records of topic 't' at one offset"):
        replay(
            "t", "out", checkpoint=tmp_path / "c", archive=tmp_path / "table", path=data,
            spark=spark,
        )  # fmt: skip


def test_an_archive_is_replayed_like_the_topic_it_was_made_of(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    archive("in", table, path=data, batch_records=7, spark=spark)
    clean(table, latest=True, spark=spark)
    with Broker(data) as broker:
        broker.delete_topic("in")
    done = replay(
        "in", "out", checkpoint=tmp_path / "c", archive=table, path=data, speed=1_000.0,
        spark=spark,
    )  # fmt: skip
    assert done.rows == 3
    assert [int(one.payload) for one in records(data)] == list(range(RECORDS - 3, RECORDS))
    with pytest.raises(TopicNotFound, match="contains no records of topic 'other': it contains In"):
        replay("other", "out", checkpoint=tmp_path / "d", archive=table, path=data, spark=spark)


def test_a_table_that_is_no_archive_is_refused_before_anything_is_written(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    for columns, message in (
        (
            {"date": ["a"], "name": ["b"]},
            "is not an archive: it has no topic; topic must be string",
        ),
        (
            {"topic": ["in"], "offset": [0], "timestamp": ["2026-01-01"], "name": ["b"]},
            "its column timestamp is string; timestamp must be timestamp",
        ),
    ):
        rows = pa.table(columns)
        write_deltalake(str(table), rows, mode="overwrite", schema_mode="overwrite")
        with pytest.raises(RefusedError, match=message):
            replay("in", "out", checkpoint=tmp_path / "c", archive=table, path=data, spark=spark)
    assert not (tmp_path / "c").exists()


def test_a_slice_that_was_decided_comes_in_once_whatever_happened_to_its_driver(
    spark: SparkSession, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.pipeline.jobs.replay.job.SLICE_RECORDS_MAX", 10)
    real = replaying.put

    def dies_before(*arguments: Any) -> int:
        raise KeyboardInterrupt

    def dies_after(*arguments: Any) -> int:
        real(*arguments)
        raise KeyboardInterrupt

    for dying in (dies_before, dies_after, dies_after, dies_before):
        monkeypatch.setattr(replaying, "put", dying)
        with pytest.raises(KeyboardInterrupt):
            replay("in", "out", checkpoint=tmp_path / "c", path=data, speed=None, spark=spark)
    monkeypatch.setattr(replaying, "put", real)
    replay("in", "out", checkpoint=tmp_path / "c", path=data, speed=None, spark=spark)
    assert [int(one.payload) for one in records(data)] == list(range(RECORDS))


def test_a_checkpoint_belongs_to_one_replay(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    replay("in", "out", checkpoint=tmp_path / "c", path=data, speed=None, spark=spark)
    with Broker(data) as broker:
        broker.create_topic("other")
    with pytest.raises(RefusedError, match=r"belongs to the replay of topic In .* into out"):
        replay("in", "other", checkpoint=tmp_path / "c", path=data, spark=spark)
    with Broker(data) as broker:
        broker.delete_topic("in")
        broker.create_topic("in")
    with pytest.raises(RefusedError, match="belongs to the replay of topic In"):
        replay("in", "out", checkpoint=tmp_path / "c", path=data, spark=spark)


def test_a_topic_that_a_broker_holds_is_not_written_by_files(
    spark: SparkSession, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.pipeline.sink.intake.LOCK_S_MAX", 0.1)
    with Broker(data), pytest.raises(UnavailableError):
        replay("in", "out", checkpoint=tmp_path / "c", path=data, spark=spark)
    assert not (tmp_path / "c").exists()


def test_a_running_broker_takes_the_records_by_its_address(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    with Hosted(data) as broker:
        url = f"http://127.0.0.1:{broker.ports['http']}"
        done = replay(
            "in", "out", checkpoint=tmp_path / "c", path=data, url=url, speed=None, until=20,
            spark=spark,
        )  # fmt: skip
        assert done.rows == 20
        to = ["--into", "out", "--checkpoint", str(tmp_path / "d"), "--at", str(data)]
        main(["pipeline", "run", "replay", "in", *to, "--speed", "max", "--from", "20"])
    assert told(records(data)) == told(records(data, "in"))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"speed": 0.0}, InvalidSetting, "speed 0.0 must be above 0"),
        ({"rate": -1.0}, InvalidSetting, "rate -1.0 must be above 0"),
        (
            {"start": 99},
            InvalidPosition,
            "from: offset 99 is not in 'In': use an offset from 0 to 30",
        ),
        ({"start": 9, "until": 3}, InvalidSetting, "begins at offset 9 and ends at 3"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    spark: SparkSession,
    data: Path,
    tmp_path: Path,
    options: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        replay("in", "out", checkpoint=tmp_path / "c", path=data, spark=spark, **options)
    assert records(data) == []


def test_the_command_replays_at_a_rate(
    spark: SparkSession, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = ["--into", "out", "--checkpoint", str(tmp_path / "c"), "--at", str(data)]
    main(["pipeline", "run", "replay", "in", *to, "--rate", "100", "--from", "10"])
    assert "replay: 20 rows" in capsys.readouterr().out
    main(["pipeline", "run", "replay", "in", *to, "--speed", "max"])
    assert len(records(data)) == 20


class SteadyLog:
    """A record every second from the first offset on."""

    name = identity = "steady"

    def __init__(self, parts: int = 1) -> None:
        self._parts = parts

    def due(self, timestamp_us: int) -> tuple[int, ...]:
        return (max(0, timestamp_us // 1_000_000 + 1),) * self._parts

    def stamp(self, offsets: tuple[int, ...], end: tuple[int, ...]) -> int:
        return min(offsets) * 1_000_000


@pytest.mark.parametrize(
    ("speed", "rate", "gone_s", "due"),
    [
        (1.0, None, 0.0, 101),  # the first comes at once
        (1.0, None, 10.5, 111),
        (60.0, None, 10.0, 701),
        (0.5, None, 10.0, 106),
        (1.0, 7.0, 10.0, 170),
        (1.0, 0.5, 1.0, 100),
        (None, None, 0.0, 100 + SLICE_RECORDS_MAX),
        (1.0, 1e9, 100.0, 100 + SLICE_RECORDS_MAX),
        (1e9, None, 1.0, 100 + SLICE_RECORDS_MAX),
    ],
)
def test_what_is_due_follows_the_clock(
    monkeypatch: pytest.MonkeyPatch,
    speed: float | None,
    rate: float | None,
    gone_s: float,
    due: int,
) -> None:
    now_s = time.monotonic()
    monkeypatch.setattr("penstock.pipeline.jobs.replay.job.time.monotonic", lambda: now_s)
    state = Slice("id", "source", (0,), (10**9,), 3, (50,), (100,))
    replayer = _Replayer(SteadyLog(), state, speed, rate)  # type: ignore[arg-type]
    monkeypatch.setattr("penstock.pipeline.jobs.replay.job.time.monotonic", lambda: now_s + gone_s)
    assert replayer._due() == (due,)


@pytest.mark.parametrize(
    ("speed", "rate", "gone_s", "due"),
    [
        (1.0, None, 10.0, (111, 200)),  # the second is ahead and waits for its time
        (1.0, 7.0, 10.0, (163, 207)),  # in proportion to what is left
        (None, None, 0.0, (1_000, 300)),
    ],
)
def test_partitions_advance_by_their_times_or_by_what_is_left(
    monkeypatch: pytest.MonkeyPatch,
    speed: float | None,
    rate: float | None,
    gone_s: float,
    due: tuple[int, ...],
) -> None:
    now_s = time.monotonic()
    monkeypatch.setattr("penstock.pipeline.jobs.replay.job.time.monotonic", lambda: now_s)
    state = Slice("id", "source", (0, 0), (1_000, 300), 3, (50, 150), (100, 200))
    replayer = _Replayer(SteadyLog(2), state, speed, rate)  # type: ignore[arg-type]
    monkeypatch.setattr("penstock.pipeline.jobs.replay.job.time.monotonic", lambda: now_s + gone_s)
    assert replayer._due() == due


def test_a_checkpoint_of_before_partitions_is_read(tmp_path: Path) -> None:
    stored = {"replay_id": "id", "source": "s", "start": 0, "end": 9, "number": 2}
    (tmp_path / "replay.json").write_text(json.dumps(stored | {"first": 3, "last": 6}))
    found = Checkpoint(tmp_path).load()
    assert found == Slice("id", "s", (0,), (9,), 2, (3,), (6,))
