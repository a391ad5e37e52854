"""Messages on their way through the broker, many at a time.

A Run is what one publisher sent under one name in one go: the bytes as they arrived, and where in
them the payloads lie. It is stored without being taken apart and forwarded verbatim to readers
that want exactly these bytes. Compiled by mypyc; the same source runs interpreted.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Final, Protocol

from penstock.log.interface import Draft
from penstock.model.limits import KIB
from penstock.model.record import KIND_BYTES, Headers
from penstock.model.timeline import Timeline

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
        "headers",
        "kind",
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
        self,
        name: str,
        data: bytes,
        starts: list[int],
        lengths: list[int],
        qos: int,
        retain: bool,
    ) -> None:
        self.name = name
        self.data = data
        self.starts = starts
        self.lengths = lengths
        self.count = len(lengths)
        self.qos = qos
        self.retain = retain
        self.kind = KIND_BYTES
        self.publisher = ""
        self.headers: Headers = ()  # the same for each message
        self.until_us = 0  # steady time at which it expires; 0: never
        self.wire: object | None = None  # the encoding that `data` is in, if it can be forwarded
        self.encoded: dict[object, object] | None = None  # by encoding; made when a reader asks

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
            self.qos,
            self.retain,
        )
        rest.kind = self.kind
        rest.publisher = self.publisher
        rest.headers = self.headers
        rest.until_us = self.until_us
        return rest


def gathered(name: str, payloads: list[bytes], qos: int, retain: bool) -> Run:
    """Payloads that lie apart, as one run."""
    if len(payloads) == 1:
        return Run(name, payloads[0], [0], [len(payloads[0])], qos, retain)
    lengths = [len(payload) for payload in payloads]
    starts = list(accumulate(lengths, initial=0))
    starts.pop()
    return Run(name, b"".join(payloads), starts, lengths, qos, retain)


def draft_run(draft: Draft, clock: Timeline) -> Run:
    """What a draft stores now, as connected sessions are handed it."""
    run = gathered(draft.name, draft.payloads, draft.qos, draft.retain)
    run.kind = draft.kind
    run.publisher = draft.publisher
    run.headers = draft.headers
    if draft.expires_at:
        run.until_us = clock.until_us(clock.stamp_us(), draft.expires_at)
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
