"""The bytes of the file `end` (docs/FORMATS.md is the specification).

Compiled by mypyc; the same source runs interpreted.
"""

from __future__ import annotations

import struct
from typing import Final

from penstock.log.format.checksum import crc32c

MAGIC: Final = b"PEND"
VERSION: Final = 1
_END: Final = struct.Struct("<4sHHIIQQQ")
CHECKED_BYTES: Final = 40  # what comes before the checksum
END_BYTES: Final = 44

CLEAN: Final = 1  # closed in order: nothing visible can be missing
FENCED: Final = 2  # a sync failed: nothing past the durable end is to be trusted
LOOSE: Final = 4  # level `os`: records before the end may not have reached the disk


def pack_end(epoch: int, durable_end: int, segment_base: int, position: int, flags: int) -> bytes:
    """What the file holds; the arguments are the fields of `End`."""
    head = _END.pack(MAGIC, VERSION, flags, epoch, 0, durable_end, segment_base, position)
    return head + crc32c(head).to_bytes(4, "little")


def unpack_fields(data: bytes) -> tuple[int, int, int, int, int, int] | None:
    """Version, then the arguments of `pack_end`; None when the bytes are not whole and intact."""
    if len(data) != END_BYTES or not data.startswith(MAGIC):
        return None
    if crc32c(data[:CHECKED_BYTES]) != int.from_bytes(data[CHECKED_BYTES:], "little"):
        return None
    _, version, flags, epoch, _, durable_end, segment_base, position = _END.unpack_from(data)
    return version, epoch, durable_end, segment_base, position, flags
