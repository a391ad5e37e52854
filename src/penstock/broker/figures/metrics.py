"""Counters of one broker. Plain numbers, updated once per batch; status pages read them.

Compiled by mypyc; the same source runs interpreted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from penstock.broker.figures.traffic import Traffic
from penstock.core.quotas import KINDS

RECORD_BOUNDS: Final = [1.0, 10.0, 100.0, 1_000.0, 10_000.0, 100_000.0]
# A list: mypyc takes a tuple of floats for one that was never set.
SYNC_BOUNDS_S: Final = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 1.0]

LATENCY_BOUNDS_S: Final = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0]

# Why messages are dropped, and what else is refused; exported from the start, so that the first
# time is seen as one.
DROPS: Final = (
    "audit",
    "epoch",
    "expired",
    "log_unavailable",
    "not_authorized",
    "queue_full",
    "quota",
    "retention",
    "session_ended",
    "too_large",
)
REFUSALS: Final = (
    "anonymous",
    "authentication",
    "client_id",
    "connect_timeout",
    "connections",
    "descriptors",
    "disk",
    "handshake",
    "handshakes",
    "login",
    "login_busy",
    "packet_size",
    "page",
    *(f"quota_{kind}" for kind in KINDS),
    "proxy",
    "strangers",
    "unavailable",
    "will",
)
PROTOCOLS: Final = ("bus", "http", "mqtt", "websocket")  # whose rules clients may break

COUNTER: Final = "counter"
GAUGE: Final = "gauge"
HISTOGRAM: Final = "histogram"
# Every metric that is exported: its type, and what it tells.
FAMILIES: Final = {
    "penstock_published_records_total": (COUNTER, "Records that became durable."),
    "penstock_published_bytes_total": (COUNTER, "Payload bytes of records that became durable."),
    "penstock_delivered_records_total": (COUNTER, "Messages and records handed to readers."),
    "penstock_submitted_records_total": (
        COUNTER,
        "Records published with their topic, as HTTP does.",
    ),
    "penstock_read_records_total": (COUNTER, "Records handed to readers other than MQTT clients."),
    "penstock_dead_records_total": (COUNTER, "Records of groups that became dead letters."),
    "penstock_redriven_records_total": (COUNTER, "Dead letters that were put back."),
    "penstock_mqtt_received_bytes_total": (COUNTER, "Bytes received by the MQTT door."),
    "penstock_mqtt_received_messages_total": (COUNTER, "PUBLISH packets received."),
    "penstock_mqtt_received_packets_total": (COUNTER, "MQTT packets received."),
    "penstock_mqtt_sent_bytes_total": (COUNTER, "Bytes sent by the MQTT door."),
    "penstock_mqtt_sent_messages_total": (COUNTER, "PUBLISH packets sent."),
    "penstock_mqtt_sent_packets_total": (COUNTER, "MQTT packets sent."),
    "penstock_commit_records": (HISTOGRAM, "Records that shared a commit."),
    "penstock_sync_seconds": (HISTOGRAM, "Time that the sync of a commit took."),
    "penstock_publish_ack_seconds": (
        HISTOGRAM,
        "Age of the oldest record of a commit when its publishers were answered.",
    ),
    "penstock_publish_deliver_seconds": (
        HISTOGRAM,
        "Age of the oldest record of a commit when MQTT clients were given it.",
    ),
    "penstock_read_chunks_total": (COUNTER, "Chunks read from disk because memory lacked them."),
    "penstock_cache_bytes": (GAUGE, "Memory that a cache takes, by cache."),
    "penstock_dropped_total": (COUNTER, "Messages that did not reach a reader, by reason."),
    "penstock_refused_total": (COUNTER, "Connections, logins and publishes refused, by reason."),
    "penstock_protocol_violations_total": (COUNTER, "Clients that broke a rule of a protocol."),
    "penstock_build_info": (GAUGE, "Always 1; the labels have the version and kind of engine."),
    "penstock_process_start_time_seconds": (GAUGE, "Start of the broker, seconds since 1970."),
    "penstock_process_resident_bytes": (GAUGE, "Resident memory of the process."),
    "penstock_process_open_fds": (GAUGE, "Open file descriptors of the process."),
    # Under the names that Prometheus' own client libraries use.
    "process_cpu_seconds_total": (COUNTER, "Processor time of the process, user and system."),
    "process_resident_memory_bytes": (GAUGE, "Resident memory of the process."),
    "process_open_fds": (GAUGE, "Open file descriptors of the process."),
    "process_max_fds": (GAUGE, "How many file descriptors the process may have open."),
    "process_start_time_seconds": (GAUGE, "Start of the process, seconds since 1970."),
    "penstock_loop_lag_seconds": (GAUGE, "Longest delay of the event loop in the last sample."),
    "penstock_disk_free_bytes": (GAUGE, "Free disk space of the data directory."),
    "penstock_disk_size_bytes": (GAUGE, "Size of the file system of the data directory."),
    "penstock_disk_refusing_publishes": (GAUGE, "1 while publishes are refused for lack of space."),
    "penstock_stored_topics": (GAUGE, "Topics, by state: available, fenced or unavailable."),
    "penstock_stored_records": (GAUGE, "Records that topics hold."),
    "penstock_topic_records": (GAUGE, "Records that a topic holds, of the largest topics."),
    "penstock_topic_bytes": (GAUGE, "Size of a topic on disk, of the largest topics."),
    "penstock_history_topics": (GAUGE, "Topics with a history, by state: ok or failing."),
    "penstock_history_records": (GAUGE, "Records that histories hold."),
    "penstock_history_bytes": (GAUGE, "Size of the files of histories."),
    "penstock_history_waiting_bytes": (GAUGE, "Sealed bytes that are not in a history yet."),
    "penstock_history_failures_total": (COUNTER, "Failed attempts to write a history."),
    "penstock_open_connections": (GAUGE, "Open connections of a door."),
    "penstock_connected_clients": (GAUGE, "MQTT clients that are connected."),
    "penstock_mqtt_sessions": (GAUGE, "MQTT sessions: connected, and kept for clients away."),
    "penstock_mqtt_subscriptions": (GAUGE, "Subscriptions of connected clients; shared groups."),
    "penstock_retained_messages": (GAUGE, "Retained messages."),
    # Of bridges, by their names; without a bridge there are none.
    "penstock_bridge_connections": (GAUGE, "1 while a bridge is connected to its other broker."),
    "penstock_bridge_lag_records": (GAUGE, "Records that a bridge still has to pass."),
    "penstock_bridge_forwarded_messages_total": (
        COUNTER,
        "Messages that a bridge has brought to the other broker.",
    ),
    "penstock_bridge_received_messages_total": (
        COUNTER,
        "Messages of the other broker that a bridge has stored here.",
    ),
    "penstock_bridge_refused_messages_total": (
        COUNTER,
        "Messages that a bridge dropped because a broker does not accept them.",
    ),
    "penstock_lag_records": (GAUGE, "Records that readers of a kind still have to pass, summed."),
    "penstock_longest_lag_records": (GAUGE, "The same, of the reader that is furthest behind."),
    "penstock_lagging_readers": (GAUGE, "Readers of a kind that are behind the end of a topic."),
}


class Histogram:
    """How often a value fell below each bound, their number and their sum."""

    def __init__(self, bounds: list[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # between the bounds, the last one above all
        self.count = 0
        self.sum = 0.0

    def observe(self, value: float) -> None:
        bounds, at = self._bounds, 0
        while at < len(bounds) and bounds[at] < value:  # most values are below the first of them
            at += 1
        self.counts[at] += 1
        self.count += 1
        self.sum += value

    def bound_of(self, counts: Sequence[int], share: float) -> float:
        """The bound that this share of the counted values did not exceed; 0 if there are none."""
        left = sum(counts) * share
        for bound, count in zip(self._bounds, counts, strict=False):
            left -= count
            if left <= 0:
                return bound if sum(counts) else 0.0
        return self._bounds[-1]

    def export(self, name: str) -> dict[str, float]:
        """Prometheus' cumulative buckets, sum and count."""
        values: dict[str, float] = {}
        total = 0
        for bound, count in zip(self._bounds, self.counts, strict=False):
            total += count
            values[f'{name}_bucket{{le="{bound:g}"}}'] = total
        values[f'{name}_bucket{{le="+Inf"}}'] = self.count
        return values | {f"{name}_sum": self.sum, f"{name}_count": self.count}


class Metrics:
    """What is dropped is counted with its reason (law 6)."""

    def __init__(self) -> None:
        self.records_published = 0
        self.bytes_published = 0
        self.records_delivered = 0
        self.records_submitted = 0  # published with the name of their topic, as over HTTP
        self.records_read = 0  # given to readers other than MQTT clients
        self.records_dead = 0  # of groups
        self.records_redriven = 0
        self.chunks_read = 0  # of topics that are gone
        self.traffic = Traffic()  # of the MQTT door
        self.commit_records = Histogram(RECORD_BOUNDS)  # records that shared a commit
        self.sync_seconds = Histogram(SYNC_BOUNDS_S)
        # Observed once for a commit, with the age of its oldest record.
        self.ack_seconds = Histogram(LATENCY_BOUNDS_S)
        self.deliver_seconds = Histogram(LATENCY_BOUNDS_S)
        self.dropped: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.violations: Counter[str] = Counter()  # by protocol

    def note_read(self, count: int) -> None:
        """A reader other than an MQTT client was given records."""
        self.records_delivered += count
        self.records_read += count

    def snapshot(self) -> dict[str, float]:
        """Names as they are exported, with their values."""
        traffic = self.traffic
        values: dict[str, float] = {
            "penstock_published_records_total": self.records_published,
            "penstock_published_bytes_total": self.bytes_published,
            "penstock_delivered_records_total": self.records_delivered,
            "penstock_submitted_records_total": self.records_submitted,
            "penstock_read_records_total": self.records_read,
            "penstock_dead_records_total": self.records_dead,
            "penstock_redriven_records_total": self.records_redriven,
            "penstock_mqtt_received_bytes_total": traffic.bytes_received,
            "penstock_mqtt_received_messages_total": traffic.publishes_received,
            "penstock_mqtt_received_packets_total": traffic.packets_received,
            "penstock_mqtt_sent_bytes_total": traffic.bytes_sent,
            "penstock_mqtt_sent_messages_total": traffic.publishes_sent,
            "penstock_mqtt_sent_packets_total": traffic.packets_sent,
        }
        values |= self.commit_records.export("penstock_commit_records")
        values |= self.sync_seconds.export("penstock_sync_seconds")
        values |= self.ack_seconds.export("penstock_publish_ack_seconds")
        values |= self.deliver_seconds.export("penstock_publish_deliver_seconds")
        for reason, count in sorted((dict.fromkeys(DROPS, 0) | self.dropped).items()):
            values[f'penstock_dropped_total{{reason="{reason}"}}'] = count
        for reason, count in sorted((dict.fromkeys(REFUSALS, 0) | self.refused).items()):
            values[f'penstock_refused_total{{reason="{reason}"}}'] = count
        for protocol, count in (dict.fromkeys(PROTOCOLS, 0) | self.violations).items():
            values[f'penstock_protocol_violations_total{{protocol="{protocol}"}}'] = count
        return values
