"""Orders of the broker, carried out on tables. Blocking; runs in the process that writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path

import msgspec
import pyarrow as pa

from penstock.core.erasure import Erasure
from penstock.log.erasing import erase, find
from penstock.log.files.disk import RealDisk
from penstock.log.files.segment import Segment
from penstock.log.format.batch import Batch
from penstock.log.history.child import WriterLock
from penstock.log.history.files import EncodedFile, HistoryFile, encode_file
from penstock.log.history.manifest import (
    Manifest,
    check_life,
    create_manifest,
    file_facts,
    open_manifest,
)
from penstock.log.history.orders import Erase, Expire, Look, Order, SegmentSpan, TableState, Write
from penstock.log.history.place import TablePlace
from penstock.log.history.reading.rows import to_batches
from penstock.log.history.storage import storage_of
from penstock.model.errors import PenstockError


class Tables:
    """The tables that were asked for, kept open: their logs are read only once."""

    def __init__(self, lock: WriterLock) -> None:
        self._lock = lock
        self._open: dict[str, Manifest] = {}
        self._swept: set[str] = set()  # tables without orphans of an earlier writer

    def perform(self, order: Order) -> TableState | None:
        """The state afterwards; None if there is no table."""
        try:
            if isinstance(order, Look):
                return self._look(order)
            self._lock.take(order.lock)
            if isinstance(order, Erase):
                return self._erase(order)
            return self._write(order) if isinstance(order, Write) else self._expire(order)
        except (PenstockError, OSError, pa.ArrowException):
            self._open.pop(order.place.uri, None)  # look anew next time
            raise

    def _find(self, place: TablePlace) -> Manifest | None:
        manifest = self._open.get(place.uri)
        if manifest is not None:
            manifest.refresh()
            return manifest
        storage = storage_of(place)
        storage.repair_log()
        manifest = open_manifest(storage)
        if manifest is not None:
            self._open[place.uri] = manifest
        return manifest

    def _look(self, order: Look) -> TableState | None:
        manifest = self._find(order.place)
        return None if manifest is None else _state(manifest, order.probe)

    def _write(self, order: Write) -> TableState:
        manifest = self._find(order.place)
        if manifest is None:
            manifest = create_manifest(storage_of(order.place), order.facts)
            self._open[order.place.uri] = manifest
        check_life(manifest, order.facts.life)
        if order.place.uri not in self._swept:
            manifest.remove_orphans()
            self._swept.add(order.place.uri)
        if manifest.end < order.end:  # else an earlier process has finished what it began
            facts = file_facts(manifest, order.epoch)
            base = max(order.base, manifest.end)
            batches = read_segments(order.segments, base)
            manifest.add(encode_file(batches, base, order.end, facts), order.epoch)
        return _state(manifest)

    def _expire(self, order: Expire) -> TableState | None:
        manifest = self._find(order.place)
        if manifest is None:
            return None
        is_old = [file.last_timestamp < order.before_us for file in manifest.files]
        count = len(list(takewhile(bool, is_old)))
        if count:
            manifest.remove(manifest.files[:count])
        manifest.vacuum()
        return _state(manifest)

    def _erase(self, order: Erase) -> TableState | None:
        manifest = self._find(order.place)
        if manifest is None:
            return None
        check_life(manifest, order.life)
        erased = 0
        for listed in list(manifest.files):
            if listed.name.base < order.erasure.end:
                file = manifest.open_file(listed)
                count = _count_erasable(file, order.erasure)
                erased += count
                if count and not order.dry_run:
                    manifest.replace(listed, _without(file, order.erasure))
        if not order.dry_run:
            manifest.remove_unnamed()
        return msgspec.structs.replace(_state(manifest), erased=erased)


def _count_erasable(file: HistoryFile, erasure: Erasure) -> int:
    """How many records of a file there are to erase."""
    groups: Iterable[int] = range(len(file.group_rows))
    names = file.names()
    if names is not None:
        wanted = [found for name, found in names.items() if erasure.has_name(name)]
        if None not in wanted:
            groups = sorted({group for found in wanted for group in found or ()})
    return sum(
        len(find(batch, erasure))
        for group in groups
        for batch in to_batches(file.read(group), file.facts.epoch)
    )


def _without(file: HistoryFile, erasure: Erasure) -> EncodedFile:
    """The file anew, without these records."""
    batches = (
        erase(batch, erasure)
        for group in range(len(file.group_rows))
        for batch in to_batches(file.read(group), file.facts.epoch)
    )
    facts = msgspec.structs.replace(file.facts, edition=file.facts.edition + 1)
    return encode_file(batches, file.name.base, file.name.end, facts)


def read_segments(segments: Sequence[SegmentSpan], base: int) -> Iterator[Batch]:
    """All batches with records at or behind `base`, every checksum verified."""
    disk = RealDisk()
    for span in segments:
        segment = Segment(disk, Path(span.path), span.base_offset, span.end_offset)
        index = segment.body.index
        for number in range(index.find(base), len(index.positions)):
            yield from segment.read_chunk(number)


def _state(manifest: Manifest, probe: int = -1) -> TableState:
    newest = manifest.files[-1] if manifest.files else None
    return TableState(
        facts=manifest.facts,
        first=manifest.first,
        end=manifest.end,
        epoch=manifest.epoch,
        files=len(manifest.files),
        bytes=manifest.bytes,
        last_timestamp=newest.last_timestamp if newest is not None else None,
        probe_timestamp=_timestamp_at(manifest, probe),
    )


def _timestamp_at(manifest: Manifest, offset: int) -> int | None:
    """When the record at an offset was received; None if the table does not have it."""
    for listed in manifest.files:
        if listed.name.base <= offset < listed.name.end:
            file = manifest.open_file(listed)
            at = offset - listed.name.base
            for number, rows in enumerate(file.group_rows):
                if at < rows:
                    column = file.read(number, ["timestamp"]).column(0)
                    return int(column[at].value)
                at -= rows
    return None
