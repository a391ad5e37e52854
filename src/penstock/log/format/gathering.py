"""Batches from records of other batches: all fields of the records, and their marks, stay."""

from __future__ import annotations

from array import array
from itertools import accumulate, pairwise

from penstock.log.format import batch_bytes as fmt
from penstock.log.format.batch import Batch
from penstock.log.format.builder import Columns, assemble
from penstock.log.format.marks import NO_RECORD, Mark


class Gathering:
    """Records of several source batches on their way into one."""

    def __init__(self) -> None:
        self.count = 0
        self.blob_length = 0
        self._lengths = array("I")
        self._times = array("q")
        self._names = array("I")
        self._publishers = array("I")
        self._expires = array("q")
        self._flags: list[bytes] = []
        self._headers: list[bytes] = []
        self._header_lengths = array("I")
        self._strings: dict[str, int] = {}
        self._marks: list[Mark] = []
        self._blobs: list[bytes] = []
        self._batch_stamp = 0  # of the newest source batch; stamps a batch without records

    @property
    def is_empty(self) -> bool:
        return self.count == 0 and not self._marks

    def add(self, batch: Batch, first: int, last: int) -> None:
        """Take records [first, last) of a source batch, each with the marks that guard it."""
        count = last - first
        plan = batch.plan
        for mark in batch.marks():
            if mark.index == NO_RECORD:
                if first == 0:
                    self._marks.append(mark)
            elif first <= mark.index < last:
                self._marks.append(Mark(mark.kind, mark.key, mark.index - first + self.count))
        self._batch_stamp = batch.header.last_timestamp
        if count == 0:
            return
        if plan.lengths < 0:
            bounds = batch.u32(plan.starts + 4 * first, count + 1).tolist()
            self._lengths.extend([b - a for a, b in pairwise(bounds)])
            blob = bytes(batch.blob[bounds[0] : bounds[-1]])
        else:
            payloads = batch.payloads(first, last)
            self._lengths.extend(map(len, payloads))
            blob = b"".join(payloads)
        self._blobs.append(blob)
        self.blob_length += len(blob)
        self._times.extend(batch.timestamps(first, last))
        self._add_strings(batch, first, last)
        self._flags.append(batch.flags(first, last))
        self._expires.extend([at or 0 for at in batch.expiries(first, last)])
        self._add_headers(batch, first, last)
        self.count += count

    def _add_strings(self, batch: Batch, first: int, last: int) -> None:
        count = last - first
        plan = batch.plan
        strings = self._strings
        ids = [strings.setdefault(string, len(strings)) for string in batch.strings]
        if plan.names < 0:
            self._names.extend(array("I", ids[:1]) * count)
        else:
            self._names.extend([ids[i] for i in batch.u32(plan.names + 4 * first, count)])
        if plan.publishers < 0:
            only = batch.header.publisher_id
            mapped = only if only == fmt.NO_STRING else ids[only]
            self._publishers.extend(array("I", [mapped]) * count)
        else:
            self._publishers.extend(
                [
                    i if i == fmt.NO_STRING else ids[i]
                    for i in batch.u32(plan.publishers + 4 * first, count)
                ]
            )

    def _add_headers(self, batch: Batch, first: int, last: int) -> None:
        plan = batch.plan
        if plan.header_starts < 0:
            self._header_lengths.extend(array("I", [0]) * (last - first))
            return
        at = plan.strings + batch.header.strings_length
        bounds = batch.u32(plan.header_starts + 4 * first, last - first + 1).tolist()
        self._header_lengths.extend([b - a for a, b in pairwise(bounds)])
        self._headers.append(bytes(batch.columns[at + bounds[0] : at + bounds[-1]]))

    def encode(self, epoch: int, base_offset: int, prev_checksum: int) -> Batch:
        columns = Columns()
        columns.count = self.count
        columns.strings = list(self._strings)
        columns.marks = self._marks
        columns.base_timestamp = self._times[0] if self._times else self._batch_stamp
        columns.last_timestamp = self._times[-1] if self._times else self._batch_stamp
        spread = columns.last_timestamp - columns.base_timestamp
        deltas = [at - columns.base_timestamp for at in self._times]
        if spread > 0xFFFF_FFFF:
            columns.wide_times = array("Q", deltas).tobytes()
        elif spread:
            columns.times = array("I", deltas).tobytes()
        columns.starts = array("I", accumulate(self._lengths, initial=0)).tobytes()
        if any(self._names):
            columns.names = self._names.tobytes()
        if len(set(self._publishers)) > 1:
            columns.publishers = self._publishers.tobytes()
        elif self._publishers:
            columns.publisher_id = self._publishers[0]
        flags = b"".join(self._flags)
        if len(set(flags)) > 1:
            columns.flags = flags
        elif flags:
            columns.record_flags = flags[0]
        if any(self._expires):
            columns.expires = self._expires.tobytes()
        if any(self._header_lengths):
            columns.headers = b"".join(self._headers)
            columns.header_starts = array(
                "I", accumulate(self._header_lengths, initial=0)
            ).tobytes()
        return assemble(columns, b"".join(self._blobs), epoch, base_offset, prev_checksum)

    def names(self) -> set[str]:
        strings = list(self._strings)
        return {strings[i] for i in set(self._names)}
