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

# Tests that say nothing about a broker on Kafka: why, and the beginnings of their ids.
LEFT_OUT: dict[str, tuple[str, ...]] = {
    "damages, fills or slows down the disk of the log, or uses the levels of files": (
        "tests/doors/publish/test_mqtt_auto_create.py::test_when_a_topic_cannot_be_created",
        "tests/doors/publish/test_mqtt_disk.py",
        "tests/doors/publish/test_mqtt_unavailable.py",
        "tests/doors/deliver/test_mqtt_delivery.py::test_acks_come_in_the_order_of_arrival",
        "tests/doors/deliver/test_mqtt_retained_pending.py",
        "tests/doors/deliver/test_mqtt_history.py::test_a_damaged_topic_keeps_its_feed_waiting",
        "tests/http/pages/test_metrics_text.py::test_every_metric_has_help",
        "tests/http/pages/test_metrics_text.py::test_build_process_and_disk_are_told",
        "tests/http/v1/test_v1_topics.py::test_a_topic_is_declared_once",
        "tests/http/v1/test_v1_topics.py::test_settings_are_altered_one_by_one",
        "tests/http/v1/test_v1_traces.py::test_a_message_that_cannot_be_written_is_refused",
    ),
    "opens the directory, or the catalog in SQLite, by itself": (
        "tests/doors/deliver/test_mqtt_shared_kept.py::test_what_is_asked_for_behind",
        "tests/doors/deliver/test_mqtt_shared_kept.py::test_client_that_joins_a_group_and_ends",
        "tests/doors/deliver/test_mqtt_shared_kept.py::test_a_kept_group_ends_when",
        "tests/doors/deliver/test_mqtt_subscriptions.py::test_expired_retained_messages_leave",
        "tests/doors/session/test_mqtt_sessions.py::test_qos2_publish_repeated_after_kill_9",
        "tests/doors/session/test_mqtt_sessions.py::test_a_session_ends_when_its_expiry",
        "tests/doors/session/test_mqtt_wills.py::test_the_will_is_on_disk_before",
        "tests/doors/session/test_mqtt_wills.py::test_a_broker_that_stops_publishes_wills",
        "tests/doors/session/test_mqtt_wills.py::test_a_client_back_within_the_grace",
        "tests/http/test_queue_seed.py::test_the_tables_of_the_seed_are_views",
    ),
    "computes an offset: marks and fences take one in Kafka, too": (
        "tests/http/v1/test_v1_parts.py::test_parts_are_stored_once_across_kills",
        "tests/http/v1/test_v1_sessions.py::test_what_was_out_when_the_broker_crashed",
    ),
    "makes topics with hundreds of partitions, in which an offset alone is no position": (
        "tests/http/v1/test_v1_openapi.py::test_requests_made_from_the_document",
    ),
    "a node has only shares in memory that connected clients hold, and drops them later": (
        "tests/http/v1/test_v1_sessions.py::test_a_forgotten_session_holds_nothing_of_its_share",
        "tests/http/v1/test_v1_trace_ends.py::test_what_a_member_of_a_share_had_goes_to_another",
        "tests/http/v1/test_v1_traces.py::test_a_message_waits_for_a_shared_subscription",
    ),
    "sends a header that only nodes may send to each other, and a node checks that": (
        "tests/http/access/test_same_head.py::test_a_header_that_decides_is_looked_at",
    ),
    "PINGRESP does not tell that a QoS 0 message was delivered: it comes through Kafka": (
        "tests/conformance/session/test_topics.py::test_wildcards_match_at_every_level",
        "tests/conformance/session/test_session.py::"
        "test_unacknowledged_packets_are_sent_again_at_reconnect_and_only_then",
        "tests/doors/publish/test_mqtt_auto_create.py::test_the_first_message_is_in_the_topic",
        "tests/doors/publish/test_mqtt_auto_create.py::test_one_chunk_with_many_new_names",
        "tests/doors/publish/test_mqtt_same_name.py::test_readers_that_come_and_go",
        "tests/doors/deliver/test_mqtt_shared.py::test_each_message_goes_to_one_member",
        "tests/doors/deliver/test_mqtt_shared.py::test_a_burst_is_spread_over_all_members",
        "tests/doors/deliver/test_mqtt_shared_kept.py::test_at_qos_0_nothing_is_kept",
        "tests/http/v1/test_v1_traces.py::test_a_message_that_finds_the_buffer_of_its_reader",
    ),
    "PINGRESP does not tell that a QoS 2 message was sent: PostgreSQL is told of it first": (
        "tests/doors/deliver/test_mqtt_shared.py::test_members_may_have_different_qos",
        "tests/doors/deliver/test_mqtt_shared.py::test_an_error_acknowledgement_discards",
        "tests/doors/deliver/test_mqtt_shared_kept.py::test_qos_2_of_a_session_that_ends",
    ),
    "a message may come before the SUBACK, which waits for PostgreSQL (MQTT 5 §3.8.4)": (
        "tests/scenarios/test_retained.py::test_board_that_opens_while_values_change",
        "tests/doors/deliver/test_mqtt_shared_kept.py::test_what_was_out_to_a_kept_session",
    ),
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
    return next((why for why, begins in LEFT_OUT.items() if test_id.startswith(begins)), "")
