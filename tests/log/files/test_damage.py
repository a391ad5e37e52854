"""Damaged files: what opens is a prefix without a gap, and no corrupt record is ever returned.

Every byte of a small log is changed in turn; the active segment is cut at each of its last bytes,
and garbage or zeros follow it. CorruptError is an answer; a wrong record never is.
"""

from __future__ import annotations

from contextlib import suppress
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.delivery.run import run_of
from penstock.log.files.embedded import EmbeddedLog
from penstock.log.files.layout import read_facts
from penstock.log.files.reader import FileReader
from penstock.log.files.segment import HEADER_BYTES, segment_bases, segment_path, walk_headers
from penstock.log.files.upkeep.verify import verify_log
from penstock.log.format.marks import MARK_IDEMPOTENCY_KEY, Mark
from penstock.log.interface import LogSettings
from penstock.model.errors import CorruptError
from penstock.model.record import Record
from tests.appends import append
from tests.log.files.machine import DIRECTORY, Machine

CUT_BYTES = 400  # the last ones of the active segment, each cut at

Files = dict[str, bytes]


async def publish(log: EmbeddedLog) -> None:
    """Sealed, closed and active segments, with names, headers, marks and an empty payload."""
    for number in range(6):
        await append(log, run_of("orders", [f"sealed {number}".encode()] * 2))
    await log.seal_closed()
    for number in range(2):
        draft = run_of("orders/eu", [b"closed", b""], headers=(("n", str(number)),), publisher="p")
        await append(log, draft, [Mark(MARK_IDEMPOTENCY_KEY, f"key {number}".encode(), 1)])
    log.settings = LogSettings()  # no more rolling
    for number in range(3):
        await append(log, run_of("orders", [f"active {number}".encode()]))


async def read_each(log: EmbeddedLog) -> dict[int, Record]:
    """What is returned at each offset; where CorruptError is raised, nothing."""
    found: dict[int, Record] = {}
    for offset in range(*log.bounds()):
        try:
            batches = await log.read(offset)
        except CorruptError:
            continue
        assert batches, f"nothing is said about offset {offset}"
        for batch in batches:
            for record in batch.records("orders", offset, batch.end_offset):
                found[record.offset] = record
    return found


def files_of(machine: Machine) -> Files:
    files: Files = {}
    for name in machine.disk.list(DIRECTORY):
        file = machine.disk.open(DIRECTORY / name)
        files[name] = file.read(0, file.size())
    return files


def machine_with(files: Files) -> Machine:
    machine = Machine()
    machine.disk.make_dir(DIRECTORY)
    for name, data in files.items():
        machine.disk.open(DIRECTORY / name, create=True).write(0, [data])
    return machine


@pytest.fixture(scope="module")
def files() -> Files:
    """The files of a log whose process was killed."""
    machine = Machine()
    machine.live(publish)
    machine.kill()
    return files_of(machine)


@pytest.fixture(scope="module")
def records(files: Files) -> dict[int, Record]:
    found = machine_with(files).live(read_each)
    assert found is not None and len(found) == 19
    return found


def active_name(files: Files) -> str:
    return max(name for name in files if name.endswith(".log"))


def check(damaged: Files, records: dict[int, Record]) -> dict[int, Record]:
    """Open, read everything, read it as a file reader does, and append."""
    from_outside(damaged, records)
    machine = machine_with(damaged)
    found = machine.live(read_each)
    assert found is not None
    for offset, record in found.items():
        assert record == records[offset], f"offset {offset} is not what was published"

    async def append_one(log: EmbeddedLog) -> tuple[int, bytes]:
        offset = await append(log, run_of("orders", [b"after the damage"]))
        (batch,) = await log.read(offset)
        return offset, batch.payloads(0, 1)[0]

    machine.kill()
    offset, payload = machine.live(append_one) or (-1, b"")
    assert payload == b"after the damage"
    assert offset >= max(found, default=0)
    return found


def from_outside(damaged: Files, records: dict[int, Record]) -> None:
    """A reader of files meets CorruptError or the truth; verification never stumbles."""
    disk = machine_with(damaged).disk
    verify_log(disk, DIRECTORY)
    with suppress(CorruptError):
        reader = FileReader(disk, DIRECTORY)
        first, end = reader.bounds()
        for batch in reader.batches(first, end):
            for record in batch.records("orders", first, end):
                assert record == records[record.offset]


def flipped(data: bytes, at: int, bit: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


@pytest.mark.over_a_second
def test_cutting_the_active_segment_anywhere_leaves_a_prefix(
    files: Files, records: dict[int, Record]
) -> None:
    name = active_name(files)
    whole = files[name]
    disk = machine_with(files).disk
    ends = {
        position + batch.stored_length: batch.end_offset
        for position, batch in walk_headers(disk.open(DIRECTORY / name), len(whole))
    }
    for cut in range(max(len(whole) - CUT_BYTES, HEADER_BYTES), len(whole) + 1):
        found = check({**files, name: whole[:cut]}, records)
        end = max([offset for at, offset in ends.items() if at <= cut], default=int(name[:20]))
        assert list(found) == list(range(end)), f"cut at {cut}"


@pytest.mark.parametrize("tail", [b"\0", bytes(5_000), b"PSB1", b"x" * 333, b"PSB1" + bytes(200)])
def test_what_follows_the_active_segment_changes_nothing(
    files: Files, records: dict[int, Record], tail: bytes
) -> None:
    name = active_name(files)
    assert check({**files, name: files[name] + tail}, records) == records


def test_a_copy_of_a_batch_behind_the_last_one_is_not_taken_for_a_new_one(
    files: Files, records: dict[int, Record]
) -> None:
    name = active_name(files)
    for start in range(HEADER_BYTES, len(files[name]), 8):
        assert check({**files, name: files[name] + files[name][start:]}, records) == records


@pytest.mark.slow
def test_no_flipped_bit_in_any_segment_makes_a_wrong_record(
    files: Files, records: dict[int, Record]
) -> None:
    active = active_name(files)
    for name in sorted(name for name in files if name.endswith(".log")):
        for at in range(len(files[name])):
            damaged = {**files, name: flipped(files[name], at, at % 8)}
            found = check(damaged, records)
            if name == active:
                assert list(found) == list(range(len(found))), f"a gap: {name}, byte {at}"


def test_a_flipped_bit_in_the_active_segment_starts_an_epoch(files: Files) -> None:
    name = active_name(files)

    async def look(log: EmbeddedLog) -> tuple[int, int]:
        return log.epoch, log.bounds().end

    for at in range(0, len(files[name]), 7):
        epoch, end = machine_with({**files, name: flipped(files[name], at, 3)}).live(look) or (0, 0)
        assert epoch == 2 and end < 19, f"byte {at}"


def test_no_damage_of_the_end_file_loses_a_record(files: Files, records: dict[int, Record]) -> None:
    whole = files["end"]
    for at in range(len(whole)):
        assert check({**files, "end": flipped(whole, at, at % 8)}, records) == records
        assert check({**files, "end": whole[:at]}, records) == records
    without = {name: data for name, data in files.items() if name != "end"}
    assert check(without, records) == records


def test_a_damaged_topic_file_is_called_corrupt_whatever_the_damage(files: Files) -> None:
    whole = files["topic.json"]
    read_facts(machine_with(files).disk, DIRECTORY)
    for at in range(len(whole)):
        cut = machine_with({**files, "topic.json": whole[:at]}).disk
        with pytest.raises(CorruptError, match=r"topic\.json is damaged"):
            read_facts(cut, DIRECTORY)
        for bit in range(8):
            disk = machine_with({**files, "topic.json": flipped(whole, at, bit)}).disk
            with pytest.raises(CorruptError, match=r"topic\.json is damaged"):
                read_facts(disk, DIRECTORY)


def test_a_topic_file_of_an_earlier_version_has_no_checksum_and_is_read(files: Files) -> None:
    facts = read_facts(machine_with(files).disk, DIRECTORY)
    earlier = msgspec.json.format(msgspec.json.encode(facts)) + b"\n"
    assert b"checksum" not in earlier
    disk = machine_with({**files, "topic.json": earlier}).disk
    assert read_facts(disk, DIRECTORY) == facts


def test_a_closed_segment_cut_between_two_batches_is_called_corrupt(
    files: Files, records: dict[int, Record]
) -> None:
    disk = machine_with(files).disk
    closed = segment_path(DIRECTORY, segment_bases(disk, DIRECTORY)[-2]).name
    found = check({**files, closed: files[closed][:HEADER_BYTES]}, records)
    assert 0 < len(found) < len(records)


def test_a_segment_missing_in_the_middle_is_called_corrupt(
    files: Files, records: dict[int, Record]
) -> None:
    bases = segment_bases(machine_with(files).disk, DIRECTORY)
    for base in bases[1:-1]:
        name = segment_path(DIRECTORY, base).name
        damaged = {other: data for other, data in files.items() if other != name}
        found = check(damaged, records)
        assert base not in found and bases[-1] in found


@given(
    seed=st.integers(0, 2**32),
    changes=st.integers(1, 20),
    zeroed=st.booleans(),
)
def test_no_pattern_of_damage_makes_a_wrong_record(
    files: Files, records: dict[int, Record], seed: int, changes: int, zeroed: bool
) -> None:
    rng = Random(seed)
    damaged = dict(files)
    for _ in range(changes):
        name = rng.choice(sorted(name for name in damaged if name != "topic.json"))
        data = bytearray(damaged[name])
        at = rng.randrange(len(data) + 1)
        size = rng.choice((1, 8, 64, 512))
        data[at : at + size] = bytes(size) if zeroed else rng.randbytes(size)
        damaged[name] = bytes(data)
    with suppress(CorruptError):  # nothing is left to open: it says so
        check(damaged, records)
