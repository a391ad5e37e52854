"""Checking every byte of a log, without a lock and without changing anything.

Follows no index: walks the files as they are and compares them with what footers, chain and `end`
promise. Says what is wrong and where; an empty list of findings means that nothing is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.log.endfile import read_end
from penstock.log.files import Disk, File
from penstock.log.footer import read_footer
from penstock.log.recovery import scan_segment
from penstock.log.segment import (
    HEADER_BYTES,
    SegmentHeader,
    decode_batches,
    segment_bases,
    segment_path,
    unpack_segment_header,
)
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

    @property
    def problems(self) -> list[Finding]:
        return self.findings or []


OnProgress = Callable[[Path, int], None]  # (segment, its bytes), before it is read


def verify_log(disk: Disk, directory: Path, on_progress: OnProgress | None = None) -> LogReport:
    """Read every byte of every segment of a log."""
    report = LogReport(directory, findings=[])
    bases = segment_bases(disk, directory)
    end = read_end(disk, directory)
    if not bases:
        _find(report, directory, "holds no segment")
        return report
    report.first_offset = report.end_offset = bases[0]
    if end is None:
        _find(report, directory / "end", "missing or damaged; a broker writes it when it opens")
    else:
        report.durable_end = end.durable_end
    epoch = 0
    for base in bases:
        path = segment_path(directory, base)
        if base != report.end_offset:
            _find(
                report, path, f"begins at {base}, the segment before it ends at {report.end_offset}"
            )
        try:
            file = disk.open(path, write=False)
        except FileNotFoundError:
            continue  # trimmed while we looked
        try:
            size = file.size()
            report.segments += 1
            report.bytes += size
            if on_progress is not None:
                on_progress(path, size)
            limit = end.position if end is not None and end.segment_base == base else size
            is_newest = base == bases[-1]
            report.end_offset = base
            epoch = _verify_segment(report, file, path, size, limit, epoch, is_newest=is_newest)
        finally:
            file.close()
    if end is not None and report.end_offset < end.durable_end:
        _find(
            report,
            directory,
            f"records end at {report.end_offset}, but {end.durable_end} was acknowledged",
        )
    return report


def _find(report: LogReport, path: Path, problem: str) -> None:
    assert report.findings is not None
    report.findings.append(Finding(path, problem))


def _verify_segment(
    report: LogReport,
    file: File,
    path: Path,
    size: int,
    durable: int,
    epoch: int,
    *,
    is_newest: bool,
) -> int:
    """Verify one file; returns its epoch."""
    try:
        header = unpack_segment_header(file.read(0, HEADER_BYTES))
    except CorruptError as broken:
        _find(report, path, str(broken))
        return epoch
    if header is None:
        _find(report, path, "the segment header is damaged")
        return epoch
    if header.base_offset != report.end_offset:
        _find(report, path, f"its header says that it begins at {header.base_offset}")
    if header.epoch < epoch:
        _find(report, path, f"epoch {header.epoch} follows epoch {epoch}")
    if header.is_sealed:
        _verify_sealed(report, file, path, size, header)
    else:
        scan = scan_segment(file, header, size)
        report.end_offset = scan.end_offset
        # The newest segment may end in preallocated zeros, or in a write that never finished.
        expected = durable if is_newest else size
        if scan.position < expected:
            _find(report, path, f"at byte {scan.position}: {scan.problem or 'the file ends'}")
    return header.epoch


def _verify_sealed(
    report: LogReport, file: File, path: Path, size: int, header: SegmentHeader
) -> None:
    try:
        footer = read_footer(file, size)
    except CorruptError as broken:
        _find(report, path, str(broken))
        return
    scan = scan_segment(file, header, footer.position)
    report.end_offset = scan.end_offset
    if scan.position < footer.position:
        _find(report, path, f"at byte {scan.position}: {scan.problem}")
        return
    if footer.end_offset != scan.end_offset:
        _find(
            report,
            path,
            f"its footer ends at {footer.end_offset}, its records at {scan.end_offset}",
        )
    for number, entry in enumerate(footer.entries):
        (batch,) = decode_batches(file.read(entry.position, entry.length), entry.position, path)
        h = batch.header
        promised = (entry.base_offset, entry.count, entry.first_timestamp, entry.last_timestamp)
        if promised != (h.base_offset, h.count, h.base_timestamp, h.last_timestamp):
            _find(report, path, f"footer entry {number} does not match its batch")
        for name in set(batch.names(0, h.count)):
            if number not in footer.batches_of(name):
                _find(report, path, f"the footer does not list {name!r} for batch {number}")


def verify_all(
    disk: Disk, directories: list[Path], on_progress: OnProgress | None = None
) -> Iterator[LogReport]:
    for directory in directories:
        yield verify_log(disk, directory, on_progress)
