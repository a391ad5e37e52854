"""What tests of declared pipelines share: topics, rows, and a file that copies into two sinks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from penstock import Broker

Declare = Callable[[str], Path]  # the text of a file, which then stands there

COPY = """
[pipeline]
trigger = "200ms"

[sources.readings]
topic = "sensors"
payload = "text"

[sinks.topic]
step = "copied"
topic = "out"

[steps.copied]
sql = "SELECT payload, name FROM readings"

[sinks.table]
step = "readings"
table = "./table"
"""


def make_topics(data: Path) -> Path:
    with Broker(data) as broker:
        for topic in ("sensors", "rooms", "out"):
            broker.create_topic(topic)
    return data


def publish(data: Path, *values: Any, topic: str = "sensors", name: str | None = None) -> None:
    with Broker(data) as broker:
        for value in values:
            broker.publish(value, topic, name=name)


def values(data: Path, topic: str = "out") -> list[Any]:
    with Broker(data) as broker:
        return [record.value for record in broker.read(topic)]


def rows_of(table: Path) -> list[dict[str, Any]]:
    return sorted(DeltaTable(str(table)).to_pyarrow_table().to_pylist(), key=repr)
