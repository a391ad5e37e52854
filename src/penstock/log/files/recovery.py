"""Opening a log after any kind of ending: find the durable prefix, cut the rest, make it so.

Only the newest segment is scanned. It is cut at the first batch that does not chain; the cut is
made and synced before anything is preallocated again, else a ghost batch could come back after a
second crash. Records that were visible and are gone (level `os` after power loss, damaged files)
start a new epoch; what is cut off below the recorded end is saved next to the log, never thrown
away.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

from penstock.log.files.active import ActiveSegment, create_segment
from penstock.log.files.disk import Disk, File, write_file
from penstock.log.files.endfile import NAME as END_NAME
from penstock.log.files.endfile import End, read_end
from penstock.log.files.segment import (
    CHUNK_BYTES,
    HEADER_BYTES,
    ChunkIndex,
    Segment,
    SegmentBody,
    SegmentHeader,
    segment_bases,
    segment_path,
    unpack_segment_header,
)
from penstock.log.format import batch_bytes as fmt
from penstock.log.format.batch import Batch, decode_batch
from penstock.log.format.footer import read_outline
from penstock.model.errors import CorruptError

# A crash leaves these half made.
_LEFTOVER: Final = re.compile(r"[0-9]{20}\.log\.(tmp|sealing(-[0-9]+)?)\Z")
_SET_ASIDE: Final = re.compile(r"[0-9]{20}\.log\.(cut-at-[0-9]+|damaged)\Z")


@dataclass(slots=True)
class Scan:
    """The longest prefix of a segment whose batches chain."""

    position: int
    end_offset: int
    checksum: int  # of the last header: the next batch chains to it
    last_timestamp: int
    index: ChunkIndex = field(default_factory=ChunkIndex)
    problem: str = ""  # why it ends there, when bytes follow


@dataclass(slots=True)
class Recovered:
    """An open log: its segments in order, the last of which is `active`."""

    segments: list[Segment]
    active: ActiveSegment
    checksum: int
    epoch: int
    notes: list[str]  # for people: what was found and done


def scan_segment(file: File, header: SegmentHeader, limit: int) -> Scan:
    """Walk batches from the start, verifying every byte, up to `limit` or the first that fails."""
    scan = Scan(HEADER_BYTES, header.base_offset, header.checksum, header.created_at)
    window = memoryview(b"")
    window_at = HEADER_BYTES
    while scan.position < limit:
        at = scan.position - window_at
        wanted = fmt.HEADER_BYTES
        if at + wanted <= len(window):
            try:
                peeked = fmt.unpack_header(window, at)
            except CorruptError as newer:  # a format we do not know is no damage: cut nothing
                raise CorruptError(f"at byte {scan.position}: {newer}") from newer
            if peeked is None:
                scan.problem = "no intact batch header"
                break
            wanted = peeked.stored_length
        if at + wanted > len(window):
            if scan.position + wanted > limit:
                scan.problem = "batch is cut short"
                break
            window_at = scan.position
            length = min(max(wanted, CHUNK_BYTES), limit - scan.position)
            window = memoryview(file.read(scan.position, length))
            if len(window) < wanted:
                scan.problem = "batch is cut short"
                break
            continue
        try:
            found = decode_batch(window, at).header
        except CorruptError as broken:
            scan.problem = str(broken)
            break
        if found.prev_checksum != scan.checksum or found.base_offset != scan.end_offset:
            scan.problem = "batch does not chain to the one before it"
            break
        scan.index.note(scan.position, found.base_offset, found.base_timestamp)
        scan.position += found.stored_length
        scan.end_offset = found.end_offset
        scan.checksum = found.checksum
        scan.last_timestamp = max(scan.last_timestamp, found.last_timestamp)
    return scan


def set_aside(disk: Disk, directory: Path) -> list[Path]:
    """What recovery cut off or could not read, and saved next to the log."""
    return [directory / name for name in disk.list(directory) if _SET_ASIDE.match(name)]


def read_closed(disk: Disk, directory: Path) -> list[Segment]:
    """The segments of a log that was closed in order, as `recover` would give them; reads only.

    The newest one is scanned, as `recover` does. CorruptError if `recover` would change anything.
    """
    end = read_end(disk, directory)
    bases = segment_bases(disk, directory)
    if end is None or not end.is_clean or end.is_fenced or bases[-1:] != [end.segment_base]:
        raise CorruptError(
            f"{directory} was not closed cleanly: start a broker on it once to repair it"
        )
    path = segment_path(directory, bases[-1])
    file = disk.open(path, write=False)
    try:
        header = unpack_segment_header(file.read(0, HEADER_BYTES))
        if header is None or header.is_sealed or header.base_offset != bases[-1]:
            raise CorruptError(
                f"{path} cannot be appended to: start a broker on its directory once to repair it"
            )
        scan = scan_segment(file, header, file.size())
        if not file.size() == scan.position == end.position or scan.end_offset != end.durable_end:
            raise CorruptError(
                f"{path} does not end where the log ends: start a broker on its "
                "directory once to repair it"
            )
    finally:
        file.close()
    body = SegmentBody(header, scan.index, scan.position, scan.last_timestamp)
    newest = Segment(disk, path, bases[-1], scan.end_offset, body)
    return [*_older(disk, directory, bases), newest]


def recover(disk: Disk, directory: Path, now_us: int, *, may_have_lost: bool) -> Recovered:
    """Open the log in `directory`; `may_have_lost` says that its level was `os`."""
    for name in disk.list(directory):
        if _LEFTOVER.match(name):
            disk.remove(directory / name)
    bases = segment_bases(disk, directory)
    if not bases:
        raise CorruptError(
            f"{directory} holds no segment: restore the files from a backup, or delete the topic"
        )
    # A process that was killed may have made or removed segments and not synced the directory:
    # power loss must not take back what is built on them.
    disk.sync_dir(directory)
    end = read_end(disk, directory)
    notes: list[str] = []
    newest, segments = bases[-1], _older(disk, directory, bases)
    path = segment_path(directory, newest)
    file = disk.open(path)
    header, scan = _scan_newest(file, path, newest)
    if header is None or scan is None:
        file.close()
        return _restart(
            disk,
            directory,
            newest,
            segments=segments,
            header=header,
            end=end,
            now_us=now_us,
            notes=notes,
        )
    if end is not None and end.is_fenced and end.segment_base == newest:
        scan = scan_segment(file, header, end.position)
        notes.append(f"a sync had failed: continuing at the durable end {scan.end_offset}")
    lost = end is not None and end.durable_end > scan.end_offset
    if lost:
        _keep_aside(disk, path, file, scan, notes)
    _settle(file, scan, end, newest)
    body = SegmentBody(header, scan.index, scan.position, scan.last_timestamp)
    segments.append(Segment(disk, path, newest, scan.end_offset, body))
    is_unclean = end is None or not end.is_clean
    if lost or (is_unclean and (may_have_lost or _was_loose(disk, directory, end))):
        epoch = max(header.epoch, end.epoch if end else 0) + 1
        notes.append(f"epoch {epoch} begins at offset {scan.end_offset}")
    elif end is not None and end.is_fenced:
        epoch = header.epoch
    else:
        active = ActiveSegment(disk, path, header, file, scan.position)
        return Recovered(segments, active, scan.checksum, header.epoch, notes)
    file.close()
    return _continue_in_new_segment(
        disk,
        directory,
        segments,
        epoch=epoch,
        now_us=now_us,
        topic_id=header.topic_id,
        last_timestamp=scan.last_timestamp,
        notes=notes,
    )


def _scan_newest(file: File, path: Path, base: int) -> tuple[SegmentHeader | None, Scan | None]:
    """The header and the batches of a file that may be appended to; None for what it lacks."""
    try:
        header = unpack_segment_header(file.read(0, HEADER_BYTES))
        if header is None or header.is_sealed or header.base_offset != base:
            return header, None
        return header, scan_segment(file, header, file.size())
    except CorruptError as broken:
        file.close()
        raise CorruptError(f"{path}: {broken}") from broken


def _older(disk: Disk, directory: Path, bases: list[int]) -> list[Segment]:
    """All but the newest; each ends where the next one begins."""
    return [
        Segment(disk, segment_path(directory, base), base, following)
        for base, following in pairwise(bases)
    ]


def _was_loose(disk: Disk, directory: Path, end: End | None) -> bool:
    """Whether records were visible before they were synced, as `end` says."""
    if end is not None:
        return end.is_loose
    return END_NAME in disk.list(directory)  # torn or damaged: it may have said so


def _settle(file: File, scan: Scan, end: End | None, base: int) -> None:
    """Make the prefix the truth on disk, and nothing after it."""
    file.truncate(scan.position)
    # A sync that failed unseen may have left pages that look clean and are not on disk: whatever is
    # past the recorded end is written again, so that this sync covers it.
    known = HEADER_BYTES
    if end is not None and end.segment_base == base and not end.is_loose:
        known = end.position
    for at in range(known, scan.position, CHUNK_BYTES):
        file.write(at, [file.read(at, min(CHUNK_BYTES, scan.position - at))])
    file.sync()


def _keep_aside(disk: Disk, path: Path, file: File, scan: Scan, notes: list[str]) -> None:
    """Save the bytes after the cut: they held records that had been visible."""
    tail = file.read(scan.position, file.size() - scan.position)
    notes.append(
        f"records from offset {scan.end_offset} on are damaged or missing: {scan.problem or 'gone'}"
    )
    if tail.strip(b"\0"):
        kept = path.with_name(f"{path.name}.cut-at-{scan.end_offset}")
        write_file(disk, kept, tail)
        notes.append(f"the bytes cut off are kept in {kept}")


def _restart(
    disk: Disk,
    directory: Path,
    newest: int,
    segments: list[Segment],
    header: SegmentHeader | None,
    end: End | None,
    now_us: int,
    notes: list[str],
) -> Recovered:
    """The newest file cannot be appended to: sealed, or its header is damaged."""
    path = segment_path(directory, newest)
    epoch = end.epoch if end else 1
    topic_id = 0
    base = newest
    if header is not None and header.is_sealed:
        base = _sealed_end(disk, path)
        segments.append(Segment(disk, path, newest, base))
        epoch, topic_id = max(epoch, header.epoch), header.topic_id
    else:
        kept = path.with_name(f"{path.name}.damaged")
        disk.rename(path, kept)
        disk.sync_dir(directory)
        notes.append(f"the header of {path.name} is damaged: the file is kept as {kept.name}")
        if segments:
            topic_id = segments[-1].body.header.topic_id
            epoch = max(epoch, segments[-1].body.header.epoch)
    if end is None or end.durable_end > base:
        epoch += 1
        notes.append(f"epoch {epoch} begins at offset {base}")
    last_timestamp = segments[-1].body.last_timestamp if segments else now_us
    return _continue_in_new_segment(
        disk,
        directory,
        segments,
        epoch=epoch,
        now_us=now_us,
        topic_id=topic_id,
        last_timestamp=last_timestamp,
        notes=notes,
        base_offset=newest,
    )


def _sealed_end(disk: Disk, path: Path) -> int:
    file = disk.open(path, write=False)
    try:
        return read_outline(file, file.size()).end_offset
    except CorruptError as broken:
        raise CorruptError(f"{path}: {broken}") from broken
    finally:
        file.close()


def _continue_in_new_segment(
    disk: Disk,
    directory: Path,
    segments: list[Segment],
    epoch: int,
    now_us: int,
    topic_id: int,
    last_timestamp: int,
    notes: list[str],
    base_offset: int = 0,
) -> Recovered:
    base = segments[-1].end_offset if segments else base_offset
    header = SegmentHeader(0, epoch, base, max(now_us, last_timestamp), topic_id)
    carried: list[Batch] = []
    if segments and segments[-1].base_offset == base:
        # It holds no record, so the new file takes its name; its marks move along.
        emptied = segments.pop()
        for chunk in range(len(emptied.body.index.positions)):
            carried += emptied.read_chunk(chunk)
    active = create_segment(disk, directory, header, carried)
    checksum = carried[-1].header.checksum if carried else header.checksum
    body = SegmentBody(header, ChunkIndex(), active.position, header.created_at)
    at = HEADER_BYTES
    for batch in carried:
        body.index.note(at, base, batch.header.base_timestamp)
        at += batch.header.stored_length
    segments.append(Segment(disk, active.path, base, base, body))
    return Recovered(segments, active, checksum, epoch, notes)


def continue_at(
    disk: Disk, directory: Path, recovered: Recovered, base: int, now_us: int
) -> Recovered:
    """Let a log that ends before `base` go on there, in a new epoch; the same object if it is past.

    Everything below `base` is in the history, so the segments before it go. A crash may leave some
    of them: they do not reach the segment behind them, and go when the log is opened next.
    """
    newest = recovered.segments[-1]
    notes: list[str] = []
    if newest.end_offset < base:
        recovered.active.close_file()
        stamp = max(now_us, newest.body.last_timestamp)
        header = SegmentHeader(
            0, recovered.epoch + 1, base, stamp, recovered.active.header.topic_id
        )
        active = create_segment(disk, directory, header)
        body = SegmentBody(header, ChunkIndex(), active.position, header.created_at)
        old = recovered.segments
        notes.append(
            f"the log ends at offset {newest.end_offset} and its history at {base}: epoch "
            f"{header.epoch} begins at offset {base}"
        )
        segments = [Segment(disk, active.path, base, base, body)]
        recovered = Recovered(segments, active, header.checksum, header.epoch, notes)
    elif newest.base_offset <= base and not _reaches(recovered.segments):
        old = recovered.segments[:-1]
        recovered = Recovered(
            [newest], recovered.active, recovered.checksum, recovered.epoch, notes
        )
    else:
        return recovered
    for segment in old:
        disk.remove(segment.path)
        disk.sync_dir(directory)
    return recovered


def _reaches(segments: list[Segment]) -> bool:
    """Whether the segment before the newest one ends where that begins."""
    try:
        return len(segments) < 2 or segments[-2].body is not None
    except CorruptError:  # records are missing at its end
        return False
