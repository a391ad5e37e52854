"""What every log offers, whatever it is kept in. Each backend joins tests/log/contract."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from penstock.core.topic_settings import FSYNC as FSYNC
from penstock.core.topic_settings import OS as OS
from penstock.log.cache import ChunkCache
from penstock.log.format.batch import Batch
from penstock.log.format.batch_bytes import KIND_SHIFT, RETAIN
from penstock.log.format.builder import BatchBuilder
from penstock.log.format.marks import NO_RECORD, Mark, encode_headers
from penstock.model.record import KIND_BYTES, Headers

OnCommit = Callable[[Batch], None]  # called on the event loop, in offset order, once visible


@dataclass(frozen=True, slots=True)
class Draft:
    """Messages handed over together: one name, one publisher, one payload or many."""

    name: str
    payloads: list[bytes]
    kind: int = KIND_BYTES
    publisher: str = ""
    headers: Headers = ()
    qos: int = 1
    retain: bool = False
    expires_at: int = 0  # µs since 1970, UTC; 0: never


def draft_flags(draft: Draft) -> int:
    """The record flags that every message of a draft shares."""
    return draft.qos | (RETAIN if draft.retain else 0) | draft.kind << KIND_SHIFT


def add_draft(pending: BatchBuilder, draft: Draft, marks: Sequence[Mark], now_us: int) -> int:
    """Put a draft and its marks into a batch; the index of its first message there."""
    index = pending.count
    if draft.payloads:
        pending.add(
            draft.name,
            draft.payloads,
            now_us,
            draft_flags(draft),
            draft.publisher,
            draft.expires_at,
            encode_headers(draft.headers) if draft.headers else b"",
        )
    for mark in marks:
        at = mark.index if mark.index == NO_RECORD else index + mark.index
        pending.add_mark(mark.kind, mark.key, at)
    return index


class Bounds(NamedTuple):
    """The offsets a reader may ask for: [first, end)."""

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Settings of one log. Retention drops whole segments; None keeps for ever."""

    durability: str = FSYNC
    retention_age_s: float | None = 7 * 86_400.0
    retention_bytes: int | None = None
    segment_bytes: int = 32 * 1024 * 1024  # scanned when the log is opened
    segment_age_s: float = 86_400.0


class Waiter(Protocol):
    """Who waits for messages to become durable."""

    def committed(self, offset: int) -> None:
        """They are durable; `offset` is the first one's. Called on the event loop."""
        ...

    def refused(self, error: Exception) -> None:
        """Nothing of it was stored."""
        ...


class Log(Protocol):
    """One ordered log. Appends are durable when acknowledged; readers see only durable records."""

    def append(
        self, draft: Draft, marks: Sequence[Mark] = (), waiter: Waiter | None = None
    ) -> Awaitable[int]:
        """Resolves with the first record's offset once all are durable, in order of the calls.

        The index of a mark counts within this draft. UnavailableError: nothing was stored.
        Nothing at all, no message and no mark, is durable at once: the end. A waiter hears of it
        before anything with a higher offset becomes visible, also if nobody awaits the result.
        """
        ...

    async def read(self, offset: int) -> list[Batch]:
        """The batches from the one that holds `offset` on, about 1 MiB; empty at the end.

        Gap when retention has dropped the offset.
        """
        ...

    def bounds(self) -> Bounds: ...

    async def offset_at(self, timestamp: int) -> int:
        """The first offset stamped at or after `timestamp` (µs); the end if there is none."""
        ...

    def wait_past(self, offset: int) -> Awaitable[None]:
        """Suspends until the record at `offset` is visible."""
        ...

    async def trim(self, before_us: int | None, bytes_max: int | None) -> int:
        """Drop the oldest records stamped before `before_us` or beyond `bytes_max`; how many."""
        ...

    async def close(self) -> None:
        """Finish what is pending, then release the files."""
        ...


class KeptLog(Log, Protocol):
    """A log as its engine holds it: what upkeep and display need beside reading and appending."""

    settings: LogSettings
    epoch: int
    on_commit: OnCommit | None
    is_watched: bool  # somebody hears of commits and waits: nothing gathers for long
    last_sync_s: float  # how long the newest commit took to sync; 0 where nothing is synced

    def append_run(
        self,
        name: str,
        data: bytes,
        starts: list[int],
        lengths: list[int],
        flags: int,
        publisher: str,
        expires_at: int,
        headers: bytes,
        waiter: Waiter | None,
        is_urgent: bool,
        marks: Sequence[Mark] = (),
    ) -> None:
        """Append messages that lie inside `data`, without taking it apart.

        What is not urgent may wait a few milliseconds for company. Takes more than `append` would
        hold: whoever calls it stops reading while `is_congested`.
        """
        ...

    def append_names(
        self,
        names: list[str],
        counts: list[int],
        data: bytes,
        starts: list[int],
        lengths: list[int],
        publisher: str,
    ) -> None:
        """As `append_run`, for plain messages of several names that nobody waits for.

        They lie inside one `data`, counts[i] of names[i] in turn.
        """
        ...

    def append_batch(self, batch: Batch, waiter: Waiter | None = None) -> Awaitable[int]:
        """Append a batch that was encoded elsewhere: it gets its offset and its stamp here.

        Resolves with the first record's offset once all are durable; a waiter hears of it before
        anything with a higher offset becomes visible. Batches appended this way keep their order;
        other appends may come between them.
        """
        ...

    @property
    def is_congested(self) -> bool:
        """True while too much waits for the next commit."""
        ...

    def batches_since(self, offset: int) -> AsyncIterator[Batch]:
        """Every batch from the one that holds `offset` on, those of marks only included.

        What is damaged is left out and noted in `damage`.
        """
        ...

    async def stored_bytes(self) -> int: ...

    async def clamp(self, epoch: int, offset: int) -> int:
        """Where a position of `epoch` stands now: records lost since then move it back."""
        ...

    async def seal_closed(self) -> int:
        """Rewrite what is closed into its final form; how many segments."""
        ...

    @property
    def loads(self) -> int:
        """Chunks read from where they lie, since it was opened; what memory had does not count."""
        ...

    @property
    def tail_bytes(self) -> int:
        """About how much memory the newest records take, which are kept for live readers."""
        ...

    @property
    def fence(self) -> str:
        """Why the log takes no appends; empty while it does."""
        ...

    @property
    def damage(self) -> list[str]:
        """What upkeep or a start found wrong in older records; they stay as they are."""
        ...


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """Which log: its tenant, its topic's never reused id, and a readable part of the path."""

    tenant: str
    topic_id: int
    slug: str


class LogStore(Protocol):
    """Makes, opens and removes logs."""

    @property
    def cache(self) -> ChunkCache:
        """What was read from its logs lately, for all readers."""
        ...

    async def create(
        self, identity: LogIdentity, declared: str, settings: LogSettings
    ) -> KeptLog: ...

    async def open(self, identity: LogIdentity, settings: LogSettings) -> KeptLog: ...

    async def delete(self, identity: LogIdentity) -> None: ...

    async def declare(self, identity: LogIdentity, declared: str, settings: LogSettings) -> None:
        """Keep the topic's spelling and settings beside its records."""
        ...

    async def describe(self, identity: LogIdentity) -> tuple[str, LogSettings]:
        """What `declare` or `create` last said."""
        ...

    def list(self) -> list[LogIdentity]: ...
