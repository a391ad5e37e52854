"""Requests to Kafka that aiokafka does not have, in its own way of describing bytes."""

from __future__ import annotations

from typing import NamedTuple

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.offset import OffsetResponse_v5
from aiokafka.protocol.types import Array, Boolean, Int8, Int16, Int32, Int64, Schema, String


class Partition(NamedTuple):
    """One partition of a Kafka topic."""

    topic: str
    number: int


class _OffsetsBytes(RequestStruct):  # type: ignore[misc]
    API_KEY = 2
    API_VERSION = 5
    RESPONSE_TYPE = OffsetResponse_v5
    SCHEMA = Schema(
        ("replica_id", Int32),
        ("isolation_level", Int8),
        (
            "topics",
            Array(
                ("topic", String("utf-8")),
                (
                    "partitions",
                    Array(
                        ("partition", Int32),
                        ("current_leader_epoch", Int32),
                        ("timestamp", Int64),
                    ),
                ),
            ),
        ),
    )


class OffsetsRequest(Request[_OffsetsBytes]):  # type: ignore[misc]
    """Offsets by time with the epoch of their leader, which aiokafka's own request leaves out."""

    API_KEY = 2

    def __init__(self, partition: Partition, isolation: int, time_ms: int) -> None:
        self._isolation = isolation
        self._topics = [(partition.topic, [(partition.number, -1, time_ms)])]

    def build(self, kind: type[_OffsetsBytes]) -> _OffsetsBytes:
        return kind(-1, self._isolation, self._topics)


class _EndOfEpochAnswer(Response):  # type: ignore[misc]
    API_KEY = 23
    API_VERSION = 3
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            Array(
                ("topic", String("utf-8")),
                (
                    "partitions",
                    Array(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader_epoch", Int32),
                        ("end_offset", Int64),
                    ),
                ),
            ),
        ),
    )


class _EndOfEpochBytes(RequestStruct):  # type: ignore[misc]
    API_KEY = 23
    API_VERSION = 3
    RESPONSE_TYPE = _EndOfEpochAnswer
    SCHEMA = Schema(
        ("replica_id", Int32),
        (
            "topics",
            Array(
                ("topic", String("utf-8")),
                (
                    "partitions",
                    Array(
                        ("partition", Int32),
                        ("current_leader_epoch", Int32),
                        ("leader_epoch", Int32),
                    ),
                ),
            ),
        ),
    )


class EndOfEpochRequest(Request[_EndOfEpochBytes]):  # type: ignore[misc]
    """Where the records of a leader's epoch end; aiokafka has no such request."""

    API_KEY = 23

    def __init__(self, partition: Partition, epoch: int) -> None:
        self._topics = [(partition.topic, [(partition.number, -1, epoch)])]

    def build(self, kind: type[_EndOfEpochBytes]) -> _EndOfEpochBytes:
        return kind(-1, self._topics)


class _LogDirsAnswer(Response):  # type: ignore[misc]
    API_KEY = 35
    API_VERSION = 1
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "results",
            Array(
                ("error_code", Int16),
                ("log_dir", String("utf-8")),
                (
                    "topics",
                    Array(
                        ("name", String("utf-8")),
                        (
                            "partitions",
                            Array(
                                ("partition", Int32),
                                ("size", Int64),
                                ("offset_lag", Int64),
                                ("is_future", Boolean),
                            ),
                        ),
                    ),
                ),
            ),
        ),
    )


class _LogDirsBytes(RequestStruct):  # type: ignore[misc]
    API_KEY = 35
    API_VERSION = 1
    RESPONSE_TYPE = _LogDirsAnswer
    SCHEMA = Schema(
        ("topics", Array(("topic", String("utf-8")), ("partitions", Array(Int32)))),
    )


class LogDirsRequest(Request[_LogDirsBytes]):  # type: ignore[misc]
    """How many bytes a partition takes on its leader; aiokafka has no such request."""

    API_KEY = 35

    def __init__(self, partition: Partition) -> None:
        self._topics = [(partition.topic, [partition.number])]

    def build(self, kind: type[_LogDirsBytes]) -> _LogDirsBytes:
        return kind(self._topics)
