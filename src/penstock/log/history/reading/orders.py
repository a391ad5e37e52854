"""What the broker asks the process that reads history, and what that answers.

The first line says where all tables are, each following line is an order; both are JSON. An answer
is a frame: the lengths of its two parts, the answer as JSON, and encoded batches. Light: neither
side needs pyarrow to speak.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from penstock.log.interface import LogIdentity

FRAME: Final = struct.Struct("<II")  # bytes of the answer, bytes of the batches
LIST: Final = "list"
INDEX: Final = "index"
READ: Final = "read"


class Order(msgspec.Struct):
    """`list` asks for the files of a log's table, `index` and `read` for a part of one file."""

    number: int
    what: str
    log: LogIdentity
    file: str = ""
    group: int = 0  # of rows, in the file
    first: int = 0  # row of the group
    count: int = 0  # of rows from there on; 0: the whole group
    life: str = ""  # with `list`: a table of another one has no file; empty: any


class ColdFacts(msgspec.Struct, frozen=True):
    """One file of a table: rows [base_offset, end_offset), and when the last was stored."""

    name: str
    base_offset: int
    end_offset: int
    last_timestamp: int  # µs since 1970, UTC


class Answer(msgspec.Struct):
    """What was asked for, or the error."""

    number: int
    file: str = ""  # that the batches are of, for people
    files: list[ColdFacts] = []
    offsets: list[int] = []  # the first of each group of rows
    times: list[int] = []  # the first of each group of rows, µs
    error: str = ""
    is_corrupt: bool = False
    is_missing: bool = False  # the file is not there
