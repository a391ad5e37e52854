"""Tests of doors once more, with topics in Kafka and the catalog in PostgreSQL: `--on-kafka`.

`Hosted` and `Served` ask here which settings a data directory has. Each directory has a schema and
topics of its own, so that a broker which is started there again finds what it left.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.kafka_server import KafkaServer
    from tests.postgres_server import PostgresServer

# Tests that say nothing about a broker on Kafka, by the beginning of their ids, and why.
NO_FAST_LANE = "PINGRESP does not tell that a QoS 0 message was delivered: it comes through Kafka"
LEFT_OUT: dict[str, str] = {
    "tests/conformance/session/test_topics.py::test_wildcards_match_at_every_level": NO_FAST_LANE,
    "tests/conformance/session/test_session.py::"
    "test_unacknowledged_packets_are_sent_again_at_reconnect_and_only_then": NO_FAST_LANE,
}


class KafkaBackends:
    """One Kafka and one PostgreSQL for all tests of a process, started for the first of them."""

    def __init__(self) -> None:
        self._kafka: KafkaServer | None = None
        self._postgres: PostgresServer | None = None
        self._settings: dict[Path, dict[str, Any]] = {}

    def settings_of(self, data: Path) -> dict[str, Any]:
        if self._kafka is None or self._postgres is None:
            from tests.kafka_server import KafkaServer
            from tests.postgres_server import PostgresServer

            self._kafka, self._postgres = KafkaServer(), PostgresServer()
        key = data.resolve()
        if key not in self._settings:
            self._settings[key] = {
                "log.backend": "kafka",
                "kafka.bootstrap": self._kafka.bootstrap,
                "kafka.prefix": self._kafka.new_prefix(),
                "kafka.partitions": 1,
                "kafka.replication": 1,
                "catalog.url": self._postgres.url,
                "catalog.schema": self._postgres.new_schema(),
                "mqtt.will_grace_s": 1,
            }
        return self._settings[key]

    def stop(self) -> None:
        for server in (self._kafka, self._postgres):
            if server is not None:
                server.stop()


active: KafkaBackends | None = None  # set by the option


def flags_of(data: Path) -> dict[str, Any]:
    """Settings of a broker on this directory, by path; none unless `--on-kafka` was given."""
    return {} if active is None else active.settings_of(data)


def environment_of(data: Path) -> dict[str, str]:
    """The same as variables of the environment."""
    return {
        f"PENSTOCK_{path.upper().replace('.', '__')}": str(value)
        for path, value in flags_of(data).items()
    }


def why_left_out(test_id: str) -> str:
    """Empty if it runs on Kafka, too."""
    return next((why for begin, why in LEFT_OUT.items() if test_id.startswith(begin)), "")
