"""A data directory that nobody has open, read as it is. Nothing in it is changed.

It must have been closed in order: then there is nothing to recover, and the files say all that a
broker would know.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Final

import msgspec

from penstock.catalog.moving import CatalogCopy, copy_catalog
from penstock.catalog.outside import CATALOG_NAME
from penstock.core.naming.names import topic_slug
from penstock.log.files.directory import check_has_files, check_restored, keep_closed, read_holder
from penstock.log.files.disk import RealDisk
from penstock.log.files.layout import AREA, find_logs, log_directory, tenant_root
from penstock.log.files.recovery import read_closed
from penstock.log.files.segment import Segment, newest_stamp
from penstock.log.files.upkeep.ordered import ERASE_NAME
from penstock.log.format.batch import Batch
from penstock.log.format.gathering import Gathering
from penstock.log.history.place import read_root
from penstock.log.interface import LogIdentity, LogSettings
from penstock.log.staging.area import StagingArea
from penstock.model.errors import CorruptError, PenstockError, RefusedError, UnavailableError
from penstock.model.limits import MIB
from penstock.model.record import TenantId

BATCH_RECORDS: Final = 8_192
BATCH_BYTES: Final = MIB  # what one fetch of a reader brings
RECORD_BYTES: Final = 64  # of a record besides its name, payload and headers
REPAIR: Final = "start a broker on the directory and stop it, then migrate"


@dataclass(frozen=True, slots=True)
class SourceTopic:
    """A topic with one log in files."""

    identity: LogIdentity
    declared: str
    settings: LogSettings
    directory: Path
    segments: list[Segment]
    history_records: int  # that only its history has; -1 if nobody knows

    @property
    def first(self) -> int:
        return self.segments[0].base_offset

    @property
    def end(self) -> int:
        return self.segments[-1].end_offset

    @property
    def stored_bytes(self) -> int:
        return sum(segment.body.length for segment in self.segments)

    @property
    def newest_us(self) -> int:
        return newest_stamp(self.segments)

    def kept_end(self, epoch: int) -> int:
        """Up to where positions of `epoch` are still right; records after it were lost since."""
        newer = [one for one in self.segments if one.body.header.epoch > epoch]
        return newer[0].base_offset if newer else self.end

    def batches(self, start: int) -> Iterator[Batch]:
        """All batches with records from `start` on, and those of marks alone behind `start`."""
        for segment in self.segments:
            if segment.end_offset < start:
                continue
            index = segment.body.index
            for number in range(len(index.positions)):
                if index.has_after(number) and index.offsets[number + 1] < start:
                    continue
                for batch in segment.read_chunk(number):
                    is_alone = batch.header.count == 0
                    if batch.end_offset > start or (is_alone and start == self.first):
                        yield batch

    def rebatched(self, start: int) -> Iterator[Batch]:
        """The records from `start` on in batches for Kafka, each with the marks behind it.

        Marks of no record are stored with the records before them, where there are any.
        """
        gathering, size, offset = Gathering(), 0, start
        for batch in self.batches(start):
            count = batch.header.count
            if count == 0:
                gathering.add(batch, 0, 0)
                continue
            ends = list(accumulate(_sizes(batch)))
            at = max(start - batch.base_offset, 0)
            while at < count:
                if gathering.count >= BATCH_RECORDS or size >= BATCH_BYTES:
                    yield gathering.encode(1, offset, 0)
                    offset += gathering.count
                    gathering, size = Gathering(), 0
                before = ends[at - 1] if at else 0
                fits = bisect_right(ends, before + BATCH_BYTES - size)
                last = min(max(fits, at + 1), at + BATCH_RECORDS - gathering.count, count)
                gathering.add(batch, at, last)
                size += ends[last - 1] - before
                at = last
        if gathering.count:
            yield gathering.encode(1, offset, 0)


def _sizes(batch: Batch) -> list[int]:
    """About what each record takes in Kafka, which stores the name with each."""
    count = batch.header.count
    names, payloads = batch.names(0, count), batch.payloads(0, count)
    headers = batch.header.headers_length // count + RECORD_BYTES
    return [
        len(name) + len(payload) + headers for name, payload in zip(names, payloads, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Source:
    """What there is to migrate."""

    path: Path
    catalog: CatalogCopy
    topics: list[SourceTopic]

    @property
    def origin(self) -> int:
        """Which data directory it is."""
        return self.catalog.origin

    @property
    def records(self) -> int:
        return sum(topic.end - topic.first for topic in self.topics)

    @property
    def stored_bytes(self) -> int:
        return sum(topic.stored_bytes for topic in self.topics)


@contextmanager
def open_source(path: Path) -> Iterator[Source]:
    """Nobody opens the directory meanwhile; RefusedError or UnavailableError says what to do."""
    check_has_files(path)
    check_restored(path)
    if not (path / CATALOG_NAME).exists():
        raise RefusedError(
            f"{str(path)!r} has no catalog and is not a data directory: give one with --at"
        )
    with keep_closed(path) as is_closed:
        if not is_closed:
            holder = read_holder(path) or {}
            raise UnavailableError(
                f"{path} is open in process {holder.get('pid', 'unknown')}: stop that broker "
                "first, because what it receives would not be migrated"
            )
        with copy_catalog(path) as catalog:
            _check_staged(path, catalog.tenants)
            yield Source(path, catalog, _topics(path, catalog))


def _topics(path: Path, catalog: CatalogCopy) -> list[SourceTopic]:
    rows = {
        LogIdentity(tenant, topic_id, topic_slug(declared)): (declared, settings)
        for tenant, topic_id, declared, settings in catalog.topics
    }
    found = set(find_logs(RealDisk(), path))
    if rows.keys() != found:
        odd = sorted(f"{one.tenant}/{one.slug}-{one.topic_id}" for one in rows.keys() ^ found)
        raise UnavailableError(
            f"catalog and topics of {path} do not agree ({odd[0]} is in one of them only): {REPAIR}"
        )
    return [
        _topic(path, identity, declared, msgspec.json.decode(settings, type=LogSettings))
        for identity, (declared, settings) in rows.items()
    ]


def _topic(path: Path, identity: LogIdentity, declared: str, settings: LogSettings) -> SourceTopic:
    directory = log_directory(path, identity)
    if (directory / ERASE_NAME).exists():
        raise UnavailableError(
            f"records of topic {declared!r} are still to be erased: start a broker on {path}, let "
            "it finish, and stop it, because records in Kafka cannot be erased"
        )
    try:
        segments = read_closed(RealDisk(), directory)
    except CorruptError as broken:
        raise UnavailableError(
            f"topic {declared!r} was not closed cleanly, or is damaged ({broken}): {REPAIR}"
        ) from broken
    first = segments[0].base_offset
    only_there = _history_records(path, identity, first) if first else 0
    return SourceTopic(
        identity=identity,
        declared=declared,
        settings=settings,
        directory=directory,
        segments=segments,
        history_records=only_there,
    )


def _history_records(path: Path, identity: LogIdentity, first: int) -> int:
    """How many records before `first` are in the history of a topic; -1 if it cannot be read."""
    root = read_root(path)
    if root is None:
        return 0
    try:
        from penstock.log.history.manifest import open_manifest
        from penstock.log.history.storage import storage_of

        manifest = open_manifest(storage_of(root.place(identity)))
    except (ImportError, PenstockError, OSError):
        return -1
    return 0 if manifest is None else max(first - manifest.first, 0)


def _check_staged(path: Path, tenants: list[TenantId]) -> None:
    for tenant in tenants:
        root = tenant_root(path, tenant)
        if (root / AREA).is_dir() and StagingArea(root).all_decided():
            raise UnavailableError(
                f"records that Spark wrote are still waiting in {root / AREA}: {REPAIR}"
            )
