"""Does a store of history that hangs hold up anybody but those who read from it?"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from penstock import Broker
from penstock.app.server import Server
from penstock.log.history.reading.process import HistoryProcess
from penstock.mqtt.kinds import MQTT_5
from tests.doors.hosted import Hosted
from tests.doors.wire import Wire, connect_kept
from tests.history.cooling import cool
from tests.history.s3_server import options_of
from tests.http.events import Events

pytestmark = pytest.mark.slow
NAME = "orders/1"


class SlowStoreWorld:
    """A broker whose topic `orders` is in the history, and the process that reads that."""

    def __init__(self, path: Path) -> None:
        settings = {"history__url": str(path / "history"), "topics__defaults__history": True}
        self.hosted = Hosted(path / "data", **settings)

    def publish(self, first: int, count: int) -> None:
        async def work(server: Server) -> None:
            for number in range(first, first + count):
                await server.broker.publish(b"%d" % number, "orders", name=NAME)

        self.hosted.run(work)

    def cool(self) -> None:
        self.hosted.run(lambda server: cool(server, "orders"))

    def process(self) -> HistoryProcess:
        found = getattr(self.hosted.exchange.engine.shared.store, "history", None)
        assert isinstance(found, HistoryProcess)
        return found

    def signal(self, number: signal.Signals) -> None:
        child = self.process()._child
        assert child is not None
        os.kill(child.pid, number)

    def records(self, start: int) -> list[int]:
        url = f"http://127.0.0.1:{self.hosted.ports['http']}/v1/topics/orders/records?from={start}"
        with urlopen(url, timeout=20) as answer:
            return [one["payload"] for one in json.load(answer)["records"]]

    def hang(self) -> None:
        """From now on whoever reads history waits."""
        assert self.records(0), "the process runs"

        def forget() -> None:
            for _ in range(2):
                self.hosted.exchange.engine.shared.store.cache.release_unused()

        self.hosted.call(forget)
        self.signal(signal.SIGSTOP)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SlowStoreWorld]:
    made = SlowStoreWorld(tmp_path)
    with made.hosted:

        async def declare(server: Server) -> None:
            await server.broker.create_topic("orders")

        made.hosted.run(declare)
        yield made


def test_live_messages_arrive_while_readers_of_history_wait(world: SlowStoreWorld) -> None:
    away, _ = connect_kept(world.hosted.port, "away", MQTT_5)
    away.subscribe("orders/#", qos=1)
    away.disconnect()
    world.publish(0, 20)
    world.cool()
    world.hang()
    waiting = threading.Thread(target=world.records, args=(0,), daemon=True)
    waiting.start()
    behind, _ = connect_kept(world.hosted.port, "away", MQTT_5)  # far below the first segment
    live = Wire(world.hosted.port, "live")
    live.connect()
    live.subscribe("orders/#", qos=1)
    lagging = Wire(world.hosted.port, "lagging", MQTT_5)  # catches up from the segments
    lagging.connect()
    for number in range(20, 30):
        world.publish(number, 1)
        message = live.receive()
        assert message.payload == b"%d" % number
        live.acknowledge(message)
    answer = lagging.subscribe_feed(NAME, qos=1, from_="20")
    assert answer.reasons == (1,), answer
    for number in range(20, 30):
        message = lagging.receive()
        assert message.payload == b"%d" % number
        lagging.acknowledge(message)
    assert len(world.records(20)) == 10
    assert waiting.is_alive()
    world.signal(signal.SIGCONT)
    for number in range(30):
        message = behind.receive()
        assert message.payload == b"%d" % number
        behind.acknowledge(message)
    waiting.join(10)
    assert not waiting.is_alive()


def test_a_reader_of_history_is_told_to_try_again_and_it_is_counted(world: SlowStoreWorld) -> None:
    world.publish(0, 20)
    world.cool()
    world.hang()
    world.process()._answer_s_max = 0.2
    with pytest.raises(HTTPError) as refused:
        world.records(0)
    assert refused.value.code == 503
    assert refused.value.headers["Retry-After"]
    assert world.process().failures == 1
    world.process()._answer_s_max = 30.0
    assert len(world.records(0)) == 20, "another process reads on"


def test_a_store_that_hangs_holds_up_the_start_for_the_first_topics_only(tmp_path: Path) -> None:
    """Each look at it takes 3 s here, and minutes with the timeouts that people have."""
    topics = [f"t{number}" for number in range(6)]
    with Broker(tmp_path, history_url=str(tmp_path / "history")) as broker:
        for topic in topics:
            broker.create_topic(topic, history=True)
            broker.publish("x", topic)
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        port = hanging.getsockname()[1]
        options = options_of(port) | {"timeout": "3s", "max_retries": "0"}
        settings: dict[str, Any] = {"history_url": "s3://bucket", "history_options": options}
        with Broker(tmp_path, upkeep_s=3_600, **settings) as broker:
            told = [one.history.trouble for one in broker.topics() if one.history]
            for topic in topics:
                assert broker.publish("y", topic) == 1
    asked = [text for text in told if "cannot be reached" in text]
    assert 1 <= len(asked) < len(topics) == len(told)
    assert all("the store does not answer" in text for text in told if text not in asked)


def test_readers_cross_the_border_while_it_moves(world: SlowStoreWorld) -> None:
    """Streams over HTTP and MQTT begin in the history and end at the newest record."""
    count, step = 2_000, 200
    world.publish(0, step)
    world.cool()
    feed = Wire(world.hosted.port, "feed", MQTT_5)
    feed.connect()
    feed.subscribe_feed("orders/#", qos=1, from_="earliest")
    stream = Events(world.hosted.ports["http"], "/v1/topics/orders/stream?from=0")
    assert stream.next().kind == "start"
    heard: list[bytes] = []
    shown: list[dict[str, Any]] = []
    for first in range(step, count, step):
        for _ in range(step // 2):
            message = feed.receive()
            heard.append(message.payload)
            feed.acknowledge(message)
        shown += stream.records(step // 3)
        world.publish(first, step)
        world.cool()
    while len(heard) < count:
        message = feed.receive()
        heard.append(message.payload)
        feed.acknowledge(message)
    shown += stream.records(count - len(shown))
    assert heard == [b"%d" % number for number in range(count)]
    assert [one["offset"] for one in shown] == list(range(count))
    assert not feed.settle()
    stream.close()
