"""A Kafka of one broker with its default settings, and Produce requests in its own bytes."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path
from typing import Final

from crc32c import crc32c

from bench.http.talks import Refused, Talk, dial, variants
from bench.mqtt.servers import HOST, Server, free_port
from tests.kafka_server import jars

KAFKA: Final = "kafka"
SYNCED: Final = "kafka, synced"  # flush.messages=1: each request is synced before its answer
TOPICS: Final = {KAFKA: "plain", SYNCED: "synced"}
PRODUCE: Final = 0
PRODUCE_VERSION: Final = 3
ACKS_ALL: Final = -1
CLUSTER: Final = "benchbenchbenchbenchbe"
PROPERTIES: Final = """\
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:{controller}
offsets.topic.replication.factor=1
log.dirs={data}
"""


def missing() -> str:
    """Why there is no Kafka to compare with; empty if there is one."""
    lacking = [name for name in ("mvn", "java") if shutil.which(name) is None]
    return f"Kafka needs {' and '.join(lacking)}" if lacking else ""


def start_kafka(directory: Path) -> Server:
    """With one topic of its defaults and one that syncs each request."""
    from confluent_kafka.admin import AdminClient, NewTopic

    port = free_port()
    settings = directory / "kafka.properties"
    filled = {"port": port, "controller": free_port(), "data": directory / "kafka"}
    settings.write_text(PROPERTIES.format(**filled))
    java = ["java", "-Xmx1g", "-cp", f"{jars()}/*"]
    formatting = [*java, "kafka.tools.StorageTool", "format", f"--cluster-id={CLUSTER}"]
    subprocess.run([*formatting, "-c", str(settings)], check=True, stdout=subprocess.DEVNULL)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    child = subprocess.Popen([*java, "kafka.Kafka", str(settings)], cwd=directory, **quiet)
    server = Server(KAFKA, port, child)
    server.wait_ready()
    admin = AdminClient({"bootstrap.servers": f"{HOST}:{port}"})
    made = admin.create_topics(
        [
            NewTopic(TOPICS[KAFKA], 1, 1),
            NewTopic(TOPICS[SYNCED], 1, 1, config={"flush.messages": "1"}),
        ]
    )
    for one in made.values():
        one.result(60)
    return server


def kafka_talk(port: int, topic: str, batch: int) -> Talk:
    requests = [_produce(topic, texts) for texts in variants(batch)]
    return Talk(dial(port), requests, KafkaAnswers(topic))


class KafkaAnswers:
    """Each begins with its length; the error code of its only partition is at one place."""

    def __init__(self, topic: str) -> None:
        self._held = b""
        self._error_at = 4 + 4 + 4 + 2 + len(topic) + 4 + 4

    def take(self, data: bytes) -> bool:
        data = self._held + data
        if len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4]):
            self._held = data
            return False
        self._held = b""
        if data[self._error_at : self._error_at + 2] != b"\0\0":
            raise Refused(data[:500])
        return True


def _produce(topic: str, texts: list[str]) -> bytes:
    """One batch of records for partition 0 (the protocol's versions 3 and batch format 2)."""
    name = _string(topic)
    records = _batch(texts)
    body = struct.pack(">hhih", PRODUCE, PRODUCE_VERSION, 1, -1)  # no client id
    body += struct.pack(">hhi", -1, ACKS_ALL, 30_000)  # no transaction
    body += struct.pack(">i", 1) + name + struct.pack(">iii", 1, 0, len(records)) + records
    return struct.pack(">i", len(body)) + body


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _batch(texts: list[str]) -> bytes:
    records = b"".join([_record(number, text.encode()) for number, text in enumerate(texts)])
    count = len(texts)
    now_ms = 1_790_000_000_000
    checked = struct.pack(">hiqqqhii", 0, count - 1, now_ms, now_ms, -1, -1, -1, count) + records
    after_length = struct.pack(">ibI", -1, 2, crc32c(checked)) + checked
    return struct.pack(">qi", 0, len(after_length)) + after_length


def _record(number: int, payload: bytes) -> bytes:
    body = b"\0" + _varint(0) + _varint(number) + _varint(-1)  # no key
    body += _varint(len(payload)) + payload + _varint(0)
    return _varint(len(body)) + body


def _varint(value: int) -> bytes:
    left = (value << 1) ^ (value >> 63)
    out = bytearray()
    while left >= 0x80:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)
