"""What every log offers, whatever it is kept in. Each backend joins tests/log/test_contract.py."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from penstock.core.topic_settings import FSYNC as FSYNC
from penstock.core.topic_settings import OS as OS
from penstock.core.topic_settings import REPLICATED as REPLICATED

if TYPE_CHECKING:
    from penstock.core.delivery.run import MixedRun, Run
    from penstock.core.erasure import Erasure
    from penstock.core.fences import Fences
    from penstock.log.cache import ChunkCache
    from penstock.log.format.batch import Batch
    from penstock.log.format.marks import Mark
    from penstock.log.history.tier import LogHistory

# Called on the event loop, in offset order, once the batch is visible. Beside it come the runs it
# was made of that nobody has been given yet, each with the index of its first record; None where it
# was encoded elsewhere.
OnCommit = Callable[["Batch", "list[tuple[int, Run]] | None"], None]
# Called with a number of messages that were not stored, and that no waiter stands for.
OnLost = Callable[[int], None]


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
    history: bool = False  # sealed records are copied into an open table before they are dropped
    history_age_s: float | None = None  # how long they stay there; None: for ever
    partitions: int = 1  # of the topic, each a log of its own


class Waiter(Protocol):
    """Who waits for messages to become durable."""

    @property
    def has_given_up(self) -> bool:
        """True if it no longer waits: what is not on its way yet need not be stored."""
        ...

    def committed(self, offset: int) -> None:
        """They are durable; `offset` is the first one's. Called on the event loop."""
        ...

    def refused(self, error: Exception) -> None:
        """Nothing of it was stored."""
        ...


class Log(Protocol):
    """One ordered log. Appends are durable when acknowledged; readers see only durable records."""

    def append(
        self,
        messages: Sequence[Run] | MixedRun,
        waiter: Waiter | None = None,
        marks: Sequence[Mark] = (),
    ) -> None:
        """Store the messages next to each other; the waiter hears when all are durable.

        Waiters hear in the order of the calls, after the readers. The index of a mark counts within
        these messages. What is QoS 0 may wait a few milliseconds for company. Nothing at all, no
        message and no mark, is durable with what was appended before it. Whoever can stops
        publishing while the log `is_congested`; what is appended all the same waits in order.
        """
        ...

    def append_batch(self, batch: Batch, waiter: Waiter | None = None) -> None:
        """Append a batch that was encoded elsewhere: it gets its offset and its stamp here.

        Batches appended this way keep their order; other appends may come between them.
        """
        ...

    async def read(self, offset: int) -> list[Batch]:
        """The batches from the one that holds `offset` on, about 1 MiB; empty at the end.

        Gap when retention has dropped the offset.
        """
        ...

    def bounds(self) -> Bounds: ...

    async def offset_at(self, timestamp: int) -> int:
        """The first offset stamped at or after `timestamp` (µs); the end if all are older."""
        ...

    def wait_past(self, offset: int) -> Awaitable[None]:
        """Suspends until the record at `offset` is visible."""
        ...

    async def close(self) -> None:
        """Finish what is pending, then release the files."""
        ...


class KeptLog(Log, Protocol):
    """The log of an engine: what upkeep and display need besides reading and appending."""

    settings: LogSettings
    epoch: int
    on_commit: OnCommit | None
    on_lost: OnLost | None
    is_watched: bool  # somebody hears of commits and waits: nothing gathers for long
    is_awaited: bool  # in `on_commit`: somebody waits for the acknowledgement of this batch
    last_sync_s: float  # how long the newest commit took to sync; 0 where nothing is synced
    history: LogHistory | None  # None where there is none
    erasures: Sequence[Erasure]  # ordered and not finished

    @property
    def is_congested(self) -> bool:
        """True while too much waits for the next commit."""
        ...

    @property
    def is_level(self) -> bool:
        """Readers have been given all that was appended; what is appended next need not queue."""
        ...

    @property
    def is_retaining(self) -> bool:
        """A retained message waits for its commit, or may do so."""
        ...

    @property
    def hot_first(self) -> int:
        """The first offset at hand; what `bounds` has before it is in the history only."""
        ...

    def count_from(self, offset: int) -> int:
        """How many messages it has from `offset` on.

        An upper bound where offsets may hold no message, and nobody has looked at them.
        """
        ...

    async def learn_count(self) -> None:
        """Look at a bounded part of what was there before it, so that `count_from` is exact."""
        ...

    def batches_since(self, offset: int) -> AsyncIterator[Batch]:
        """Every batch from the one that holds `offset` on, those of marks only included.

        What is damaged is left out and noted in `damage`.
        """
        ...

    async def trim(self, before_us: int | None, bytes_max: int | None) -> int:
        """Drop the oldest records stamped before `before_us` or beyond `bytes_max`; how many."""
        ...

    async def tier(self, before_us: int | None, bytes_max: int | None) -> None:
        """Copy sealed records into the history: much, or what `trim` with the same would drop."""
        ...

    async def keep_erasures(self, erasures: Sequence[Erasure]) -> None:
        """These are ordered and not finished: durable on return, and `erasures` from now on."""
        ...

    async def erase(self, erasure: Erasure, *, dry_run: bool) -> int:
        """Erase records of the log itself; how many it found. A dry run only counts.

        It may be repeated after any end. RefusedError where records cannot be changed.
        """
        ...

    async def erase_history(self, erasure: Erasure, *, dry_run: bool) -> int:
        """The same in the history; those that are in the log, too, count here as well."""
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


@runtime_checkable
class SharedLog(KeptLog, Protocol):
    """A log that several nodes may write to; see `core/fences.py`."""

    fences: Fences

    async def append_fence(self, incarnation: int) -> int:
        """Marked records of a dead node that come later are void; the offset of its first fence."""
        ...

    def learn_fences(self, known: Mapping[int, int]) -> None:
        """Fences, by incarnation, that lie before the end and may not have been seen here."""
        ...

    async def wait_followed(self, offset: int) -> None:
        """Suspends until the records before `offset`, which another node has seen, are here."""
        ...


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """Which log: its tenant, its topic's never reused id, and a readable part of the path."""

    tenant: str
    topic_id: int
    slug: str
    partition: int = 0  # a topic of several has one log for each


class LogStore(Protocol):
    """Makes, opens and removes logs."""

    @property
    def has_history(self) -> bool:
        """Whether topics may have `history = true`."""
        ...

    @property
    def partitions_max(self) -> int:
        """How many partitions a topic may have."""
        ...

    @property
    def cache(self) -> ChunkCache:
        """What was read from its logs lately, for all readers."""
        ...

    @property
    def durabilities(self) -> tuple[str, ...]:
        """What an acknowledgement can mean here; the weakest is last."""
        ...

    async def create(self, identity: LogIdentity, declared: str, settings: LogSettings) -> KeptLog:
        """Make all partitions of a topic and open the first one."""
        ...

    async def open(self, identity: LogIdentity, settings: LogSettings) -> KeptLog: ...

    async def delete(self, identity: LogIdentity) -> None:
        """Remove a topic with all its partitions."""
        ...

    async def declare(self, identity: LogIdentity, declared: str, settings: LogSettings) -> None:
        """Store the topic's spelling and settings with its records."""
        ...

    async def describe(self, identity: LogIdentity) -> tuple[str, LogSettings]:
        """What `declare` or `create` last said."""
        ...

    def list(self) -> list[LogIdentity]:
        """The first log of every topic."""
        ...


@runtime_checkable
class SharedStore(LogStore, Protocol):
    """A store that several nodes use."""

    async def open_new(self, identity: LogIdentity, settings: LogSettings) -> KeptLog:
        """Open a log that another node made; `follow` shows all that is in it as if it came now."""
        ...

    def follow(self, log: KeptLog) -> None:
        """Show what is in a log that `open_new` opened, now that somebody listens."""
        ...

    def drop(self, log: KeptLog) -> None:
        """Let go of a log that another node deletes: nothing more can be stored in it."""
        ...
