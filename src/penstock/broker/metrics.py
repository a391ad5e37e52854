"""Counters of one broker. Plain integers, added to per batch, read by whoever shows them."""

from __future__ import annotations

from collections import Counter


class Metrics:
    """What is dropped is counted with its reason (law 6)."""

    def __init__(self) -> None:
        self.records_published = 0
        self.bytes_published = 0
        self.batches_committed = 0
        self.records_delivered = 0
        self.dropped: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    def snapshot(self) -> dict[str, int]:
        """Names as they are exported, with their values."""
        values = {
            "penstock_published_records_total": self.records_published,
            "penstock_published_bytes_total": self.bytes_published,
            "penstock_committed_batches_total": self.batches_committed,
            "penstock_delivered_records_total": self.records_delivered,
        }
        for reason, count in sorted(self.dropped.items()):
            values[f'penstock_dropped_total{{reason="{reason}"}}'] = count
        for reason, count in sorted(self.refused.items()):
            values[f'penstock_refused_total{{reason="{reason}"}}'] = count
        return values
