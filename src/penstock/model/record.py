"""A stored message, and what a topic looks like from outside."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, Literal, NewType

import msgspec

from penstock.model.errors import InvalidSetting

TenantId = NewType("TenantId", str)
TopicId = NewType("TopicId", int)

DEFAULT_TENANT: Final = TenantId("default")

# What the publisher handed over, so that `Record.value` can give the same back.
KIND_BYTES: Final = 0
KIND_TEXT: Final = 1
KIND_JSON: Final = 2
KIND_ERASED: Final = 3  # nothing is left of what was published
KindName = Literal["bytes", "text", "json", "erased"]  # as users see them
KIND_NAMES: Final[tuple[KindName, ...]] = ("bytes", "text", "json", "erased")  # by number

# The flags of a record, one byte.
QOS_MASK: Final = 0b11
RETAIN: Final = 0b100
KIND_SHIFT: Final = 3
KIND_MASK: Final = 0b11

Headers = tuple[tuple[str, str], ...]  # ordered; duplicate keys are kept
HeadersLike = Mapping[str, str] | Iterable[tuple[str, str]] | None
PositionLike = str | int | datetime | timedelta | Mapping[str, int]


def check_limit(limit: int | None) -> None:
    """InvalidSetting unless it is a count of records, or None for all."""
    is_count = isinstance(limit, int) and not isinstance(limit, bool) and limit > 0
    if limit is not None and not is_count:
        raise InvalidSetting(f"limit {limit!r} is not a whole number above 0, or None for all")


def check_on_gap(on_gap: str) -> None:
    """What becomes of a reader that retention overtook: it skips what is gone, or is told."""
    if on_gap not in ("skip", "error"):
        raise InvalidSetting(f"on_gap {on_gap!r} is unknown: use 'skip' or 'error'")


class Record(msgspec.Struct, frozen=True):
    """One message as it lies in a log. `offset` is dense within (topic, partition).

    A msgspec struct because reading makes one per record: ten times cheaper than a dataclass.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int  # µs since 1970, UTC: when the broker received it
    name: str
    payload: bytes
    headers: Headers = ()
    publisher: str = ""
    qos: int = 1
    retain: bool = False
    expires_at: int | None = None  # µs since 1970, UTC
    kind: int = KIND_BYTES

    @property
    def value(self) -> Any:
        """What was published: str, bytes, or the JSON value."""
        if self.kind == KIND_TEXT:
            return self.payload.decode()
        if self.kind == KIND_JSON:
            return msgspec.json.decode(self.payload)
        return self.payload

    @property
    def time(self) -> datetime:
        """The timestamp as an aware datetime."""
        return _moment(self.timestamp)


def _moment(timestamp_us: int) -> datetime:
    seconds, microsecond = divmod(timestamp_us, 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=microsecond)


def shown_time(timestamp_us: int) -> str:
    """A timestamp as RFC 3339 text, exact: it can be given back as a position."""
    seconds, microsecond = divmod(timestamp_us, 1_000_000)
    return f"{_shown_second(seconds)}.{microsecond:06}Z"


@lru_cache(maxsize=64)  # records of one second stand together
def _shown_second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


@dataclass(frozen=True, slots=True)
class HistoryInfo:
    """The history of a topic: a table with the half-open range of offsets it holds."""

    url: str
    first_offset: int
    end_offset: int  # one past the last record in it
    files: int
    bytes: int
    waiting_bytes: int  # sealed in the log and not yet in the history
    age: float | None  # seconds; None keeps records for ever
    trouble: str = ""  # why nothing is written to it


Offsets = int | dict[str, int]  # an offset; by the numbers of partitions where a topic has several
Place = int | tuple[int, int]  # of a record: its offset, or (partition, offset)


def offset_in(offsets: Offsets, partition: int) -> int:
    """The offset of one partition."""
    return offsets[str(partition)] if isinstance(offsets, dict) else offsets


def has_reached(offsets: Offsets, ends: Offsets) -> bool:
    """Whether offsets are at or past the ends, in all partitions."""
    if isinstance(offsets, dict) and isinstance(ends, dict):
        return all(offsets[partition] >= end for partition, end in ends.items())
    return not isinstance(offsets, dict) and not isinstance(ends, dict) and offsets >= ends


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """One partition of a topic: the half-open range of offsets it holds."""

    partition: int
    first_offset: int
    end_offset: int  # one past the last visible record
    epoch: int
    is_available: bool = True


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A declared topic: its settings and the half-open range of offsets it holds.

    Of a topic with several partitions the offsets are sums, and `partitions` has those of each.
    """

    topic: str  # as declared
    id: int
    first_offset: int
    end_offset: int  # one past the last visible record
    bytes: int
    retention_age: float | None  # seconds; None keeps records for ever
    retention_bytes: int | None  # None: no bound
    durability: str  # "fsync" or "os"
    epoch: int
    is_available: bool = True  # False: its files are damaged or missing, and it refuses
    trouble: str = ""  # what is wrong with its files
    history: HistoryInfo | None = None  # None: it has none
    partitions: tuple[PartitionInfo, ...] = ()  # empty: it has one
    records: int | None = None  # messages it holds; None: as many as offsets

    @property
    def count(self) -> int:
        """How many messages it holds."""
        return self.end_offset - self.first_offset if self.records is None else self.records

    @property
    def ends(self) -> Offsets:
        """One past the last visible record, of each partition."""
        if not self.partitions:
            return self.end_offset
        return {str(one.partition): one.end_offset for one in self.partitions}


@dataclass(frozen=True, slots=True)
class BindingInfo:
    """Names that match the filter are placed in the topic."""

    filter: str
    topic: str


@dataclass(frozen=True, slots=True)
class Erased:
    """What was erased, or would be; a record in log and history counts in both."""

    topic: str
    names: str
    before: int | None  # µs since 1970, UTC; only older records; None: all
    end_offset: int  # records at or past it were published later and stay
    log_records: int
    history_records: int
    retained: int
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """A consumer of a topic and how far it is."""

    consumer: str
    next_offset: Offsets
    waiting: int  # records it has not been given yet
