"""Does the Kafka that tests start behave as a real one: does it store, and survive kill -9?"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.kafka_server import KafkaServer


@pytest.fixture
def own_kafka() -> Iterator[KafkaServer]:
    server = KafkaServer()
    yield server
    server.stop()


def make_topic(server: KafkaServer, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    (created,) = admin.create_topics([NewTopic(topic, 1, 1)]).values()
    created.result(60)


def test_a_record_is_there_after_the_broker_was_killed(own_kafka: KafkaServer) -> None:
    make_topic(own_kafka, "orders")
    producer = Producer({"bootstrap.servers": own_kafka.bootstrap, "acks": "all"})
    producer.produce("orders", b"kept", key=b"orders/1")
    assert producer.flush(60) == 0
    own_kafka.brokers[0].kill()
    own_kafka.start()
    settings = {"bootstrap.servers": own_kafka.bootstrap, "group.id": "one"}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    found = consumer.poll(60)
    assert found is not None and (found.key(), found.value()) == (b"orders/1", b"kept")
    consumer.close()
