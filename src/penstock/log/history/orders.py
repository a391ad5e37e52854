"""What the broker asks of the process that writes histories, one line of JSON each way. Light."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.core.erasure import Erasure
from penstock.log.history.place import TablePlace
from penstock.model.errors import CorruptError, PenstockError, RefusedError, UnavailableError

# The errors that an answer may stand for, by the name it has there.
ERRORS: Final[dict[str, type[PenstockError]]] = {
    "corrupt": CorruptError,
    "refused": RefusedError,
    "unavailable": UnavailableError,
}


class TableFacts(msgspec.Struct, frozen=True):
    """Whose history a table is; JSON in its description."""

    topic: str
    topic_id: int
    life: str  # drawn at random when the table is made; the log's directory has it, too


class SegmentSpan(msgspec.Struct, frozen=True):
    """A sealed segment."""

    path: str
    base_offset: int
    end_offset: int


class Look(msgspec.Struct, tag=True, frozen=True):
    """Say what the table holds, and when it has the record at offset `probe` received."""

    place: TablePlace
    probe: int = -1


class Write(msgspec.Struct, tag=True, frozen=True):
    """Add the records [base, end) of these segments to the table, made if it is missing."""

    place: TablePlace
    facts: TableFacts
    segments: list[SegmentSpan]
    base: int
    end: int
    epoch: int
    lock: str  # a file that only one writer at a time holds


class Expire(msgspec.Struct, tag=True, frozen=True):
    """Take the oldest files out of the table whose newest record is older than this."""

    place: TablePlace
    before_us: int
    lock: str


class Erase(msgspec.Struct, tag=True, frozen=True):
    """Erase records, and remove every file that the table no longer names; or only count them."""

    place: TablePlace
    life: str
    erasure: Erasure
    lock: str
    dry_run: bool


Order = Look | Write | Expire | Erase


class TableState(msgspec.Struct, frozen=True):
    """What a table holds: the records [first, end)."""

    facts: TableFacts
    first: int
    end: int
    epoch: int
    files: int
    bytes: int
    last_timestamp: int | None  # µs; of the newest file
    probe_timestamp: int | None = None
    erased: int = 0  # records that an order to erase found


class Answer(msgspec.Struct, frozen=True):
    """The state afterwards, None if there is no table; or the kind of error and its text."""

    state: TableState | None = None
    error: str = ""
    text: str = ""
