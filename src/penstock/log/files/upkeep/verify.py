"""Checking every byte of a log, without a lock and without changing anything.

Follows no index: walks the files as they are and compares them with what footers, chain and `end`
promise. Says what is wrong and where; an empty list of findings means that nothing is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from penstock.log.files.disk import Disk, File
from penstock.log.files.endfile import NAME as END_NAME
from penstock.log.files.endfile import End, read_end
from penstock.log.files.layout import FACTS_NAME, read_facts
from penstock.log.files.recovery import scan_segment, set_aside
from penstock.log.files.segment import (
    HEADER_BYTES,
    SegmentHeader,
    decode_batches,
    segment_bases,
    segment_path,
    unpack_segment_header,
)
from penstock.log.format.footer import TRAILER_BYTES, Footer, read_footer
from penstock.model.errors import CorruptError


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong."""

    path: Path
    problem: str

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}"


@dataclass(slots=True)
class LogReport:
    """What was seen in one log."""

    directory: Path
    first_offset: int = 0
    end_offset: int = 0
    durable_end: int = 0
    segments: int = 0
    bytes: int = 0
    findings: list[Finding] | None = None
    set_aside: list[Path] = field(default_factory=list)  # by recovery; no part of the log

    @property
    def problems(self) -> list[Finding]:
        return self.findings or []


OnProgress = Callable[[Path, int], None]  # (segment, its bytes), before it is read


def verify_log(disk: Disk, directory: Path, on_progress: OnProgress | None = None) -> LogReport:
    """Read every byte of every segment of a log. A broker may go on working meanwhile."""
    report = LogReport(directory, findings=[], set_aside=set_aside(disk, directory))
    _verify_facts(report, disk, directory)
    end = _read_end(report, disk, directory)  # before the listing: what it promises is in there
    bases = segment_bases(disk, directory)
    if not bases:
        _find(report, directory, "holds no segment")
        return report
    report.first_offset = report.end_offset = bases[0]
    epoch = 0
    for base in bases:
        path = segment_path(directory, base)
        try:
            file = disk.open(path, write=False)
        except FileNotFoundError:
            report.end_offset = -1  # trimmed while we looked, with all before it
            continue
        try:
            size = file.size()
            if report.end_offset < 0:
                report.first_offset = report.end_offset = base
            if on_progress is not None:
                on_progress(path, size)
            report.segments += 1
            report.bytes += size
            expected = _expected_length(end, base, size, is_newest=base == bases[-1])
            epoch = _verify_segment(
                report, file, path, size=size, base=base, expected=expected, epoch=epoch
            )
        finally:
            file.close()
    if end is not None and report.end_offset < end.durable_end:
        _find(
            report,
            directory,
            f"records end at {report.end_offset}, but {end.durable_end} was acknowledged",
        )
    return report


def _verify_facts(report: LogReport, disk: Disk, directory: Path) -> None:
    if FACTS_NAME in disk.list(directory):
        try:
            read_facts(disk, directory)
        except CorruptError as broken:
            _find(report, directory / FACTS_NAME, str(broken))


def _read_end(report: LogReport, disk: Disk, directory: Path) -> End | None:
    path = directory / END_NAME
    try:
        end = read_end(disk, directory)
    except CorruptError as broken:
        _find(report, path, f"at byte 0: {broken}")
        return None
    if end is None:
        _find(report, path, "at byte 0: missing or damaged; a broker writes it when it opens")
    else:
        report.durable_end = end.durable_end
    return end


def _expected_length(end: End | None, base: int, size: int, *, is_newest: bool) -> int:
    """How many bytes of a segment that is not sealed must be good."""
    if not is_newest or end is None or base < end.segment_base:
        return size
    # The newest may end in preallocated zeros, or in a write that never finished.
    return end.position if base == end.segment_base else HEADER_BYTES


def _find(report: LogReport, path: Path, problem: str) -> None:
    assert report.findings is not None
    report.findings.append(Finding(path, problem))


def _verify_segment(
    report: LogReport, file: File, path: Path, size: int, base: int, expected: int, epoch: int
) -> int:
    """Verify one file; returns its epoch."""
    if base != report.end_offset:
        _find(
            report,
            path,
            f"at byte 0: begins at {base}, the segment before it ends at {report.end_offset}",
        )
    report.end_offset = base
    try:
        header = unpack_segment_header(file.read(0, HEADER_BYTES))
    except CorruptError as broken:
        _find(report, path, f"at byte 0: {broken}")
        return epoch
    if header is None:
        _find(report, path, "at byte 0: the segment header is damaged")
        return epoch
    if header.base_offset != base:
        _find(report, path, f"at byte 0: its header says that it begins at {header.base_offset}")
        return epoch
    if header.epoch < epoch:
        _find(report, path, f"at byte 0: epoch {header.epoch} follows epoch {epoch}")
    if header.is_sealed:
        _verify_sealed(report, file, path, size, header)
    else:
        _verify_batches(report, file, path, header=header, limit=size, expected=expected)
    return header.epoch


def _verify_batches(
    report: LogReport, file: File, path: Path, header: SegmentHeader, limit: int, expected: int
) -> bool:
    """Walk the batches up to `limit`; False if they end before `expected`."""
    try:
        scan = scan_segment(file, header, limit)
    except CorruptError as newer:
        _find(report, path, str(newer))
        return False
    report.end_offset = scan.end_offset
    if scan.position >= expected:
        return True
    _find(report, path, f"at byte {scan.position}: {scan.problem or 'the file ends'}")
    return False


def _verify_sealed(
    report: LogReport, file: File, path: Path, size: int, header: SegmentHeader
) -> None:
    try:
        footer = read_footer(file, size)
    except CorruptError as broken:
        _find(report, path, f"at byte {max(size - TRAILER_BYTES, 0)}: {broken}")
        return
    if _verify_batches(
        report, file, path, header=header, limit=footer.position, expected=footer.position
    ):
        for problem in _wrong_in_footer(file, path, footer, report.end_offset):
            _find(report, path, f"at byte {footer.position}: {problem}")


def _wrong_in_footer(file: File, path: Path, footer: Footer, end_offset: int) -> Iterator[str]:
    """Where the indexes do not say what the batches do. The batches themselves are good."""
    if footer.end_offset != end_offset:
        yield f"its footer ends at {footer.end_offset}, its records at {end_offset}"
    listed: dict[int, set[bytes]] = {}
    for name, posting in zip(footer.names, footer.postings, strict=True):
        for number in posting:
            listed.setdefault(number, set()).add(name)
    position = HEADER_BYTES
    stamps = []
    for number, entry in enumerate(footer.entries):
        if entry.position != position or position + entry.length > footer.position:
            yield f"footer entry {number} points to byte {entry.position}"
            return
        (batch,) = decode_batches(file.read(position, entry.length), position, path)
        h = batch.header
        promised = (entry.base_offset, entry.count, entry.first_timestamp, entry.last_timestamp)
        if promised != (h.base_offset, h.count, h.base_timestamp, h.last_timestamp):
            yield f"footer entry {number} does not match its batch"
        names = {name.encode() for name in batch.names(0, h.count)}
        for name in sorted(names ^ listed.pop(number, set())):
            verb = "does not list" if name in names else "lists"
            yield f"the footer {verb} {name.decode()!r} for batch {number}"
        position += entry.length
        stamps += [h.base_timestamp, h.last_timestamp]
    if position != footer.position or listed:
        yield "the footer does not list all batches, or more than there are"
    if stamps and (stamps[0], stamps[-1]) != (footer.first_timestamp, footer.last_timestamp):
        yield "the footer's times do not match its batches"


def verify_all(
    disk: Disk, directories: list[Path], on_progress: OnProgress | None = None
) -> Iterator[LogReport]:
    for directory in directories:
        yield verify_log(disk, directory, on_progress)
