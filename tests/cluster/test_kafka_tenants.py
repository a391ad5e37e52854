"""Do tenants have Kafka topics of their own, which say whose they are, also after kills?"""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.cluster.test_kafka_broker import KafkaBrokerWorld
from tests.kafka_server import KafkaServer
from tests.tenants.load import TENANTS, TOPIC, run_kills


def read_all(server: KafkaServer, name: str) -> bytes:
    """Every value of a topic with one partition."""
    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": name})
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(name, 0), timeout=60)
        consumer.assign([TopicPartition(name, 0, 0)])
        found, position = [], 0
        while position < end:
            (one,) = consumer.consume(1, 60)
            found.append(one.value() or b"")
            position = one.offset() + 1
        return b"\n".join(found)
    finally:
        consumer.close()


def test_each_tenant_has_all_of_its_own_records_in_topics_named_after_it(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    world = KafkaBrokerWorld(kafka, tmp_path / "data")
    clients = run_kills(world.served, rounds=2)
    assert [problem for one in clients for problem in one.problems()] == []
    world.served.stop()
    names = AdminClient({"bootstrap.servers": kafka.bootstrap}).list_topics(timeout=60).topics
    mine = [name for name in names if name.startswith(f"{world.prefix}.")]
    for tenant in TENANTS:
        start = f"{world.prefix}.{tenant}.{TOPIC}-"
        (name,) = [one for one in mine if one.startswith(start)]
        held = read_all(kafka, name)
        assert f"{tenant} 0".encode() in held
        assert not any(f"{one} ".encode() in held for one in TENANTS if one != tenant)
