"""Every way to publish. A publisher gets its place and its messages, and keeps their order."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, pairwise
from typing import Any, Final, cast
from urllib.parse import quote

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql.types import StructType

import penstock
from penstock import Bus
from penstock.app.server import Server
from penstock.client.handlers import REPLY_HEADER
from penstock.core.bus import join_id
from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import Publish as PublishPacket
from penstock.mqtt.packets import Will
from penstock.pipeline.jobs.replay.replaying import Slice, put
from penstock.pipeline.link import BrokerLink
from penstock.pipeline.sink.remote_intake import RemoteIntake
from penstock.pipeline.sink.writing import TaskWrite
from penstock.pipeline.source.source import EXTRA, SCHEMA
from tests.cli.mqtt.test_cli_pub_sub import invoke
from tests.doors.wire import Wire
from tests.matrix.house import (
    PAYLOADS,
    TEXTS,
    House,
    Message,
    Place,
    bus_place,
    dead_place,
    single_place,
    topic_place,
)
from tests.pipeline.source.reading import read_batches, reader_of, travelled
from tests.scenarios.test_bus_and_dead_letters import bury

BUS_GROUP: Final = 3
DEAD: Final = ("reason", "topic", "name", "offset", "group", "deliveries")
VERSIONS: Final = {"3.1.1": MQTT_3_1_1, "5": MQTT_5}
WAYS: Final = ("tcp", "websocket")
REPLAYED: Final = StructType(
    [SCHEMA["name"], EXTRA["header_pairs"], SCHEMA["payload"], EXTRA["kind"]]
)

Publish = Callable[[House, Place, Sequence[Message]], None]


@dataclass(frozen=True, slots=True)
class Publisher:
    """One way to publish; `qos` and `retain` are what its records have."""

    key: str
    publish: Publish
    qos: int = 1
    retain: bool = False
    place: Callable[[str], Place] = topic_place
    payloads: Sequence[bytes] = PAYLOADS
    makes_topic: bool = False  # publishing declares it


PUBLISHERS: Final[dict[str, Publisher]] = {}
_bus_numbers = count(1, 2)


def add(key: str, publish: Publish, **more: Any) -> None:
    assert key not in PUBLISHERS
    PUBLISHERS[key] = Publisher(key, publish, **more)


def way(key: str, **more: Any) -> Callable[[Publish], Publish]:
    """Register a function as a publisher."""

    def register(publish: Publish) -> Publish:
        add(key, publish, **more)
        return publish

    return register


def next_bus_place(key: str) -> Place:
    return bus_place(key, next(_bus_numbers))


# MQTT


def mqtt(version: int, transport: str, *, stays: bool = False) -> Publish:
    def publish(house: House, place: Place, messages: Sequence[Message]) -> None:
        with house.dial(f"{place.key}-p", version, transport, stays=stays) as wire:
            for one in messages:
                wire.publish(one.name, one.payload, one.qos, retain=one.retain)
            wire.settle()

    return publish


def wills(version: int) -> Publish:
    """Clients that go one after the other without saying so."""

    def publish(house: House, place: Place, messages: Sequence[Message]) -> None:
        dying = []
        for at, one in enumerate(messages):
            wire = Wire(house.hosted.port, f"{place.key}-{at}", version)
            wire.connect(will=Will(one.name, one.payload, one.qos, one.retain))
            dying.append(wire)
        for at, wire in enumerate(dying):
            wire.close()
            house.wait_stored(place.topic, place.base + at + 1)

    return publish


for _label, _version in VERSIONS.items():
    for _qos in range(3):
        for _way in WAYS:
            add(f"mqtt-{_label}-qos{_qos}-{_way}", mqtt(_version, _way), qos=_qos)
        add(f"mqtt-{_label}-qos{_qos}-retained", mqtt(_version, "tcp"), qos=_qos, retain=True)
        add(f"will-{_label}-qos{_qos}", wills(_version), qos=_qos)
    add(f"mqtt-{_label}-qos2-kept", mqtt(_version, "tcp", stays=True), qos=2)  # leaves marks
add("will-retained", wills(MQTT_5), qos=1, retain=True)
add("mqtt-5-qos1-into-bus", mqtt(MQTT_5, "tcp"), place=next_bus_place)


@way("mqtt-in-one-write", qos=0)
def mqtt_at_once(house: House, place: Place, messages: Sequence[Message]) -> None:
    """Neighbours of several names in one piece, which the broker takes as one append."""
    with house.dial(f"{place.key}-p", MQTT_5) as wire:
        wire.send(*[PublishPacket(one.name, one.payload) for one in messages])
        wire.settle()


# HTTP


@way("seed-produce", place=single_place, payloads=TEXTS)
def seed_produce(house: House, place: Place, messages: Sequence[Message]) -> None:
    producer = house.ask("POST", "/producer/register", {"topic": place.topic})["producer_id"]
    for one in messages:
        body = {"topic": place.topic, "producer_id": producer, "message": one.payload.decode()}
        house.ask("POST", "/producer/produce", body)


def message_json(message: Message) -> dict[str, str]:
    try:
        return {"name": message.name, "payload": message.payload.decode()}
    except UnicodeDecodeError:
        text = base64.b64encode(message.payload).decode()
        return {"name": message.name, "payload_base64": text}


def v1_one_by_one(house: House, place: Place, messages: Sequence[Message]) -> None:
    for one in messages:
        house.ask("POST", f"/v1/topics/{place.topic}/records", message_json(one))


add("v1-json", v1_one_by_one)
add("v1-json-into-bus", v1_one_by_one, place=next_bus_place)


@way("v1-json-array")
def v1_array(house: House, place: Place, messages: Sequence[Message]) -> None:
    house.ask("POST", f"/v1/topics/{place.topic}/records", [message_json(one) for one in messages])


@way("v1-ndjson")
def v1_ndjson(house: House, place: Place, messages: Sequence[Message]) -> None:
    lines = "\n".join(json.dumps(message_json(one)) for one in messages).encode()
    path = f"/v1/topics/{place.topic}/records"
    house.ask("POST", path, lines, Content_Type="application/x-ndjson")


def v1_raw(content_type: str) -> Publish:
    def publish(house: House, place: Place, messages: Sequence[Message]) -> None:
        for one in messages:
            path = f"/v1/topics/{place.topic}/records?name={quote(one.name, safe='')}"
            house.ask("POST", path, one.payload, Content_Type=content_type)

    return publish


add("v1-text", v1_raw("text/plain"), payloads=TEXTS)
add("v1-bytes", v1_raw("application/octet-stream"))


@way("v1-idempotent")
def v1_idempotent(house: House, place: Place, messages: Sequence[Message]) -> None:
    """Each request twice, with its key: stored once."""
    for at, one in enumerate(messages):
        for _ in range(2):
            path = f"/v1/topics/{place.topic}/records"
            house.ask("POST", path, message_json(one), Idempotency_Key=f"{place.key}-{at}")


# Python


def neighbours(messages: Sequence[Message]) -> Iterator[tuple[str, list[bytes]]]:
    """Names with the payloads that stand together under them."""
    name, payloads = messages[0].name, [messages[0].payload]
    for one in messages[1:]:
        if one.name != name:
            yield name, payloads
            name, payloads = one.name, []
        payloads.append(one.payload)
    yield name, payloads


@way("client-publish")
def client_publish(house: House, place: Place, messages: Sequence[Message]) -> None:
    for at, one in enumerate(messages):
        offset = house.client.publish(one.payload, place.topic, name=one.name)
        assert offset == place.base + at


@way("client-publish-many")
def client_publish_many(house: House, place: Place, messages: Sequence[Message]) -> None:
    for name, payloads in neighbours(messages):
        house.client.publish_many(payloads, place.topic, name=name)


@way("aio-client-publish")
def aio_client_publish(house: House, place: Place, messages: Sequence[Message]) -> None:
    async def publish() -> list[int]:
        works = [house.aio.publish(one.payload, place.topic, name=one.name) for one in messages]
        return list(await asyncio.gather(*works))

    offsets = house.loop.call(publish())
    assert offsets == list(range(place.base, place.base + len(messages)))


@way("aio-client-publish-many")
def aio_client_publish_many(house: House, place: Place, messages: Sequence[Message]) -> None:
    for name, payloads in neighbours(messages):
        house.loop.call(house.aio.publish_many(payloads, place.topic, name=name))


@way("client-reply")
def client_reply(house: House, place: Place, messages: Sequence[Message]) -> None:
    """What comes under the second name is what a handler answers to the message before it."""
    answers = {
        asked.payload: answer.payload
        for asked, answer in pairwise(messages)
        if answer.name != asked.name == place.names[0]
    }

    async def publish() -> None:
        async with penstock.aio.connect(house.url) as client:
            client.handler(place.names[0], topic=place.topic)(lambda one: answers.get(one.payload))
            running = asyncio.create_task(client.run(start=place.base))
            end = place.base
            for one in messages:
                if one.name != place.names[0]:
                    continue
                answer = answers.get(one.payload)
                headers = {} if answer is None else {REPLY_HEADER: place.names[1]}
                await house.aio.publish(one.payload, place.topic, name=one.name, headers=headers)
                end += 1 if answer is None else 2
                async for stored in house.aio.stream(place.topic, start=place.base):
                    if stored.offset == end - 1:
                        break
            running.cancel()

    house.loop.call(publish())


@way("broker-publish")
def broker_publish(house: House, place: Place, messages: Sequence[Message]) -> None:
    """The program that serves publishes itself."""
    for one in messages:
        work = partial(_publish_inside, place.topic, one.name, [one.payload])
        house.hosted.run(work)


@way("broker-publish-many")
def broker_publish_many(house: House, place: Place, messages: Sequence[Message]) -> None:
    for name, payloads in neighbours(messages):
        house.hosted.run(partial(_publish_inside, place.topic, name, payloads))


async def _publish_inside(topic: str, name: str, payloads: list[bytes], server: Server) -> None:
    if len(payloads) == 1:
        await server.broker.publish(payloads[0], topic, name=name)
    else:
        await server.broker.publish_many(payloads, topic, name=name)


# Commands


@way("penstock-pub", payloads=TEXTS)
def penstock_pub(house: House, place: Place, messages: Sequence[Message]) -> None:
    where = ("-h", "127.0.0.1", "-p", str(house.hosted.port), "-q", "1")
    for one in messages:
        assert invoke("pub", *where, "-t", one.name, "-m", one.payload.decode()).code == 0


@way("penstock-publish", payloads=TEXTS)
def penstock_publish(house: House, place: Place, messages: Sequence[Message]) -> None:
    where = ("--at", house.url)
    for one in messages:
        text = one.payload.decode()
        assert invoke("publish", *where, place.topic, text, "--name", one.name).code == 0


@way("penstock-log-import", place=single_place, payloads=TEXTS, makes_topic=True)
def penstock_log_import(house: House, place: Place, messages: Sequence[Message]) -> None:
    folder = house.scratch / place.key / place.topic
    folder.mkdir(parents=True)
    lines = b"".join(one.payload + b"\n" for one in messages)
    (folder / "messages.log").write_bytes(lines)
    outcome = invoke("log", "import", "--lines", "--at", house.url, str(folder.parent))
    assert outcome.code == 0, outcome


# The broker's own: the bus, and what a group gives up


def bus(group: int) -> Publish:
    def publish(house: House, place: Place, messages: Sequence[Message]) -> None:
        numbers = dict(zip(place.names, place.numbers, strict=True))
        with Bus.connect(house.bus_path) as client:
            for one in messages:
                client.publish(join_id(group, numbers[one.name]), one.payload)

    return publish


add("bus", bus(0), place=next_bus_place)
add("bus-group", bus(BUS_GROUP), place=next_bus_place)


def dead_letters(house: House, place: Place, messages: Sequence[Message]) -> None:
    """Jobs that a group gives back until they are dead."""
    house.declare(place.key)
    prefix = f"{place.topic}/"
    with house.dial(f"{place.key}-p") as wire:
        for one in messages:
            wire.publish(one.name.removeprefix(prefix), one.payload, one.qos)
        wire.settle()
    house.wait_stored(place.key, len(messages))
    bury(house.asking, place.key, len(messages))


for _qos in range(3):
    add(f"dead-letter-qos{_qos}", dead_letters, qos=_qos, place=dead_place)


@way("redrive")
def redriven(house: House, place: Place, messages: Sequence[Message]) -> None:
    """Dead letters go back to the topic they came from."""
    dead = f"{place.topic}.dead"
    with penstock.connect(house.url) as client:
        client.create_topic(dead, exist_ok=True)
        for one in messages:
            facts = ("no", place.topic, one.name, "0", "packers", "5")
            headers = [
                (f"penstock.dead.{key}", value) for key, value in zip(DEAD, facts, strict=True)
            ]
            client.publish(one.payload, dead, headers=headers)
        assert client.redrive("packers", place.topic) == len(messages)


# Spark, without a Java: what its tasks and its driver do


def rows_of(messages: Sequence[Message]) -> pa.RecordBatch:
    payloads = pa.array([one.payload for one in messages], pa.binary())
    names = pa.array([one.name for one in messages])
    return pa.record_batch([payloads, names], names=["payload", "name"])


@way("spark-sink-url")
def spark_sink(house: House, place: Place, messages: Sequence[Message]) -> None:
    """Two tasks stage their rows at the broker; the driver hands them over."""
    intake: RemoteIntake = travelled(RemoteIntake(BrokerLink(house.url)))
    parts = (messages[:2], messages[2:])
    files = [
        file
        for number, part in enumerate(parts)
        for file in TaskWrite(intake, place.topic, place.key, 0, number).write([rows_of(part)])
    ]
    assert intake.hand_over(place.key, 0, files, is_only=False)


class Frame:
    """A DataFrame of one partition, as far as a replay uses it."""

    def __init__(self, batches: list[pa.RecordBatch]) -> None:
        self._batches = batches

    def mapInArrow(self, work: Callable[..., Iterator[pa.RecordBatch]], schema: str) -> Frame:
        context = TaskContext._getOrCreate()
        context._partitionId = 0
        try:
            return Frame(list(travelled(work)(iter(self._batches))))
        finally:
            TaskContext._taskContext = None

    def orderBy(self, column: str) -> Frame:
        return self

    def collect(self) -> list[Any]:
        return [Row(**row) for batch in self._batches for row in batch.to_pylist()]


@way("replay-url")
def replay(house: House, place: Place, messages: Sequence[Message]) -> None:
    """What is stored in another directory is put into the topic, in two slices."""
    old = house.scratch / place.key
    with penstock.Broker(old) as broker:
        broker.create_topic(place.topic)
        for one in messages:
            broker.publish(one.payload, place.topic, name=one.name)
    intake: RemoteIntake = travelled(RemoteIntake(BrokerLink(house.url)))
    for number, (first, last) in enumerate(((0, 2), (2, len(messages)))):
        bounds = {"startingOffsets": str(first), "endingOffsets": str(last)}
        reader = reader_of(old, REPLAYED, topic=place.topic, **bounds)
        batches = list(read_batches(reader, reader.partitions(), REPLAYED))
        state = Slice(place.key, str(old), (0,), (len(messages),), number, (first,), (last,))
        assert put(intake, place.topic, state, cast(Any, Frame(batches))) == last - first
