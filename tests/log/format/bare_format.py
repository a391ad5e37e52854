"""A second reader of the files, written from docs/FORMATS.md alone: struct and nothing of ours.

If it and penstock.log agree on the golden vectors, the document says what the code does. It is
slow, checks everything the document tells a reader to check, and raises ValueError when something
does not hold.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

NOBODY = 0xFFFF_FFFF


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    value = 0xFFFF_FFFF
    for byte in data:
        value = (value >> 8) ^ _TABLE[(value ^ byte) & 0xFF]
    return value ^ 0xFFFF_FFFF


def lz4_block(data: bytes, raw_length: int) -> bytes:
    """Decompress an LZ4 block (the block format, no frame)."""
    out = bytearray()
    at = 0
    while at < len(data):
        token = data[at]
        at += 1
        length, at = _lz4_length(data, at, token >> 4)
        out += data[at : at + length]
        at += length
        if at >= len(data):
            break
        back = data[at] | data[at + 1] << 8
        length, at = _lz4_length(data, at + 2, token & 15)
        for _ in range(length + 4):
            out.append(out[-back])
    check(len(out) == raw_length, "raw length")
    return bytes(out)


def _lz4_length(data: bytes, at: int, length: int) -> tuple[int, int]:
    if length == 15:
        while True:
            length += data[at]
            at += 1
            if data[at - 1] != 255:
                break
    return length, at


def check(is_true: bool, what: str) -> None:
    if not is_true:
        raise ValueError(what)


def u32s(data: bytes, at: int, count: int) -> list[int]:
    return list(struct.unpack_from(f"<{count}I", data, at))


def i64s(data: bytes, at: int, count: int) -> list[int]:
    return list(struct.unpack_from(f"<{count}q", data, at))


@dataclass
class BareRecord:
    offset: int
    timestamp: int
    name: str
    payload: bytes
    headers: tuple[tuple[str, str], ...]
    publisher: str
    qos: int
    retain: bool
    expires_at: int | None
    kind: int


@dataclass
class BareMark:
    kind: int
    key: bytes
    index: int | None


@dataclass
class BareBatch:
    epoch: int
    base_offset: int
    prev_checksum: int
    checksum: int
    flags: int
    compression: int
    base_timestamp: int
    last_timestamp: int
    length: int  # of the whole batch in the file
    records: list[BareRecord]
    marks: list[BareMark]


@dataclass
class BareFooter:
    position: int
    end_offset: int
    first_timestamp: int
    last_timestamp: int
    entries: list[tuple[int, int, int, int, int, int]]
    postings: dict[str, list[int]]


@dataclass
class BareSegment:
    flags: int
    epoch: int
    base_offset: int
    created_at: int
    topic_id: int
    checksum: int
    batches: list[BareBatch] = field(default_factory=list)
    footer: BareFooter | None = None


def parse_end(data: bytes) -> dict[str, int]:
    check(len(data) == 44 and data[0:4] == b"PEND", "end magic")
    version, flags, epoch, zero = struct.unpack_from("<HHII", data, 4)
    check(version == 1 and zero == 0, "end version")
    durable_end, segment_base, position = struct.unpack_from("<QQQ", data, 16)
    check(u32s(data, 40, 1) == [crc32c(data[:40])], "end checksum")
    return {
        "flags": flags,
        "epoch": epoch,
        "durable_end": durable_end,
        "segment_base": segment_base,
        "position": position,
    }


def parse_segment_header(data: bytes) -> BareSegment:
    check(len(data) >= 64 and data[0:8] == b"PENSTOCK", "segment magic")
    version, flags, epoch = struct.unpack_from("<HHI", data, 8)
    base_offset, created_at, topic_id = struct.unpack_from("<QqQ", data, 16)
    checksum = u32s(data, 60, 1)[0]
    check(checksum == crc32c(data[:60]), "segment checksum")
    check(version == 1 and data[40:60] == bytes(20), "segment version")
    return BareSegment(flags, epoch, base_offset, created_at, topic_id, checksum)


def parse_segment(data: bytes) -> BareSegment:
    """A whole file: active (zeros may follow the batches), closed or sealed."""
    segment = parse_segment_header(data)
    end = len(data)
    if segment.flags & 1:
        segment.footer = parse_footer(data)
        end = segment.footer.position
    at, checksum, offset = 64, segment.checksum, segment.base_offset
    while at < end and data[at : at + 4] == b"PSB1":
        batch = parse_batch(data, at)
        check(batch.prev_checksum == checksum, "chain")
        check(batch.base_offset == offset, "offsets are dense")
        segment.batches.append(batch)
        checksum, offset = batch.checksum, offset + len(batch.records)
        at += batch.length
    check(not data[at:end].strip(b"\0"), "only zeros follow the batches")
    return segment


def parse_batch(data: bytes, at: int) -> BareBatch:
    head = data[at : at + 96]
    check(len(head) == 96 and head[0:4] == b"PSB1", "batch magic")
    checksum = u32s(head, 92, 1)[0]
    check(checksum == crc32c(head[:92]), "header checksum")
    version, compression, flags = struct.unpack_from("<BBH", head, 4)
    check(version == 1 and flags < 256 and compression in (0, 1), "version, flags, compression")
    prev_checksum, epoch = u32s(head, 8, 2)
    base_offset, base_timestamp, last_timestamp = struct.unpack_from("<Qqq", head, 16)
    count, columns_length, columns_checksum = u32s(head, 40, 3)
    blob_length, blob_checksum, blob_raw_length = u32s(head, 52, 3)
    string_count, strings_length, headers_length, marks_length, publisher_id = u32s(head, 64, 5)
    record_flags = head[84]
    check(head[85:92] == bytes(7), "reserved")
    columns = data[at + 96 : at + 96 + columns_length]
    blob_at = at + 96 + columns_length
    blob = data[blob_at : blob_at + blob_length]
    padding = data[blob_at + blob_length : blob_at + (blob_length + 7) // 8 * 8]
    check(crc32c(columns) == columns_checksum, "columns checksum")
    check(crc32c(blob) == blob_checksum, "blob checksum")
    check(padding == bytes(-blob_length % 8), "padding")
    if compression == 1:
        blob = lz4_block(blob, blob_raw_length)
    check(len(blob) == blob_raw_length, "raw length")

    cursor = 0

    def take(size: int) -> int:
        nonlocal cursor
        cursor += size
        return cursor - size

    expires = i64s(columns, take(8 * count), count) if flags & 64 else [0] * count
    deltas = i64s(columns, take(8 * count), count) if flags & 4 else [0] * count
    if flags & 1:
        starts = u32s(columns, take(4 * (count + 1)), count + 1)
        lengths = [starts[i + 1] - starts[i] for i in range(count)]
    else:
        starts = u32s(columns, take(4 * count), count)
        lengths = u32s(columns, take(4 * count), count)
    if flags & 2:
        deltas = u32s(columns, take(4 * count), count)
    names = u32s(columns, take(4 * count), count) if flags & 8 else [0] * count
    publishers = [publisher_id] * count
    if flags & 16:
        publishers = u32s(columns, take(4 * count), count)
    header_starts = [0] * (count + 1)
    if flags & 128:
        header_starts = u32s(columns, take(4 * (count + 1)), count + 1)
    string_starts = u32s(columns, take(4 * (string_count + 1)), string_count + 1)
    record_flag_bytes = bytes([record_flags]) * count
    if flags & 32:
        start = take(count)
        record_flag_bytes = columns[start : start + count]
    text_at = take(strings_length)
    strings = [
        columns[text_at + string_starts[i] : text_at + string_starts[i + 1]].decode()
        for i in range(string_count)
    ]
    headers_at = take(headers_length)
    marks_at = take(marks_length)
    check((cursor + 7) // 8 * 8 == columns_length, "columns length")
    check(columns[cursor:] == bytes(-cursor % 8), "column padding")
    records = [
        BareRecord(
            base_offset + i,
            base_timestamp + deltas[i],
            strings[names[i]],
            blob[starts[i] : starts[i] + lengths[i]],
            parse_headers(
                columns[headers_at + header_starts[i] : headers_at + header_starts[i + 1]]
            ),
            "" if publishers[i] == NOBODY else strings[publishers[i]],
            record_flag_bytes[i] & 3,
            bool(record_flag_bytes[i] & 4),
            expires[i] or None,
            record_flag_bytes[i] >> 3 & 3,
        )
        for i in range(count)
    ]
    return BareBatch(
        epoch,
        base_offset,
        prev_checksum,
        checksum,
        flags,
        compression,
        base_timestamp,
        last_timestamp,
        96 + columns_length + (blob_length + 7) // 8 * 8,
        records,
        parse_marks(columns[marks_at : marks_at + marks_length]),
    )


def parse_headers(data: bytes) -> tuple[tuple[str, str], ...]:
    pairs = []
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from("<H", data, at)
        key = data[at + 2 : at + 2 + length].decode()
        at += 2 + length
        (length,) = struct.unpack_from("<I", data, at)
        pairs.append((key, data[at + 4 : at + 4 + length].decode()))
        at += 4 + length
    check(at == len(data), "headers end where a value ends")
    return tuple(pairs)


def parse_marks(data: bytes) -> list[BareMark]:
    marks = []
    at = 0
    while at < len(data):
        kind, zero, length, index = struct.unpack_from("<BBHI", data, at)
        check(zero == 0, "reserved byte of a mark")
        key = data[at + 8 : at + 8 + length]
        marks.append(BareMark(kind, key, None if index == NOBODY else index))
        at += 8 + length
    check(at == len(data), "marks end where a key ends")
    return marks


def parse_footer(data: bytes) -> BareFooter:
    trailer = data[-64:]
    check(trailer[0:8] == b"PENSFOOT", "trailer magic")
    check(u32s(trailer, 60, 1) == [crc32c(trailer[:60])], "trailer checksum")
    version, zero, entry_count = struct.unpack_from("<HHI", trailer, 8)
    check(version == 1 and zero == 0, "footer version")
    position, end_offset, first_timestamp, last_timestamp = struct.unpack_from("<QQqq", trailer, 16)
    name_count, posting_count, checksum = u32s(trailer, 48, 3)
    body = data[position:-64]
    check(crc32c(body) == checksum, "footer checksum")
    entries = [struct.unpack_from("<QQqqII", body, 40 * i) for i in range(entry_count)]
    at = 40 * entry_count
    name_starts = u32s(body, at, name_count + 1)
    at += 4 * (name_count + 1)
    posting_starts = u32s(body, at, name_count + 1)
    at += 4 * (name_count + 1)
    postings = u32s(body, at, posting_count)
    text = body[at + 4 * posting_count :]
    names = [text[name_starts[i] : name_starts[i + 1]] for i in range(name_count)]
    check(names == sorted(set(names)), "names ascend")
    check(name_starts[-1] == len(text) and posting_starts[-1] == posting_count, "footer lengths")
    found = {
        names[i].decode(): postings[posting_starts[i] : posting_starts[i + 1]]
        for i in range(name_count)
    }
    return BareFooter(position, end_offset, first_timestamp, last_timestamp, entries, found)
