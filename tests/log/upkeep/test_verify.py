"""Does verification find every kind of damage, say where, and find nothing in a good log?"""

from __future__ import annotations

import asyncio
import struct
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.core.delivery.run import run_of
from penstock.log.files.disk import RealDisk
from penstock.log.files.endfile import End, read_end
from penstock.log.files.segment import Segment, segment_bases, segment_path
from penstock.log.files.upkeep.verify import LogReport, verify_all, verify_log
from penstock.log.format.footer import Footer, encode_footer, read_footer
from penstock.log.format.marks import MARK_WILL, Mark
from penstock.log.interface import OS, LogSettings
from penstock.model.limits import KIB
from tests.appends import append
from tests.log.files.faulty_disk import FaultyDisk
from tests.log.files.stores import StoreWorld, open_world
from tests.log.format.bare_format import crc32c

SMALL = LogSettings(segment_bytes=16 * KIB)


def make_log(root: Path) -> Path:
    """A closed log: sealed segments, then closed ones, then the newest; the directory."""

    async def main() -> Path:
        async with open_world(root) as world:
            log = await world.create(SMALL)
            for i in range(50):
                await append(log, run_of(f"n/{i % 3}", [bytes([i]) * 1_000, b"small"]))
                world.clock.advance(1)
                if i == 25:
                    await log.seal_closed()
            await append(log, run_of("n", []), [Mark(MARK_WILL, b"w")])
            return world.directory

    return asyncio.run(main())


@pytest.fixture(scope="module")
def golden_log(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of such a log, to be put anywhere."""
    directory = make_log(tmp_path_factory.mktemp("verify"))
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture
def directory(golden_log: dict[str, bytes], tmp_path: Path) -> Path:
    for name, data in golden_log.items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


def findings(directory: Path) -> list[str]:
    return [str(finding) for finding in verify_log(RealDisk(), directory).problems]


def segments(directory: Path) -> tuple[Path, Path, Path]:
    """A sealed, a closed and the newest segment."""
    paths = [segment_path(directory, base) for base in segment_bases(RealDisk(), directory)]
    headers = [Segment(RealDisk(), path, int(path.stem), 0).body.header for path in paths]
    assert headers[0].is_sealed and not headers[-2].is_sealed and len(paths) >= 4
    return paths[0], paths[-2], paths[-1]


def flip(path: Path, position: int, mask: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= mask
    path.write_bytes(data)


def test_a_good_log_is_clean_and_its_report_tells_what_was_seen(directory: Path) -> None:
    seen: list[tuple[Path, int]] = []
    report = verify_log(RealDisk(), directory, lambda path, size: seen.append((path, size)))
    assert report.problems == []
    assert (report.first_offset, report.end_offset, report.durable_end) == (0, 100, 100)
    paths = [segment_path(directory, base) for base in segment_bases(RealDisk(), directory)]
    assert [path for path, _ in seen] == paths and report.segments == len(paths)
    assert report.bytes == sum(path.stat().st_size for path in paths) == sum(s for _, s in seen)
    reports = list(verify_all(RealDisk(), [directory, directory / "nothing"]))
    assert [bool(r.problems) for r in reports] == [False, True]


def test_verifying_changes_nothing(directory: Path, golden_log: dict[str, bytes]) -> None:
    verify_log(RealDisk(), directory)
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == golden_log


@pytest.mark.parametrize("which", [0, 1, 2], ids=["sealed", "closed", "newest"])
def test_any_changed_byte_of_any_segment_is_found_with_its_place(
    directory: Path, which: int
) -> None:
    path = segments(directory)[which]
    whole = path.read_bytes()
    positions = {*range(0, 64, 3), *range(64, 160, 5), *range(0, len(whole), 97), len(whole) - 1}
    starts = batch_starts(path)
    body = Segment(RealDisk(), path, int(path.stem), 0).body
    for position in sorted(positions):
        flip(path, position)
        first, *_ = findings(directory)
        place = max(start for start in starts if start <= position)
        if body.header.is_sealed and position >= body.length:
            place = len(whole) - 64
        assert first.startswith(f"{path}: at byte {place}: "), (position, first)
        path.write_bytes(whole)
    assert findings(directory) == []


def batch_starts(path: Path) -> list[int]:
    """Where the header and each batch begin."""
    length = Segment(RealDisk(), path, int(path.stem), 0).body.length
    data = path.read_bytes()
    starts = [0]
    at = 64
    while at < length:
        starts.append(at)
        columns, _, blob = struct.unpack_from("<III", data, at + 44)
        at += 96 + columns + (blob + 7) // 8 * 8
    assert at == length
    return starts


@pytest.mark.parametrize("which", [0, 1, 2], ids=["sealed", "closed", "newest"])
def test_a_segment_that_ends_early_is_found(directory: Path, which: int) -> None:
    path = segments(directory)[which]
    whole = path.read_bytes()
    boundaries = batch_starts(path)[1:]
    for length in (0, 1, 63, 64, 100, len(whole) // 2, len(whole) - 65, len(whole) - 1):
        path.write_bytes(whole[:length])
        first, *_ = findings(directory)
        if which == 1 and length in boundaries:  # whole batches are missing: the next one tells
            assert "the segment before it ends at" in first
        else:
            assert first.startswith(f"{path}: at byte "), (length, first)
        path.write_bytes(whole)


@pytest.mark.parametrize("which", [0, 1], ids=["sealed", "closed"])
@pytest.mark.parametrize("extra", [b"\0", bytes(64), b"garbage"])
def test_bytes_behind_a_finished_segment_are_found(
    directory: Path, which: int, extra: bytes
) -> None:
    path = segments(directory)[which]
    path.write_bytes(path.read_bytes() + extra)
    assert findings(directory)[0].startswith(f"{path}: at byte ")


@pytest.mark.parametrize("extra", [bytes(100_000), b"the rest of a write", b"PSB1" + bytes(200)])
def test_the_newest_segment_may_end_in_zeros_or_an_unfinished_write(
    directory: Path, extra: bytes
) -> None:
    newest = segments(directory)[2]
    newest.write_bytes(newest.read_bytes() + extra)
    assert findings(directory) == []


def test_a_missing_segment_is_found_where_it_is_missing(directory: Path) -> None:
    bases = segment_bases(RealDisk(), directory)
    segment_path(directory, bases[1]).unlink()
    after = segment_path(directory, bases[2])
    assert findings(directory) == [
        f"{after}: at byte 0: begins at {bases[2]}, the segment before it ends at {bases[1]}"
    ]


def test_a_missing_newest_segment_is_found(directory: Path) -> None:
    newest = segments(directory)[2]
    newest.unlink()
    assert any("but 100 was acknowledged" in finding for finding in findings(directory))


def test_an_exchanged_segment_is_found(directory: Path) -> None:
    bases = segment_bases(RealDisk(), directory)
    first, second = (segment_path(directory, base) for base in bases[:2])
    second.write_bytes(first.read_bytes())
    assert f"{second}: at byte 0: its header says that it begins at 0" in findings(directory)


def test_batches_of_another_life_of_the_file_are_found(directory: Path) -> None:
    _, closed, _ = segments(directory)
    starts = batch_starts(closed)
    data = closed.read_bytes()
    one, two, three = starts[1:4]
    closed.write_bytes(data[:one] + data[two:three] + data[two:])  # the second one twice
    assert findings(directory)[0] == (
        f"{closed}: at byte {one}: batch does not chain to the one before it"
    )


@pytest.mark.parametrize("field", [8, 16], ids=["chain", "offset"])
def test_a_good_batch_that_does_not_belong_there_is_found(directory: Path, field: int) -> None:
    _, closed, _ = segments(directory)
    data = bytearray(closed.read_bytes())
    last = batch_starts(closed)[-1]
    data[last + field] ^= 1
    data[last + 92 : last + 96] = crc32c(bytes(data[last : last + 92])).to_bytes(4, "little")
    closed.write_bytes(data)
    assert findings(directory)[0] == (
        f"{closed}: at byte {last}: batch does not chain to the one before it"
    )


async def test_a_falling_epoch_is_found(world: StoreWorld) -> None:
    log = await world.create(SMALL)
    for _ in range(20):
        await append(log, run_of("n", [bytes(2_000)]))
    await log.close()
    first = segment_path(world.directory, 0)
    header = bytearray(first.read_bytes()[:64])
    header[12] = 9
    header[60:64] = crc32c(bytes(header[:60])).to_bytes(4, "little")
    first.write_bytes(bytes(header) + first.read_bytes()[64:])
    assert any("epoch 1 follows epoch 9" in problem for problem in world.problems())


def test_a_missing_damaged_or_exaggerated_end_is_found(directory: Path) -> None:
    path = directory / "end"
    whole = path.read_bytes()
    end = read_end(RealDisk(), directory)
    assert end is not None
    path.unlink()
    assert findings(directory)[0].startswith(f"{path}: at byte 0: missing or damaged")
    path.write_bytes(whole[:20])
    assert findings(directory)[0].startswith(f"{path}: at byte 0: missing or damaged")
    newer = bytearray(whole)
    newer[4] = 2
    newer[40:] = crc32c(bytes(newer[:40])).to_bytes(4, "little")
    path.write_bytes(newer)
    assert "version 2" in findings(directory)[0]
    path.write_bytes(replace(end, durable_end=101).pack())
    assert any("records end at 100, but 101 was acknowledged" in f for f in findings(directory))
    path.write_bytes(replace(end, position=end.position + 8).pack())
    assert findings(directory)[0].endswith(f"at byte {end.position}: the file ends")


def test_a_newer_version_is_a_finding_not_a_crash(directory: Path) -> None:
    for path, at in ((segments(directory)[1], 64), (segments(directory)[0], 64)):
        whole = path.read_bytes()
        header = bytearray(whole[at : at + 96])
        header[4] = 2
        header[92:] = crc32c(bytes(header[:92])).to_bytes(4, "little")
        path.write_bytes(whole[:at] + bytes(header) + whole[at + 96 :])
        assert f"{path}: at byte {at}: " in findings(directory)[0]
        assert "version 2" in findings(directory)[0]
        path.write_bytes(whole)


def test_damaged_settings_are_found(directory: Path) -> None:
    path = directory / "topic.json"
    path.write_bytes(b'{"topic": "Ord')
    assert findings(directory)[0].startswith(f"{path}: ")


def with_footer(path: Path, change: Callable[[Footer], Footer]) -> None:
    """Exchange the footer of a sealed segment for one that is whole and says something else."""
    file = RealDisk().open(path, write=False)
    footer = read_footer(file, file.size())
    file.close()
    data = path.read_bytes()[: footer.position]
    path.write_bytes(data + encode_footer(change(footer)))


def first_entry(**changes: int) -> Callable[[Footer], Footer]:
    def change(footer: Footer) -> Footer:
        entries = [replace(footer.entries[0], **changes), *footer.entries[1:]]
        return replace(footer, entries=entries)

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda f: replace(f, end_offset=f.end_offset + 1), "its footer ends at"),
        (lambda f: replace(f, last_timestamp=f.last_timestamp + 1), "times do not match"),
        (lambda f: replace(f, entries=f.entries[:-1]), "the footer does not list all batches"),
        (first_entry(base_offset=1), "footer entry 0 does not match"),
        (first_entry(count=1), "footer entry 0 does not match"),
        (first_entry(first_timestamp=1), "footer entry 0 does not match"),
        (first_entry(last_timestamp=1), "footer entry 0 does not match"),
        (first_entry(position=72), "footer entry 0 points to byte 72"),
        (first_entry(length=1 << 30), "footer entry 0 points to byte 64"),
        (
            lambda f: replace(f, names=f.names[1:], postings=f.postings[1:]),
            "the footer does not list 'n/0' for batch 0",
        ),
        (
            lambda f: replace(f, names=[*f.names, b"z"], postings=[*f.postings, array("I", [0])]),
            "the footer lists 'z' for batch 0",
        ),
        (
            lambda f: replace(f, names=[*f.names, b"z"], postings=[*f.postings, array("I", [7])]),
            "more than there are",
        ),
    ],
)
def test_an_index_that_does_not_tell_the_truth_is_found(
    directory: Path, change: Callable[[Footer], Footer], says: str
) -> None:
    sealed = segments(directory)[0]
    with_footer(sealed, change)
    first, *_ = findings(directory)
    assert first.startswith(f"{sealed}: at byte ") and says in first


# While a broker works


async def test_a_log_in_use_is_clean_at_any_moment(world: StoreWorld) -> None:
    log = await world.create(replace(SMALL, durability=OS))
    reports: list[LogReport] = []
    stop = asyncio.Event()

    async def look() -> None:
        while not stop.is_set():
            reports.append(await asyncio.to_thread(verify_log, RealDisk(), world.directory))

    looking = asyncio.ensure_future(look())
    for i in range(300):
        await append(log, run_of(f"n/{i % 5}", [bytes(1_000)]))
        if i % 20 == 0:
            await log.seal_closed()
        if i % 50 == 0:
            await log.trim(None, 60 * KIB)
            await asyncio.sleep(0.005)
    stop.set()
    await looking
    assert [str(f) for report in reports for f in report.problems] == []
    assert len(reports) > 3


async def test_segments_trimmed_under_the_verification_are_no_finding(world: StoreWorld) -> None:
    log = await world.create(SMALL)
    for _ in range(40):
        await append(log, run_of("n", [bytes(2_000)]))
    disk = FaultyDisk(RealDisk())
    bases = segment_bases(RealDisk(), world.directory)
    gate = disk.hold("open", segment_path(world.directory, bases[1]).name)
    looking = asyncio.ensure_future(asyncio.to_thread(verify_log, disk, world.directory))
    await asyncio.to_thread(gate.arrived.wait, 60)
    await log.trim(None, 40 * KIB)
    assert log.bounds().first > bases[1]
    gate.opened.set()
    report = await looking
    assert report.problems == []
    assert (report.first_offset, report.end_offset) == log.bounds()


async def test_a_segment_begun_under_the_verification_is_no_finding(world: StoreWorld) -> None:
    log = await world.create(SMALL)
    await append(log, run_of("n", [bytes(15_000)]))
    end = read_end(RealDisk(), world.directory)
    assert end is not None
    await append(log, run_of("n", [bytes(15_000)]))
    # As if `end` had been read just before the roll, and the batch be on its way.
    (world.directory / "end").write_bytes(end.pack())
    newest = segment_path(world.directory, 1)
    newest.write_bytes(newest.read_bytes()[:200])
    assert world.problems() == []


def test_a_log_that_has_lost_all_its_segments_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "end").write_bytes(End(1, 5, 0, 64).pack())
    assert findings(tmp_path) == [f"{tmp_path}: holds no segment"]
