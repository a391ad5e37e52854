"""A few values of a column of bytes, without decompressing the pages that hold none of them.

Arrow decodes a column of a row group as a whole. For a few rows of many that is mostly work for
nothing. This reads what our own writer makes: data pages of version 1 with plain values, zstd
and a checksum. Of any other column it says so, and Arrow reads it.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Sequence
from struct import Struct
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.model.errors import CorruptError

_DATA_PAGE: Final = 0
_PLAIN: Final = 0
_ENCODINGS: Final = {"PLAIN", "RLE"}  # RLE is said of levels, which a required column lacks
_I32: Final = 5  # types of the compact protocol of Thrift
_STRUCT: Final = 12
_STRUCT_OF_PAGE: Final = 5  # the field of a header that describes a page of version 1
_STATISTICS: Final = 5  # the field of that
_read_length: Final = Struct("<I").unpack_from
_codec: Final = pa.Codec("zstd")


class UnknownPagesError(Exception):
    """A column that another writer made: Arrow knows how to read it."""


def has_plain_pages(column: pq.ColumnChunkMetaData) -> bool:
    """Whether the pages of a column are probably such that `pick` can read them."""
    return (
        column.physical_type == "BYTE_ARRAY"
        and column.compression == "ZSTD"
        and not column.has_dictionary_page
        and _ENCODINGS.issuperset(column.encodings)
    )


def pick(chunk: bytes, count: int, size_max: int, rows: Sequence[int]) -> list[bytes]:
    """The values of these rows, which rise, of a required column of bytes with `count` rows.

    `size_max`: no page takes more memory. CorruptError if a page is damaged, UnknownPagesError if
    pages are not like ours.
    """
    found: list[bytes] = []
    at = first = taken = 0
    while taken < len(rows) and at < len(chunk):
        size, stored, checksum, values, at = _header(chunk, at)
        is_inside = size <= size_max and at + stored <= len(chunk) and first + values <= count
        if not is_inside or min(size, stored, values) < 0:
            raise CorruptError("a page is larger than its column")
        past = bisect_left(rows, first + values, taken)
        if past > taken:
            page = chunk[at : at + stored]
            if zlib.crc32(page) != checksum & 0xFFFF_FFFF:
                raise CorruptError("a page does not match its checksum")
            data = _codec.decompress(page, size, asbytes=True)
            found += _values(data, values, [row - first for row in rows[taken:past]])
            taken = past
        at += stored
        first += values
    if taken < len(rows):
        raise CorruptError(f"the pages of a column have {first} values in place of {count}")
    return found


def _values(page: bytes, count: int, rows: list[int]) -> list[bytes]:
    """The values of these rows of a page: each has its length before it."""
    step = len(page) // count
    is_even = step >= 4 and step * count == len(page) and _read_length(page)[0] == step - 4
    # If all lengths are equal, nobody needs to go from one value to the next.
    if is_even and all(page[byte::step] == page[byte : byte + 1] * count for byte in range(4)):
        return [page[row * step + 4 : (row + 1) * step] for row in rows]
    found = []
    at = now = 0
    end = len(page)
    for row in rows:
        while True:
            if at + 4 > end:
                raise CorruptError("a page ends before its values do")
            begin = at + 4
            at = begin + _read_length(page, at)[0]
            now += 1
            if now > row:
                break
        if at > end:
            raise CorruptError("a page ends before its values do")
        found.append(page[begin:at])
    return found


def _header(chunk: bytes, at: int) -> tuple[int, int, int, int, int]:
    """Size in memory and in the file, checksum and values of a page, and where its data begin."""
    try:
        outer, at = _numbers(chunk, at)
        if outer.get(1) != _DATA_PAGE or _STRUCT_OF_PAGE not in outer or 4 not in outer:
            raise UnknownPagesError("not a data page with a checksum")
        inner, at = _numbers(chunk, at)
        # Statistics, which say nothing, the end of them and of this struct, and of the header.
        ending = 3 if _STATISTICS in inner else 1
        if inner.get(2) != _PLAIN or any(chunk[at : at + ending]):
            raise UnknownPagesError("not plain values without statistics")
        return outer[2], outer[3], outer[4], inner[1], at + ending
    except (IndexError, KeyError) as short:
        raise CorruptError("the header of a page is damaged") from short


def _numbers(chunk: bytes, at: int) -> tuple[dict[int, int], int]:
    """The numbers of a struct by field, up to its end or up to a struct in it, and where that is.

    Of a struct inside the field is there, as 0.
    """
    found: dict[int, int] = {}
    field = 0
    while True:
        kind = chunk[at]
        at += 1
        if kind == 0:
            return found, at
        field += kind >> 4
        if kind & 15 == _STRUCT:
            found[field] = 0
            return found, at
        if kind & 15 != _I32 or kind < 16:
            raise UnknownPagesError("a field of a kind that our pages do not have")
        value = shift = 0
        while True:
            byte = chunk[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
            if shift > 63:
                raise CorruptError("the header of a page is damaged")
        found[field] = value >> 1 ^ -(value & 1)
