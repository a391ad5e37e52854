"""Are the bytes on disk exactly those of docs/FORMATS.md, today and in every later release?

Every vector is checked three times: our encoder writes these bytes from the described content, our
decoder reads that content from them, and a second reader written from the document alone agrees.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.log.files.active import create_segment
from penstock.log.files.disk import RealDisk
from penstock.log.files.endfile import End, unpack_end
from penstock.log.files.layout import TopicFacts, decode_facts, encode_facts
from penstock.log.files.recovery import scan_segment
from penstock.log.files.segment import (
    HEADER_BYTES,
    Segment,
    SegmentHeader,
    segment_path,
    unpack_segment_header,
)
from penstock.log.files.upkeep.seal import seal_segment
from penstock.log.format.batch import Batch, decode_batch
from penstock.log.format.batch_bytes import unpack_header
from penstock.log.format.end_bytes import CLEAN, FENCED, LOOSE
from penstock.log.format.marks import NO_RECORD
from penstock.log.interface import LogSettings
from penstock.model.errors import CorruptError
from tests.log.format.bare_format import (
    BareMark,
    BareRecord,
    crc32c,
    parse_batch,
    parse_end,
    parse_segment,
    parse_segment_header,
)
from tests.log.format.golden_cases import (
    BATCH_CASES,
    EXAMPLE_MARKS,
    EXAMPLE_RECORDS,
    GOLDEN,
    PREV,
    SEGMENT_RECORDS,
    BatchCase,
    T,
    example_batches,
    golden_bytes,
    segment_batches,
)

FORMATS = Path(__file__).parents[3] / "docs" / "FORMATS.md"

SEGMENT_HEADER = SegmentHeader(0, 2, 100, T, 42)
EXAMPLE_HEADER = SegmentHeader(0, 1, 0, T, 7)
ENDS = {
    "end-open": End(2, 104, 100, 712),
    "end-clean": End(2, 104, 100, 712, CLEAN),
    "end-loose": End(2, 104, 100, 712, LOOSE),
    "end-fenced": End(0xFFFF_FFFE, 2**63, 2**62, 2**40, FENCED),
}
SEGMENT_CASES = ("segment-header", "segment-active", "segment-sealed", "example")

batch_case = pytest.mark.parametrize("case", BATCH_CASES, ids=lambda case: case.name)


def found_records(batch: Batch) -> list[BareRecord]:
    return [
        BareRecord(
            r.offset, r.timestamp, r.name, r.payload, r.headers, r.publisher, r.qos, r.retain,
            r.expires_at, r.kind,
        )
        for r in batch.records("t", 0, 2**62)
    ]  # fmt: skip


def found_marks(batch: Batch) -> list[BareMark]:
    return [
        BareMark(m.kind, m.key, None if m.index == NO_RECORD else m.index) for m in batch.marks()
    ]


def test_every_vector_is_listed_and_none_is_forgotten() -> None:
    listed = {case.name for case in BATCH_CASES} | set(ENDS) | set(SEGMENT_CASES)
    assert {path.stem for path in GOLDEN.glob("*.hex")} == listed


def test_the_second_reader_computes_crc32c_as_published() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # RFC 3720, appendix B.4 and others
    assert crc32c(bytes(32)) == 0x8A9136AA


@batch_case
def test_encoder_writes_exactly_the_golden_batch(case: BatchCase) -> None:
    assert b"".join(case.build().to_bytes()).hex(" ", 8) == golden_bytes(case.name).hex(" ", 8)


@batch_case
def test_decoder_reads_exactly_the_described_content(case: BatchCase) -> None:
    data = golden_bytes(case.name)
    batch = decode_batch(data, 0)
    h = batch.header
    assert (h.epoch, h.base_offset, h.prev_checksum, h.flags) == (3, 7, PREV, case.flags)
    assert h.stored_length == len(data)
    assert found_records(batch) == case.records
    assert found_marks(batch) == case.marks
    if case.records:
        stamps = [r.timestamp for r in case.records]
        assert (h.base_timestamp, h.last_timestamp) == (stamps[0], stamps[-1])


@batch_case
def test_the_document_alone_is_enough_to_read_a_batch(case: BatchCase) -> None:
    data = golden_bytes(case.name)
    found = parse_batch(data, 0)
    assert (found.epoch, found.base_offset, found.prev_checksum) == (3, 7, PREV)
    assert (found.flags, found.length) == (case.flags, len(data))
    assert (found.records, found.marks) == (case.records, case.marks)


@batch_case
def test_a_batch_is_found_at_any_position_and_trailing_bytes_are_not_touched(
    case: BatchCase,
) -> None:
    data = bytes(8) + golden_bytes(case.name) + b"PSB1 and more"
    for buffer in (data, memoryview(data)):
        batch = decode_batch(buffer, 8)
        assert found_records(batch) == case.records


@batch_case
def test_a_batch_cut_at_any_byte_is_refused(case: BatchCase) -> None:
    data = golden_bytes(case.name)
    for length in range(len(data)):
        with pytest.raises(CorruptError):
            decode_batch(data[:length], 0)


@batch_case
def test_a_batch_with_any_one_bit_flipped_is_refused(case: BatchCase) -> None:
    data = bytearray(golden_bytes(case.name))
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptError):
            decode_batch(bytes(data), 0)
        data[bit // 8] ^= 1 << bit % 8


@pytest.mark.parametrize("name", ENDS)
def test_end_file_in_both_directions_and_by_the_document(name: str) -> None:
    data, end = golden_bytes(name), ENDS[name]
    assert end.pack() == data
    assert unpack_end(data) == end
    assert parse_end(data) == {
        "flags": end.flags,
        "epoch": end.epoch,
        "durable_end": end.durable_end,
        "segment_base": end.segment_base,
        "position": end.position,
    }


@pytest.mark.parametrize("name", ENDS)
def test_a_damaged_or_cut_end_file_counts_as_absent(name: str) -> None:
    data = bytearray(golden_bytes(name))
    assert all(unpack_end(bytes(data[:length])) is None for length in range(len(data)))
    assert unpack_end(bytes(data) + b"\0") is None
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        assert unpack_end(bytes(data)) is None
        data[bit // 8] ^= 1 << bit % 8


def test_segment_header_in_both_directions_and_by_the_document() -> None:
    data = golden_bytes("segment-header")
    assert SEGMENT_HEADER.pack() == data
    assert unpack_segment_header(data) == SEGMENT_HEADER
    bare = parse_segment_header(data)
    assert (bare.flags, bare.epoch, bare.base_offset) == (0, 2, 100)
    assert (bare.created_at, bare.topic_id, bare.checksum) == (T, 42, SEGMENT_HEADER.checksum)


def test_a_damaged_segment_header_is_none() -> None:
    data = bytearray(golden_bytes("segment-header"))
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        assert unpack_segment_header(bytes(data)) is None
        data[bit // 8] ^= 1 << bit % 8


def write_segment(directory: Path, header: SegmentHeader, batches: list[Batch]) -> Path:
    """As a broker writes it: the header when the segment begins, then batch after batch."""
    active = create_segment(RealDisk(), directory, header)
    for batch in batches:
        buffers = batch.to_bytes()
        length = sum(map(len, buffers))
        active.write(buffers, length, 1 << 20)
        active.sync()
        active.position += length
    active.finish()
    active.close_file()
    return active.path


@pytest.mark.parametrize(
    ("name", "header", "batches"),
    [
        ("segment-active", SEGMENT_HEADER, segment_batches(SEGMENT_HEADER.checksum)),
        ("example", EXAMPLE_HEADER, example_batches(EXAMPLE_HEADER.checksum)),
    ],
)
def test_a_whole_active_segment_is_written_exactly(
    tmp_path: Path, name: str, header: SegmentHeader, batches: list[Batch]
) -> None:
    path = write_segment(tmp_path, header, batches)
    assert path.read_bytes().hex(" ", 8) == golden_bytes(name).hex(" ", 8)
    assert path == segment_path(tmp_path, header.base_offset)


def test_a_whole_active_segment_is_read_by_us_and_by_the_document(tmp_path: Path) -> None:
    data = golden_bytes("segment-active")
    path = tmp_path / f"{100:020d}.log"
    path.write_bytes(data)
    segment = Segment(RealDisk(), path, 100, 104)
    assert segment.body.header == SEGMENT_HEADER
    assert segment.body.length == len(data)
    batches = segment.read_chunk(0)
    assert [r for b in batches for r in found_records(b)] == SEGMENT_RECORDS
    marks = [found_marks(b) for b in batches]
    assert marks == [[], [BareMark(5, b"will-9", None)], [BareMark(3, b"key", 2)]]
    bare = parse_segment(data)
    assert [r for b in bare.batches for r in b.records] == SEGMENT_RECORDS
    assert [b.marks for b in bare.batches] == marks
    file = RealDisk().open(path, write=False)
    scan = scan_segment(file, SEGMENT_HEADER, len(data))
    file.close()
    assert (scan.position, scan.end_offset, scan.problem) == (len(data), 104, "")


def test_a_whole_sealed_segment_is_written_exactly(tmp_path: Path) -> None:
    path = tmp_path / f"{100:020d}.log"
    path.write_bytes(golden_bytes("segment-active"))
    seal_segment(Segment(RealDisk(), path, 100, 104))
    assert path.read_bytes().hex(" ", 8) == golden_bytes("segment-sealed").hex(" ", 8)


def test_a_whole_sealed_segment_is_read_by_us_and_by_the_document(tmp_path: Path) -> None:
    data = golden_bytes("segment-sealed")
    path = tmp_path / f"{100:020d}.log"
    path.write_bytes(data)
    sealed = Segment(RealDisk(), path, 100, 104)
    assert sealed.body.header == SegmentHeader(1, 2, 100, T, 42)
    footer = sealed.read_footer()
    assert (footer.end_offset, footer.first_timestamp, footer.last_timestamp) == (
        104,
        T + 10,
        T + 30,
    )
    assert footer.batches_of("orders/1") == footer.batches_of("orders/2") == [0]
    assert footer.batches_of("till-7") == footer.batches_of("orders") == []
    (batch,) = sealed.read_chunk(0)
    assert found_records(batch) == SEGMENT_RECORDS
    marks = [BareMark(5, b"will-9", None), BareMark(3, b"key", 3)]
    assert found_marks(batch) == marks
    bare = parse_segment(data)
    assert bare.flags == 1 and len(bare.batches) == 1
    assert bare.batches[0].records == SEGMENT_RECORDS and bare.batches[0].marks == marks
    assert bare.footer is not None
    assert bare.footer.postings == {"orders/1": [0], "orders/2": [0]}
    length = bare.batches[0].length
    assert bare.footer.entries == [(100, HEADER_BYTES, T + 10, T + 30, 4, length)]
    assert bare.footer.position == footer.position == HEADER_BYTES + length


def test_a_newer_version_is_refused_with_the_way_out_and_never_cut_away() -> None:
    def with_version(data: bytes, at: int, checksum_at: int) -> bytes:
        changed = bytearray(data)
        changed[at] = 2
        changed[checksum_at : checksum_at + 4] = crc32c(bytes(changed[:checksum_at])).to_bytes(
            4, "little"
        )
        return bytes(changed)

    batch = golden_bytes("batch-one-record")
    newer = with_version(batch[:96], 4, 92) + batch[96:]
    with pytest.raises(CorruptError, match=r"version 2.*the release that wrote it"):
        unpack_header(newer, 0)
    with pytest.raises(CorruptError, match="version 2"):
        unpack_segment_header(with_version(golden_bytes("segment-header"), 8, 60))
    with pytest.raises(CorruptError, match="version 2"):
        unpack_end(with_version(golden_bytes("end-clean"), 4, 40))


def test_the_worked_example_of_the_document_is_the_golden_one() -> None:
    block = re.search(r"```example\n(.*?)```", FORMATS.read_text(encoding="utf-8"), re.S)
    assert block is not None, "docs/FORMATS.md has a block ```example"
    data = bytearray()
    for line in block[1].splitlines():
        found = re.match(r"([0-9]+)  ((?:[0-9a-f]{2} ?)+)  ", line)
        if found is None:
            assert not line.strip() or line.startswith("#"), line
            continue
        assert int(found[1]) == len(data), f"position of: {line}"
        data += bytes.fromhex(found[2])
    assert bytes(data).hex(" ", 8) == golden_bytes("example").hex(" ", 8)
    bare = parse_segment(bytes(data))
    assert bare.batches[0].records == EXAMPLE_RECORDS
    assert bare.batches[0].marks == EXAMPLE_MARKS


TOPIC_JSON = b"""{
  "topic": "Orders",
  "settings": {
    "durability": "fsync",
    "retention_age_s": 604800.0,
    "retention_bytes": null,
    "segment_bytes": 33554432,
    "segment_age_s": 86400.0
  },
  "checksum": "5badfba3"
}
"""


def test_topic_json_is_written_and_read_exactly() -> None:
    facts = TopicFacts("Orders", LogSettings())
    assert encode_facts(facts) == TOPIC_JSON
    assert decode_facts(TOPIC_JSON) == facts


def test_topic_json_of_a_later_version_may_know_more() -> None:
    start = TOPIC_JSON[: TOPIC_JSON.index(b',\n  "checksum"')] + b',\n  "later": 1'
    later = start + b',\n  "checksum": "%08x"\n}\n' % crc32c(start)
    assert decode_facts(later) == TopicFacts("Orders", LogSettings())
