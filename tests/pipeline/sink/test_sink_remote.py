"""Does a running broker take what Spark writes exactly once, and nothing that it should not?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from penstock import (
    Broker,
    NotAuthorized,
    RefusedError,
    TooLarge,
    TopicNotFound,
    UnavailableError,
    connect,
)
from penstock.app.server import Server
from penstock.core.delivery.run import Run
from penstock.log.format.builder import BatchBuilder
from penstock.log.staging.area import AREA, StagedFile
from penstock.model.limits import PAYLOAD_BYTES_MAX
from penstock.model.record import Record
from penstock.mqtt.kinds import MQTT_5
from penstock.pipeline.link import BrokerLink
from penstock.pipeline.sink import remote_intake
from penstock.pipeline.sink.remote_intake import RemoteIntake
from penstock.pipeline.sink.writing import TaskWrite
from penstock.pipeline.source.source import PenstockSource
from tests.appends import add, append_batch
from tests.doors.hosted import Hosted
from tests.doors.served import Served
from tests.doors.users import add_users
from tests.doors.wire import Wire
from tests.pipeline.source.reading import NOISE, address, travelled

pytestmark = pytest.mark.slow

HEADERS = pa.map_(pa.string(), pa.string())
SOURCE = "query x"


@pytest.fixture
def hosted(tmp_path: Path) -> Iterator[Hosted]:
    with Hosted(tmp_path, log__upkeep_every="1h") as broker:
        with connect(address(broker)) as client:
            client.create_topic("Orders")
            client.create_topic("other")
        yield broker


def intake_of(hosted: Hosted) -> RemoteIntake:
    intake: RemoteIntake = travelled(RemoteIntake(BrokerLink(address(hosted))))
    return intake


def rows(payload: Any, **columns: Any) -> pa.RecordBatch:
    return pa.record_batch([payload, *columns.values()], names=["payload", *columns])


def stage(
    intake: RemoteIntake, *batches: pa.RecordBatch, number: int = 0, topic: str | None = "orders"
) -> list[StagedFile]:
    return TaskWrite(intake, topic, SOURCE, number, 0).write(batches)


def write(hosted: Hosted, *batches: pa.RecordBatch, topic: str | None = "orders") -> None:
    intake = intake_of(hosted)
    assert intake.hand_over(SOURCE, 0, stage(intake, *batches, topic=topic), is_only=False)


def stored(hosted: Hosted, topic: str = "orders") -> list[Record]:
    with connect(address(hosted)) as client:
        return client.read(topic)


def texts(hosted: Hosted, topic: str = "orders") -> list[Any]:
    return [record.value for record in stored(hosted, topic)]


def left_over(data: Path) -> list[str]:
    return sorted(path.name for path in (data / AREA).rglob("*") if path.is_file())


def test_records_are_those_that_a_write_into_files_gives(hosted: Hosted, tmp_path: Path) -> None:
    write(
        hosted,
        rows(
            pa.array([{"a": 1, "b": None}, {"a": 2, "b": "x"}]),
            name=pa.array(["n/1", None]),
            headers=pa.array([[("k", "v"), ("l", "")], None], HEADERS),
            topic=pa.array(["orders", "OTHER"]),
        ),
        topic=None,
    )
    (one,), (two,) = stored(hosted), stored(hosted, "other")
    assert (one.name, one.value, one.headers) == ("n/1", {"a": 1}, (("k", "v"), ("l", "")))
    assert (two.name, two.value, two.headers) == ("other", {"a": 2, "b": "x"}, ())
    assert left_over(tmp_path) == ["done.json"]


def test_large_writes_are_sent_in_several_files_and_keep_their_order(hosted: Hosted) -> None:
    large = [NOISE.randbytes(PAYLOAD_BYTES_MAX), b"", NOISE.randbytes(PAYLOAD_BYTES_MAX - 1)]
    small = [b"%d" % number for number in range(120_000)]
    intake = intake_of(hosted)
    files = stage(intake, rows(pa.array(large)), rows(pa.array(small)))
    assert len(files) > 2
    assert intake.hand_over(SOURCE, 0, files, is_only=True)
    assert [record.payload for record in stored(hosted)] == large + small


def test_a_number_counts_once_however_often_and_whatever_is_handed_over(
    hosted: Hosted, tmp_path: Path
) -> None:
    intake = intake_of(hosted)
    files = stage(intake, rows(pa.array(["a"])))
    assert intake.hand_over(SOURCE, 0, files, is_only=False)
    assert not intake.hand_over(SOURCE, 0, files, is_only=False)  # an answer was lost
    again = stage(intake, rows(pa.array(["a"])))
    assert not intake.hand_over(SOURCE, 0, again, is_only=False)  # the driver died
    assert intake.hand_over(SOURCE, 1, stage(intake, rows(pa.array(["b"])), number=1), is_only=True)
    assert texts(hosted) == ["a", "b"]
    assert left_over(tmp_path) == ["done.json"]


def test_what_was_staged_can_be_discarded(hosted: Hosted, tmp_path: Path) -> None:
    intake = intake_of(hosted)
    files = stage(intake, rows(pa.array(["a"])))
    intake.discard(SOURCE, files)
    assert left_over(tmp_path) == []
    with pytest.raises(RefusedError, match="is not staged, or was removed: stage it again"):
        intake.hand_over(SOURCE, 0, files, is_only=False)
    assert left_over(tmp_path) == []
    assert texts(hosted) == []


def test_rows_that_cannot_be_stored_leave_nothing_behind(hosted: Hosted, tmp_path: Path) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        for _ in range(3):
            yield rows(pa.array([NOISE.randbytes(10_000_000)]))
        raise RuntimeError("the task failed")

    with pytest.raises(RuntimeError, match="the task failed"):
        TaskWrite(intake_of(hosted), "orders", SOURCE, 0, 0).write(batches())
    assert left_over(tmp_path) == []
    with pytest.raises(NotAuthorized, match=r"may not publish to '\$SYS/x'"):
        write(hosted, rows(pa.array(["a"]), name=pa.array(["$SYS/x"])))
    with pytest.raises(TopicNotFound, match="'orderz' is not declared"):
        write(hosted, rows(pa.array(["a"])), topic="orderz")
    assert left_over(tmp_path) == []
    assert texts(hosted) == []


def test_connected_subscribers_are_given_what_is_written(hosted: Hosted) -> None:
    """In the order of the topic, among what others publish, at every QoS."""
    with (
        Wire(hosted.port, "strong", MQTT_5) as strong,
        Wire(hosted.port, "weak") as weak,
        Wire(hosted.port, "deaf") as deaf,
        Wire(hosted.port, "publisher") as publisher,
    ):
        for one in (strong, weak, deaf, publisher):
            one.connect()
        strong.subscribe("orders/#", qos=1)
        weak.subscribe("orders/#", qos=0)
        deaf.subscribe("something/else", qos=1)
        publisher.publish("orders/0", b"before", qos=1)
        names = pa.array(["orders/1", "orders/1", "elsewhere", "orders/2"])
        write(hosted, rows(pa.array(["a", "b", "c", "d"]), name=names))
        publisher.publish("orders/3", b"after", qos=1)
        wanted = [
            ("orders/0", b"before"),
            ("orders/1", b"a"),
            ("orders/1", b"b"),
            ("orders/2", b"d"),
            ("orders/3", b"after"),
        ]
        for subscriber in (strong, weak):
            messages = [subscriber.receive() for _ in wanted]
            assert [(one.name, one.payload) for one in messages] == wanted
            subscriber.settle()
        deaf.settle()


def test_nothing_is_forwarded_before_a_batch_that_waits_for_its_commit(hosted: Hosted) -> None:
    async def both_in_one_tick(server: Server) -> None:
        exchange = hosted.exchange
        builder = BatchBuilder(0)
        add(builder, "orders/1", [b"written"], 0, 1)
        log = server.broker.engine.topics.get("orders").log
        placed = append_batch(log, builder.encode(0, 0, 0))
        run = Run("orders/1", b"published", [0], [9], 0)
        exchange.publisher.publish(exchange.router.find("orders/1"), run, None)
        await placed

    with Wire(hosted.port, "reader") as reader:
        reader.connect()
        reader.subscribe("orders/#")
        hosted.run(both_in_one_tick)
        assert [reader.receive().payload for _ in range(2)] == [b"written", b"published"]


def test_a_subscriber_with_a_small_window_is_given_all_of_a_large_write(hosted: Hosted) -> None:
    with Wire(hosted.port, "slow") as slow:
        slow.connect()
        slow.subscribe("#", qos=1)
        write(hosted, rows(pa.array([str(number) for number in range(3_000)])))
        found = []
        while len(found) < 3_000:
            message = slow.receive()
            found.append(int(message.payload))
            slow.acknowledge(message)
    assert found == list(range(3_000))


def fail_appends(hosted: Hosted, after: int) -> None:
    """From now on the log of `orders` takes so many batches, then its disk is gone."""

    async def work(server: Server) -> None:
        log: Any = server.broker.engine.topics.get("orders").log
        append, left = log.append_batch, [after]

        def failing(batch: Any, waiter: Any = None) -> None:
            left[0] -= 1
            if left[0] < 0:
                waiter.refused(UnavailableError("no disk"))
            else:
                append(batch, waiter)

        log.append_batch = failing

    hosted.run(work)


@pytest.mark.slow
@pytest.mark.parametrize("after", [0, 1, 2])
def test_what_was_decided_and_then_failed_is_finished_later_and_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """The driver is told of a failure, gives up and discards; what is decided stays decided."""
    monkeypatch.setattr(remote_intake, "PATIENCE_S", 0.0)
    monkeypatch.setattr(remote_intake, "FILE_BYTES", 1)
    parts = [rows(pa.array([f"{part}/{n}" for n in range(50_000)])) for part in range(3)]
    wanted = [f"{part}/{n}" for part in range(3) for n in range(50_000)]
    with Hosted(tmp_path, log__upkeep_every="1h") as hosted:
        with connect(address(hosted)) as client:
            client.create_topic("orders")
        intake = intake_of(hosted)
        files = stage(intake, *parts)
        assert len(files) == 3
        fail_appends(hosted, after)
        with pytest.raises(UnavailableError, match="no disk"):
            intake.hand_over(SOURCE, 0, files, is_only=False)
        intake.discard(SOURCE, files)
        assert len(texts(hosted)) == after * 50_000
    with Hosted(tmp_path, log__upkeep_every="1h") as hosted:
        intake = intake_of(hosted)
        assert not intake.hand_over(SOURCE, 0, stage(intake, *parts), is_only=False)
        assert texts(hosted) == wanted
        assert left_over(tmp_path) == ["done.json"]


def test_upkeep_finishes_what_was_decided_when_nobody_asks_again(
    hosted: Hosted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_intake, "PATIENCE_S", 0.0)
    intake = intake_of(hosted)
    files = stage(intake, rows(pa.array(["a"])))
    fail_appends(hosted, 0)
    with pytest.raises(UnavailableError, match="no disk"):
        intake.hand_over(SOURCE, 0, files, is_only=False)

    async def mend_and_look(server: Server) -> None:
        log: Any = server.broker.engine.topics.get("orders").log
        del log.append_batch
        await server.broker.engine.upkeep.look_after_all()

    hosted.run(mend_and_look)
    assert texts(hosted) == ["a"]
    assert left_over(tmp_path) == ["done.json"]


def test_a_broker_that_restarts_meanwhile_is_waited_for(tmp_path: Path) -> None:
    """Staged before, handed over while nobody is there: the answer comes from the next one."""
    import threading

    with Served(tmp_path) as served:
        url = f"http://127.0.0.1:{served.http_port}"
        with connect(url) as client:
            client.create_topic("orders")
        intake = RemoteIntake(BrokerLink(url))
        files = stage(intake, rows(pa.array(["a", "b"])))
        served.kill()
        found: list[bool] = []
        driver = threading.Thread(
            target=lambda: found.append(intake.hand_over(SOURCE, 0, files, is_only=False))
        )
        driver.start()
        served.start()
        driver.join(60)
        assert found == [True]
        with connect(url) as client:
            assert [record.value for record in client.read("orders")] == ["a", "b"]


def test_a_stream_waits_for_its_broker_and_a_batch_does_not(tmp_path: Path) -> None:
    import threading

    schema = StructType([StructField("payload", BinaryType())])
    with Served(tmp_path) as served:
        url = f"http://127.0.0.1:{served.http_port}"
        with connect(url) as client:
            client.create_topic("orders")
        served.kill()
        source = PenstockSource({"url": url, "topic": "orders"})
        with pytest.raises(UnavailableError, match="no answer from the broker"):
            source.writer(schema, False)
        found: list[object] = []
        driver = threading.Thread(target=lambda: found.append(source.streamWriter(schema, False)))
        driver.start()
        served.start()
        driver.join(60)
        assert len(found) == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"name": "../../catalog.db"}, "was staged with other values"),
        ({"records": 5}, "was staged with other values"),
        ({"topic_id": 99}, "was staged with other values"),
    ],
)
def test_only_what_was_staged_can_be_handed_over(
    hosted: Hosted, change: dict[str, Any], says: str
) -> None:
    import msgspec

    intake = intake_of(hosted)
    (file,) = stage(intake, rows(pa.array(["a"])))
    with pytest.raises(RefusedError, match=says):
        intake.hand_over(SOURCE, 0, [msgspec.structs.replace(file, **change)], is_only=False)
    with pytest.raises(RefusedError, match=says):
        intake.hand_over(SOURCE, 1, [file], is_only=False)
    assert intake.hand_over(SOURCE, 0, [file], is_only=False)


def test_a_broker_with_users_wants_a_login(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        broker.create_topic("orders")
    add_users(tmp_path, alice="secret")
    schema = StructType([StructField("payload", BinaryType())])
    with Hosted(tmp_path) as hosted:
        options = {"url": address(hosted), "topic": "orders"}
        with pytest.raises(NotAuthorized):
            PenstockSource(options).writer(schema, False)
        login = {"user": "alice", "password": "secret"}
        assert PenstockSource({**options, **login}).writer(schema, False)
        intake = RemoteIntake(BrokerLink(address(hosted), "alice", "secret"))
        files = stage(intake, rows(pa.array(["a"])))
        with pytest.raises(NotAuthorized):
            intake_of(hosted).hand_over(SOURCE, 0, files, is_only=False)
        assert intake.hand_over(SOURCE, 0, files, is_only=False)


def test_a_broker_takes_no_payload_above_its_limit(tmp_path: Path) -> None:
    with Hosted(tmp_path, log__payload_bytes_max="1 KiB") as hosted:
        with connect(address(hosted)) as client:
            client.create_topic("orders")
        with pytest.raises(TooLarge, match="message of 1025 bytes: at most 1024"):
            write(hosted, rows(pa.array(["a", "b" * 1025])))
        assert texts(hosted) == []
