"""What the golden vectors hold, in plain words, and how our encoder is asked to write it.

Each case says its content twice: as calls to the encoder, and as the records and marks that any
reader must find. The bytes themselves lie in golden/ and are never written again.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from penstock.log.format import batch_bytes as fmt
from penstock.log.format.batch import Batch
from penstock.log.format.builder import BatchBuilder, Columns, assemble
from penstock.log.format.marks import (
    MARK_IDEMPOTENCY_KEY,
    MARK_QOS2_OPENED,
    MARK_QOS2_RELEASED,
    MARK_SPARK_BATCH,
    MARK_WILL,
    NO_RECORD,
    encode_headers,
)
from tests.appends import add, add_gapped
from tests.log.format.bare_format import BareMark, BareRecord

GOLDEN = Path(__file__).parent / "golden"
T = 1_700_000_000_000_000  # 2023-11-14T22:13:20Z in µs
PREV = 0x01020304

RETAIN = 4
TEXT = 1 << 3
JSON = 2 << 3


def golden_bytes(name: str) -> bytes:
    """The bytes of golden/<name>.hex; lines that begin with # are remarks."""
    lines = (GOLDEN / f"{name}.hex").read_text(encoding="ascii").splitlines()
    return bytes.fromhex("".join(line for line in lines if not line.startswith("#")))


def record(
    offset: int,
    name: str,
    payload: bytes,
    timestamp: int = T,
    *,
    headers: tuple[tuple[str, str], ...] = (),
    publisher: str = "",
    qos: int = 1,
    retain: bool = False,
    expires_at: int | None = None,
    kind: int = 0,
) -> BareRecord:
    return BareRecord(
        offset, timestamp, name, payload, headers, publisher, qos, retain, expires_at, kind
    )


@dataclass(frozen=True)
class BatchCase:
    """One batch: epoch 3, base offset 7, chained to checksum 0x01020304 unless `build` differs."""

    name: str
    build: Callable[[], Batch]
    flags: int
    records: list[BareRecord]
    marks: list[BareMark] = field(default_factory=list)


def _close(builder: BatchBuilder) -> Batch:
    return builder.encode(3, 7, PREV)


def _one_record() -> Batch:
    b = BatchBuilder(0)
    add(b, "sensors/42/temp", [b"21.5"], T, 1)
    return _close(b)


def _several_names() -> Batch:
    b = BatchBuilder(0)
    add(b, "a", [b"1"], T, 1)
    add(b, "b/ü", [b"22", b""], T + 5, 0 | RETAIN)
    add(b, "a", [b"333"], T + 4_000_000_000, 2 | JSON)
    return _close(b)


def _falling_clock() -> Batch:
    b = BatchBuilder(T + 10)
    add(b, "a", [b"1"], T, 1)
    add(b, "a", [b"2"], T + 20, 1)
    add(b, "a", [b"3"], T + 15, 1)
    return _close(b)


def _gapped() -> Batch:
    b = BatchBuilder(0)
    add(b, "n", [b"pre", b"fix"], T, 1)
    add_gapped(b, "n", b"\x32\x08helloXXworld!", [2, 9], [5, 5], T, 1)
    add(b, "n", [b"", b"post"], T, 1)
    return _close(b)


_PAIRS = (("k", "v1"), ("k", "v2"), ("größe", "☃ 1 m"), ("", ""))


def _headers() -> Batch:
    b = BatchBuilder(0)
    add(b, "n", [b"with", b"too"], T, 1, headers=encode_headers(_PAIRS))
    add(b, "n", [b"without"], T, 1)
    return _close(b)


def _marks() -> Batch:
    b = BatchBuilder(0)
    add(b, "n", [b"x", b"y"], T, 2)
    b.add_mark(MARK_QOS2_OPENED, bytes(range(10)), 0)
    b.add_mark(MARK_WILL, b"will-1", 1)
    b.add_mark(MARK_SPARK_BATCH, b"query/17", NO_RECORD)
    b.add_mark(MARK_IDEMPOTENCY_KEY, b"", 1)
    return _close(b)


def _expiry() -> Batch:
    b = BatchBuilder(0)
    add(b, "n", [b"never"], T, 1)
    add(b, "n", [b"soon", b"soon too"], T, 1, expires_at=T + 60_000_000)
    return _close(b)


def _wide_times() -> Batch:
    b = BatchBuilder(0)
    add(b, "n", [b"first"], T, 1)
    add(b, "n", [b"an hour and twelve minutes later"], T + 0x1_0000_0000, 1)
    return _close(b)


def _publishers() -> Batch:
    b = BatchBuilder(0)
    add(b, "n", [b"0"], T, 1)
    add(b, "n", [b"1"], T, 1, "till-7")
    add(b, "n", [b"2"], T, 1, "n")  # a publisher called like a name shares its string
    return _close(b)


def _one_publisher() -> Batch:
    b = BatchBuilder(0)
    add(b, "n", [b"0", b"1"], T, 1 | TEXT, "till-7")
    return _close(b)


def _marks_only() -> Batch:
    b = BatchBuilder(T)
    b.add_mark(MARK_QOS2_RELEASED, bytes(range(10)), NO_RECORD)
    return _close(b)


def _empty() -> Batch:
    return _close(BatchBuilder(T))


# A block written by hand: four literals, a match of 15 + 4 bytes one byte back, five literals.
_PACKED = bytes.fromhex("4f") + b"abcd" + b"\x01\x00\x00" + b"\x50" + b"final"
_RAW = b"abc" + b"d" * 20 + b"final"


def _lz4() -> Batch:
    c = Columns()
    c.count = 2
    c.base_timestamp = c.last_timestamp = T
    c.record_flags = 1
    c.strings = ["n"]
    c.starts = array("I", [0, 23, 28]).tobytes()
    batch = assemble(c, _PACKED, 3, 7, PREV)
    batch.header.compression = fmt.COMPRESSION_LZ4
    batch.header.blob_raw_length = len(_RAW)
    return batch


def _everything() -> Batch:
    b = BatchBuilder(0)
    add(b, "a", [b"1"], T, 0, "p", T + 1, encode_headers((("h", "1"),)))
    add_gapped(b, "b", b"..22..", [2], [2], T + 0x1_0000_0001, 2 | RETAIN | TEXT, "q")
    b.add_mark(MARK_WILL, b"w", 1)
    return _close(b)


_C, _TIMES, _WIDE, _NAMES, _PUBS, _FLAGS, _EXP, _HEAD = 1, 2, 4, 8, 16, 32, 64, 128

BATCH_CASES = [
    BatchCase("batch-one-record", _one_record, _C, [record(7, "sensors/42/temp", b"21.5")]),
    BatchCase(
        "batch-several-names",
        _several_names,
        _C | _TIMES | _NAMES | _FLAGS,
        [
            record(7, "a", b"1"),
            record(8, "b/ü", b"22", T + 5, qos=0, retain=True),
            record(9, "b/ü", b"", T + 5, qos=0, retain=True),
            record(10, "a", b"333", T + 4_000_000_000, qos=2, kind=2),
        ],
    ),
    BatchCase(
        "batch-falling-clock",
        _falling_clock,
        _C | _TIMES,
        [
            record(7, "a", b"1", T + 10),
            record(8, "a", b"2", T + 20),
            record(9, "a", b"3", T + 20),
        ],
    ),
    BatchCase(
        "batch-gapped",
        _gapped,
        0,
        [
            record(7 + i, "n", payload)
            for i, payload in enumerate([b"pre", b"fix", b"hello", b"world", b"", b"post"])
        ],
    ),
    BatchCase(
        "batch-headers",
        _headers,
        _C | _HEAD,
        [
            record(7, "n", b"with", headers=_PAIRS),
            record(8, "n", b"too", headers=_PAIRS),
            record(9, "n", b"without"),
        ],
    ),
    BatchCase(
        "batch-marks",
        _marks,
        _C,
        [record(7, "n", b"x", qos=2), record(8, "n", b"y", qos=2)],
        [
            BareMark(1, bytes(range(10)), 0),
            BareMark(5, b"will-1", 1),
            BareMark(4, b"query/17", None),
            BareMark(3, b"", 1),
        ],
    ),
    BatchCase(
        "batch-expiry",
        _expiry,
        _C | _EXP,
        [
            record(7, "n", b"never"),
            record(8, "n", b"soon", expires_at=T + 60_000_000),
            record(9, "n", b"soon too", expires_at=T + 60_000_000),
        ],
    ),
    BatchCase(
        "batch-wide-times",
        _wide_times,
        _C | _WIDE,
        [
            record(7, "n", b"first"),
            record(8, "n", b"an hour and twelve minutes later", T + 0x1_0000_0000),
        ],
    ),
    BatchCase(
        "batch-publishers",
        _publishers,
        _C | _PUBS,
        [
            record(7, "n", b"0"),
            record(8, "n", b"1", publisher="till-7"),
            record(9, "n", b"2", publisher="n"),
        ],
    ),
    BatchCase(
        "batch-one-publisher",
        _one_publisher,
        _C,
        [
            record(7, "n", b"0", publisher="till-7", kind=1),
            record(8, "n", b"1", publisher="till-7", kind=1),
        ],
    ),
    BatchCase("batch-marks-only", _marks_only, _C, [], [BareMark(2, bytes(range(10)), None)]),
    BatchCase("batch-empty", _empty, _C, []),
    BatchCase(
        "batch-lz4",
        _lz4,
        _C,
        [record(7, "n", b"abc" + b"d" * 20), record(8, "n", b"final")],
    ),
    BatchCase(
        "batch-everything",
        _everything,
        _WIDE | _NAMES | _PUBS | _FLAGS | _EXP | _HEAD,
        [
            record(7, "a", b"1", publisher="p", qos=0, expires_at=T + 1, headers=(("h", "1"),)),
            record(8, "b", b"22", T + 0x1_0000_0001, publisher="q", qos=2, retain=True, kind=1),
        ],
        [BareMark(5, b"w", 1)],
    ),
]


def example_batches(checksum: int) -> list[Batch]:
    """The worked example of docs/FORMATS.md: two records of two names, a header and a mark."""
    b = BatchBuilder(0)
    add(b, "a/1", [b"hello"], T, 1 | TEXT, "till-7", headers=encode_headers((("k", "v"),)))
    add(b, "a/2", [b"{}"], T + 1_500, 2 | JSON, "till-7")
    b.add_mark(MARK_IDEMPOTENCY_KEY, b"K1", 1)
    return _chained([b], 1, 0, checksum)


EXAMPLE_RECORDS = [
    record(0, "a/1", b"hello", publisher="till-7", kind=1, headers=(("k", "v"),)),
    record(1, "a/2", b"{}", T + 1_500, publisher="till-7", qos=2, kind=2),
]
EXAMPLE_MARKS = [BareMark(3, b"K1", 1)]


def segment_batches(checksum: int) -> list[Batch]:
    """Three batches of the small segment: one record, marks only, three records of two names."""
    first, second, third = BatchBuilder(0), BatchBuilder(T + 10), BatchBuilder(T + 10)
    add(first, "orders/1", [b"first"], T + 10, 1)
    second.add_mark(MARK_WILL, b"will-9", NO_RECORD)
    add(third, "orders/2", [b"second", b"third"], T + 20, 1, "till-7")
    add(third, "orders/1", [b"fourth"], T + 30, 1, "till-8")
    third.add_mark(MARK_IDEMPOTENCY_KEY, b"key", 2)
    return _chained([first, second, third], 2, 100, checksum)


SEGMENT_RECORDS = [
    record(100, "orders/1", b"first", T + 10),
    record(101, "orders/2", b"second", T + 20, publisher="till-7"),
    record(102, "orders/2", b"third", T + 20, publisher="till-7"),
    record(103, "orders/1", b"fourth", T + 30, publisher="till-8"),
]


def _chained(
    builders: list[BatchBuilder], epoch: int, base_offset: int, checksum: int
) -> list[Batch]:
    batches = []
    for builder in builders:
        batch = builder.encode(epoch, base_offset, checksum)
        batch.to_bytes()  # sets the checksum that the next one chains to
        checksum, base_offset = batch.header.checksum, batch.end_offset
        batches.append(batch)
    return batches
