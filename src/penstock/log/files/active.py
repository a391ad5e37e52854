"""The writing side of the newest segment. Used by one writer at a time.

Bytes past `position` are never read: zeros from preallocation, or the rest of a write that
failed. Compiled by mypyc; the same source runs interpreted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from penstock.log.files.disk import Disk, File
from penstock.log.files.endfile import End
from penstock.log.files.segment import SegmentHeader, segment_path
from penstock.log.format.batch import Batch
from penstock.log.format.end_bytes import CLEAN
from penstock.model.limits import KIB, MIB

PREALLOCATE_FROM: Final = 16 * KIB  # a log that holds less is idle and gets no zeros
PREALLOCATE_BATCH_MAX: Final = 256 * KIB  # a larger batch costs more to write than to allocate
PREALLOCATE_STEP_MAX: Final = 8 * MIB  # zeros are synced with the next commit: ~10 ms at most
PREALLOCATE_FREE_SHARE: Final = 32  # take at most this fraction of the free space per step
_ZEROS: Final = bytes(64 * KIB)


class ActiveSegment:
    """An open segment file that batches are appended to."""

    def __init__(
        self, disk: Disk, path: Path, header: SegmentHeader, file: File, position: int
    ) -> None:
        self.disk = disk
        self.path = path
        self.header = header
        self._file = file
        self.position = position  # where the next batch goes: all before it is committed
        self._allocated = position  # the file is written, if only with zeros, up to here

    def needs_zeros(self, length: int) -> bool:
        """Would a batch of this length be written with zeros behind it, which take long to sync?"""
        return self.position >= PREALLOCATE_FROM and self.position + length > self._allocated

    def write(self, buffers: list[bytes | memoryview], length: int, size_max: int) -> None:
        """Write one batch at `position`, which stays until it is durable."""
        end = self.position + length
        if end <= self._allocated:
            self._file.write(self.position, buffers)
            return
        is_worth = self.position >= PREALLOCATE_FROM and length <= PREALLOCATE_BATCH_MAX
        step = self._step(size_max - end) if is_worth else 0
        whole, rest = divmod(step, len(_ZEROS))
        zeros = [_ZEROS] * whole + [_ZEROS[:rest]] * (rest > 0)
        try:
            self._file.write(self.position, [*buffers, *zeros])
            self._allocated = end + step
        except OSError:
            if not zeros:
                raise
            # Zeros are a luxury: with little space left the batch alone may still fit.
            self._file.truncate(end)
            self._allocated = self.position
            self._file.write(self.position, buffers)
            self._allocated = end

    def _step(self, room: int) -> int:
        free, _ = self.disk.free_bytes(self.path.parent)
        step = min(self.position, room, PREALLOCATE_STEP_MAX, free // PREALLOCATE_FREE_SHARE)
        return max(step, 0)

    def sync(self) -> None:
        self._file.sync()

    def cut_back(self) -> None:
        """Undo a write that failed: nothing stays past `position`."""
        self._file.truncate(self.position)
        self._allocated = self.position

    def finish(self) -> None:
        """Give back preallocated space; the segment's bytes and length are durable afterwards."""
        self._file.truncate(self.position)
        self._allocated = self.position
        self._file.sync()

    def close_file(self) -> None:
        self._file.close()


def create_segment(
    disk: Disk, directory: Path, header: SegmentHeader, carried: Sequence[Batch] = ()
) -> ActiveSegment:
    """A new, durable segment, empty but for `carried` batches, which are chained anew.

    It appears under its name only when its bytes are on disk.
    """
    path = segment_path(directory, header.base_offset)
    temporary = path.with_name(path.name + ".tmp")
    buffers: list[bytes | memoryview] = [header.pack()]
    checksum = header.checksum
    for batch in carried:
        batch.header.prev_checksum = checksum
        batch.header.epoch = header.epoch
        buffers += batch.to_bytes()
        checksum = batch.header.checksum
    file = disk.open(temporary, create=True)
    try:
        file.write(0, buffers)
        file.sync()
        disk.rename(temporary, path)
        disk.sync_dir(directory)
    except OSError:
        file.close()
        raise
    return ActiveSegment(disk, path, header, file, sum(map(len, buffers)))


def finish_log(active: ActiveSegment, end_file: File, end_offset: int, is_fenced: bool) -> None:
    """Let go of a log's files; unless it is fenced, `end` says that nothing was left undone."""
    try:
        if not is_fenced:
            active.finish()
            header = active.header
            end = End(header.epoch, end_offset, header.base_offset, active.position, CLEAN)
            end_file.write(0, [end.pack()])
            end_file.sync()
    finally:
        active.close_file()
        end_file.close()
