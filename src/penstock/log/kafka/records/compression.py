"""Record batches that other producers compressed. Penstock itself stores them as they are."""

from __future__ import annotations

import zlib
from typing import Any, Final

import lz4.frame

from penstock.model.errors import CorruptError, UnavailableError

NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4

RAW_BYTES_MAX: Final = 256 * 1024 * 1024  # of one batch; a few KiB of zeros could become anything
_XERIAL: Final = b"\x82SNAPPY\x00"  # Java's snappy: blocks with a length each
_XERIAL_HEADER_BYTES: Final = 16


def decompress(data: bytes, codec: int) -> bytes:
    """The records of a batch; CorruptError if the bytes are not what the batch says."""
    if codec == NONE:
        return data
    try:
        if codec == GZIP:
            return _gunzip(data)
        if codec == LZ4:
            return _unframe(data)
        if codec == SNAPPY:
            return _unsnap(data)
        if codec == ZSTD:
            return _within_bound(bytes(_cramjam().zstd.decompress(data)))
    except (zlib.error, RuntimeError, ValueError, EOFError) as broken:
        raise CorruptError(f"a record batch cannot be decompressed: {broken}") from broken
    raise CorruptError(f"a record batch has the unknown compression {codec}")


def _gunzip(data: bytes) -> bytes:
    unpacking = zlib.decompressobj(wbits=31)
    raw = unpacking.decompress(data, RAW_BYTES_MAX + 1)
    if not unpacking.eof and len(raw) <= RAW_BYTES_MAX:
        raise EOFError("the gzip data ends too early")
    return _within_bound(raw)


def _unframe(data: bytes) -> bytes:
    unpacking = lz4.frame.LZ4FrameDecompressor()
    raw: bytes = unpacking.decompress(data, RAW_BYTES_MAX + 1)
    if not unpacking.eof and len(raw) <= RAW_BYTES_MAX:
        raise EOFError("the lz4 frame ends too early")
    return _within_bound(raw)


def _unsnap(data: bytes) -> bytes:
    snappy = _cramjam().snappy
    if not data.startswith(_XERIAL):
        return _within_bound(bytes(snappy.decompress_raw(data)))
    parts: list[bytes] = []
    at = _XERIAL_HEADER_BYTES
    size = 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        at += 4
        if at + length > len(data):
            raise EOFError("the snappy data ends too early")
        parts.append(bytes(snappy.decompress_raw(data[at : at + length])))
        size += len(parts[-1])
        if size > RAW_BYTES_MAX:
            break
        at += length
    return _within_bound(b"".join(parts))


def _within_bound(raw: bytes) -> bytes:
    if len(raw) > RAW_BYTES_MAX:
        raise CorruptError(
            f"a record batch is larger than {RAW_BYTES_MAX} bytes when it is decompressed"
        )
    return raw


def _cramjam() -> Any:
    try:
        import cramjam
    except ImportError:
        raise UnavailableError(
            "a producer compressed its records with snappy or zstd, and the package that reads "
            "them is not installed: pip install 'penstock[kafka]'"
        ) from None
    return cramjam
