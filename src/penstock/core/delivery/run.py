"""Messages on their way through the broker, many at a time: what a log takes and what is delivered.

A Run is what one publisher sent under one name in one go: the bytes as they arrived, and where in
them the payloads lie. It is stored without being taken apart, travels with its batch until that
is committed, and is then forwarded verbatim to readers that want exactly these bytes.
Compiled by mypyc; the same source runs interpreted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final, Protocol

from penstock.model.limits import KIB
from penstock.model.record import KIND_BYTES, KIND_MASK, KIND_SHIFT, QOS_MASK, RETAIN, Headers

PIECE_BYTES: Final = 64 * KIB  # of payloads: what is handed over before looking for room again


class Encoding(Protocol):
    """How one kind of reader wants its messages; equal encodings give equal bytes."""

    qos: int

    def forward_bytes(self, run: Run) -> bytes:
        """The whole run without packet ids, encoded at most once for all readers of a kind."""
        ...


class Run:
    """Messages [0, count) of one name; payload i is data[starts[i] : starts[i] + lengths[i]]."""

    __slots__ = (
        "count",
        "data",
        "encoded",
        "expires_at",
        "flags",
        "headers",
        "is_dense",
        "is_forwarded",
        "lengths",
        "name",
        "publisher",
        "qos",
        "retain",
        "starts",
        "until_us",
        "wire",
    )

    def __init__(
        self, name: str, data: bytes, starts: list[int], lengths: list[int], flags: int
    ) -> None:
        self.name = name
        self.data = data
        self.starts = starts
        self.lengths = lengths
        self.flags = flags  # of each record, as stored: QoS, RETAIN, kind of value
        self.count = len(lengths)
        self.qos = flags & QOS_MASK
        self.retain = flags & RETAIN != 0
        self.is_dense = False  # `data` is the payloads, and nothing between them
        self.is_forwarded = False  # readers have it by the fast lane: its commit delivers nothing
        self.publisher = ""
        self.headers: Headers = ()  # the same for each message
        self.until_us = 0  # steady time at which it expires; 0: never
        self.expires_at = 0  # the same as a stamp, as it is stored
        self.wire: object | None = None  # the encoding that `data` is in, if it can be forwarded
        self.encoded: dict[object, object] | None = None  # by encoding; made when a reader asks

    @property
    def kind(self) -> int:
        """Which kind of value the payloads are."""
        return self.flags >> KIND_SHIFT & KIND_MASK

    def part(self, first: int) -> Run:
        """The messages from `first` on, as a run of their own."""
        return self.pick(list(range(first, self.count)))

    def cut(self, first: int, end: int) -> Run:
        """Messages [first, end) as a run of their own; bytes that can be forwarded stay so."""
        part = self.pick(list(range(first, end)))
        if self.wire is not None:  # packets side by side: each ends with its payload
            start = self.starts[first - 1] + self.lengths[first - 1] if first else 0
            part.data = self.data[start : self.starts[end - 1] + self.lengths[end - 1]]
            part.starts = [at - start for at in part.starts]
            part.wire = self.wire
        return part

    def pick(self, indexes: list[int]) -> Run:
        """Some of the messages, as a run of their own."""
        rest = Run(
            self.name,
            self.data,
            [self.starts[at] for at in indexes],
            [self.lengths[at] for at in indexes],
            self.flags,
        )
        rest.publisher = self.publisher
        rest.headers = self.headers
        rest.until_us = self.until_us
        rest.expires_at = self.expires_at
        return rest


class MixedRun:
    """Plain messages of several names in one piece of bytes: counts[i] of names[i] in turn.

    QoS 0, and forwarded by the fast lane already: nobody waits for them.
    """

    __slots__ = ("counts", "data", "lengths", "names", "publisher", "starts")

    def __init__(
        self,
        names: list[str],
        counts: list[int],
        data: bytes,
        starts: list[int],
        lengths: list[int],
    ) -> None:
        self.names = names
        self.counts = counts
        self.data = data
        self.starts = starts
        self.lengths = lengths
        self.publisher = ""


def record_flags(qos: int, retain: bool, kind: int = KIND_BYTES) -> int:
    """The flags that every message of a run shares, as they are stored."""
    return qos | (RETAIN if retain else 0) | kind << KIND_SHIFT


def joined_run(name: str, payloads: Sequence[bytes], flags: int) -> Run:
    """A run whose data is the payloads, side by side."""
    data = payloads[0] if len(payloads) == 1 else b"".join(payloads)
    lengths = [len(payload) for payload in payloads]
    starts = list(accumulate(lengths[:-1], initial=0)) if lengths else []
    run = Run(name, data, starts, lengths, flags)
    run.is_dense = True
    return run


def run_of(
    name: str,
    payloads: Sequence[bytes],
    kind: int = KIND_BYTES,
    publisher: str = "",
    headers: Headers = (),
    *,
    qos: int = 1,
    retain: bool = False,
    expires_at: int = 0,
) -> Run:
    """Payloads that are published together, as a run."""
    run = joined_run(name, payloads, record_flags(qos, retain, kind))
    run.publisher = publisher
    run.headers = headers
    run.expires_at = expires_at
    return run


def pieces(run: Run) -> Iterator[tuple[int, Run]]:
    """(number of its first message, piece) of a run, about PIECE_BYTES each; most runs are one."""
    first = size = 0
    for at, length in enumerate(run.lengths):
        if size and size + length > PIECE_BYTES:
            yield first, run.cut(first, at)
            first, size = at, 0
        size += length
    yield first, run if first == 0 else run.cut(first, run.count)
