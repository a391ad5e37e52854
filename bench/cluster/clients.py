"""Other clients of Kafka, in turns as long as those of Penstock."""

from __future__ import annotations

import asyncio
import os
import time
from statistics import median
from typing import Final

from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.mqtt.wire import NAME

MESSAGE_BYTES: Final = 100
CONSUMED_AT_ONCE: Final = 10_000
BATCH_BYTES_MAX: Final = 4 * 1024 * 1024


def send_batches(bootstrap: str, topic: str, messages: int, turn_s: float) -> float:
    """Messages per second, with so many in flight: the next batch is made while one is sent."""
    return asyncio.run(_send_batches(bootstrap, topic, messages // 2, turn_s))


async def _send_batches(bootstrap: str, topic: str, messages: int, turn_s: float) -> float:
    payload, key = os.urandom(MESSAGE_BYTES), NAME.encode()
    async with _producer(bootstrap) as producer:
        count = 0
        begin = time.perf_counter()
        sent: list[asyncio.Future[object]] = []
        while time.perf_counter() < begin + turn_s:
            batch = producer.create_batch()
            for _ in range(messages):
                batch.append(key=key, value=payload, timestamp=None)
            batch.close()
            sent.append(await producer.send_batch(batch, topic, partition=0))
            count += messages
            if len(sent) == 2:
                await sent.pop(0)
        await asyncio.gather(*sent)
        return count / (time.perf_counter() - begin)


def _producer(bootstrap: str) -> AIOKafkaProducer:
    return AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        acks="all",
        enable_idempotence=True,
        max_batch_size=BATCH_BYTES_MAX,
    )


def fill(bootstrap: str, topic: str, count: int, names: int) -> None:
    """Store so many messages of a few names."""
    asyncio.run(_fill(bootstrap, topic, count, names))


async def _fill(bootstrap: str, topic: str, count: int, names: int) -> None:
    payload = os.urandom(MESSAGE_BYTES)
    async with _producer(bootstrap) as producer:
        for start in range(0, count, 10_000):
            batch = producer.create_batch()
            for i in range(start, min(start + 10_000, count)):
                batch.append(key=b"sensors/%d" % (i % names), value=payload, timestamp=None)
            batch.close()
            await (await producer.send_batch(batch, topic, partition=0))


def consume(bootstrap: str, topic: str, count: int) -> float:
    """Messages per second of a consumer that reads so many from the first on."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "bench",
        "enable.auto.commit": False,
        "fetch.message.max.bytes": 4 * 1024 * 1024,
        "fetch.max.bytes": 16 * 1024 * 1024,
        "queued.max.messages.kbytes": 256 * 1024,
        # By default it pauses for a second whenever 100,000 messages are queued.
        "queued.min.messages": 10_000_000,
        "fetch.queue.backoff.ms": 1,
    }
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, 0)])
    read = 0
    try:
        read += len(consumer.consume(1, 30))  # connecting is not counted
        begin = time.perf_counter()
        while read < count:
            for message in consumer.consume(min(CONSUMED_AT_ONCE, count - read), 30):
                assert message.error() is None, message.error()
                message.value()
                read += 1
        return count / (time.perf_counter() - begin)
    finally:
        consumer.close()


def make_topic(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (made,) = admin.create_topics([NewTopic(topic, 1, 1)]).values()
    made.result(60)


class Relay:
    """A producer and a consumer of one partition, with one message at a time between them."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        common = {"bootstrap.servers": bootstrap, "socket.nagle.disable": True}
        self._topic = topic
        self._producer = Producer(
            {**common, "acks": "all", "enable.idempotence": True, "linger.ms": 0}
        )
        self._consumer = Consumer({**common, "group.id": "bench", "enable.auto.commit": False})
        self._consumer.assign([TopicPartition(topic, 0, 0)])
        self._payload = os.urandom(MESSAGE_BYTES)
        self._pass_one()  # connecting is not counted

    def _pass_one(self) -> float:
        begin = time.perf_counter()
        self._producer.produce(self._topic, self._payload, NAME.encode(), partition=0)
        message = self._consumer.poll(30)
        taken_s = time.perf_counter() - begin
        assert message is not None and message.error() is None, message
        assert self._producer.flush(30) == 0
        return taken_s

    def turn(self, turn_s: float) -> float:
        """Milliseconds from producing a message until the consumer has it, the median."""
        end_s = time.perf_counter() + turn_s
        taken_s = []
        while time.perf_counter() < end_s:
            taken_s.append(self._pass_one())
        return median(taken_s) * 1e3

    def close(self) -> None:
        self._consumer.close()
