"""Every commit passes here: it is counted, then handed to those who follow the topics.

Compiled by mypyc; the same source runs interpreted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.broker.deliver.streams import Stream
from penstock.broker.figures.metrics import Metrics
from penstock.broker.limited_log import LimitedLog
from penstock.broker.topic.topics import Topic
from penstock.core.delivery.run import Run
from penstock.log.format.batch import Batch
from penstock.model.clock import Clock

# What a batch was made of and nobody was given yet, by the index of its first record; None: decode
# the batch.
Runs = list[tuple[int, Run]] | None
Follower = Callable[[Topic, Batch, Runs], None]

SLOW_SYNC_S: Final = 1.0  # a sync that takes longer is logged: publishers wait for it


class Commits:
    """Used on the event loop, by the logs of one tenant."""

    def __init__(self, metrics: Metrics, clock: Clock, log: LimitedLog) -> None:
        self.followers: list[Follower] = []
        self.streams: dict[int, set[Stream]] = {}  # of each topic
        self._metrics = metrics
        self._clock = clock
        self._log = log
        self.slow_sync_s = SLOW_SYNC_S

    def committed(self, topic: Topic, batch: Batch, runs: Runs) -> None:
        """A batch is durable; called before its publishers are answered."""
        metrics = self._metrics
        header, log = batch.header, topic.log
        metrics.commit_records.observe(header.count)
        sync_s = log.last_sync_s
        if sync_s:
            metrics.sync_seconds.observe(sync_s)
            if sync_s > self.slow_sync_s:
                text = "a sync of topic %(topic)r took %(sync_s).1f s: the disk is slow"
                self._log.warning("slow sync", text, {"topic": topic.declared, "sync_s": sync_s})
        metrics.records_published += header.count
        metrics.bytes_published += header.blob_raw_length
        delivered = metrics.records_delivered
        for follow in self.followers:
            follow(topic, batch, runs)
        start, end = batch.base_offset, batch.end_offset
        if start == end:
            return
        is_awaited, is_delivered = log.is_awaited, metrics.records_delivered != delivered
        if is_awaited or is_delivered:
            age_s = (self._clock.stamp_us() - header.base_timestamp) / 1e6
            if is_awaited:
                metrics.ack_seconds.observe(age_s)
            if is_delivered:
                metrics.deliver_seconds.observe(age_s)
        streams = self.streams.get(topic.id)
        if streams:
            records = batch.records(topic.declared, start, end, topic.partition)
            for stream in list(streams):
                stream.offer(records, start, end)
