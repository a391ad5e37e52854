"""Random batches beside what they must hold, said in plain Python lists."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

from penstock.log.format.batch import Batch
from penstock.log.format.builder import BatchBuilder
from penstock.log.format.marks import NO_RECORD, Mark, encode_headers
from penstock.model.record import Headers, Record
from tests.appends import add, add_gapped

TOPIC = "topic"
T = 1_700_000_000_000_000
STEPS_US = [-(10**9), -1, 0, 0, 0, 1, 1_000, 10**9, 2**32 - 1, 2**32, 2**33]

texts = st.text(max_size=6)  # hypothesis leaves surrogates out of what UTF-8 can hold
names = st.sampled_from(["a", "b", "a/b", "ü/☃", "", "p"]) | texts
payloads = st.binary(max_size=12)
header_pairs = st.lists(st.tuples(st.sampled_from(["k", "K", "", "ü"]) | texts, texts), max_size=3)


@dataclass(frozen=True)
class RunPlan:
    """Records handed over together; `junk` bytes lie before each payload when it is gapped."""

    name: str
    payloads: list[bytes]
    step_us: int
    qos: int
    retain: bool
    kind: int
    publisher: str
    expires_at: int
    headers: Headers
    junk: list[bytes] | None
    mark_kinds: list[int]

    @property
    def flags(self) -> int:
        return self.qos | self.retain << 2 | self.kind << 3


@st.composite
def run_plans(draw: st.DrawFn, gapped: bool | None = None) -> RunPlan:
    held = draw(st.lists(payloads, min_size=1, max_size=5))
    is_gapped = draw(st.booleans()) if gapped is None else gapped
    junk = draw(st.lists(st.binary(max_size=4), min_size=len(held), max_size=len(held)))
    return RunPlan(
        draw(names),
        held,
        draw(st.sampled_from(STEPS_US)),
        draw(st.integers(0, 2)),
        draw(st.booleans()),
        draw(st.integers(0, 2)),
        draw(st.sampled_from(["", "", "p", "q", "a"])),
        draw(st.sampled_from([0, 0, 1, T + 5, 2**62])),
        tuple(draw(st.just([]) | header_pairs)),
        junk if is_gapped else None,
        draw(st.lists(st.integers(1, 255), max_size=2)),
    )


@dataclass
class ModelLog:
    """What a reader must find: records in order, and marks with the offset they guard (or None)."""

    records: list[Record] = field(default_factory=list)
    marks: list[tuple[int, bytes, int | None]] = field(default_factory=list)
    last_timestamp: int = T
    clock: int = T

    @property
    def end(self) -> int:
        return len(self.records)

    def take(self, builder: BatchBuilder, plan: RunPlan) -> None:
        """Hand a run to the builder and note what it holds."""
        self.clock += plan.step_us
        self.last_timestamp = max(self.last_timestamp, self.clock)
        encoded = encode_headers(plan.headers)
        shared = (self.clock, plan.flags, plan.publisher, plan.expires_at, encoded)
        before = builder.count
        if plan.junk is None:
            index = add(builder, plan.name, plan.payloads, *shared)
        else:
            chunk = b""
            starts = []
            for junk, payload in zip(plan.junk, plan.payloads, strict=True):
                starts.append(len(chunk) + len(junk))
                chunk += junk + payload
            lengths = list(map(len, plan.payloads))
            index = add_gapped(builder, plan.name, chunk, starts, lengths, *shared)
        assert index == before
        for number, kind in enumerate(plan.mark_kinds):
            key = b"%d" % number * kind
            has_record = number == 0
            at = before + len(plan.payloads) - 1 if has_record else NO_RECORD
            builder.add_mark(kind, key, at)
            guarded = self.end + len(plan.payloads) - 1 if has_record else None
            self.marks.append((kind, key, guarded))
        for payload in plan.payloads:
            self.records.append(
                Record(
                    TOPIC,
                    0,
                    self.end,
                    self.last_timestamp,
                    plan.name,
                    payload,
                    plan.headers,
                    plan.publisher,
                    plan.qos,
                    plan.retain,
                    plan.expires_at or None,
                    plan.kind,
                )
            )

    def batch(self, plans: list[RunPlan], epoch: int = 1, prev_checksum: int = 0) -> Batch:
        """The next batch of this log, in its encoded form."""
        builder = BatchBuilder(self.last_timestamp)
        base = self.end
        for plan in plans:
            self.take(builder, plan)
        batch = builder.encode(epoch, base, prev_checksum)
        batch.to_bytes()
        return batch

    def offset_at(self, timestamp: int) -> int:
        return next((r.offset for r in self.records if r.timestamp >= timestamp), self.end)


def placed_marks(batches: list[Batch]) -> list[tuple[int, bytes, int | None]]:
    return [
        (m.kind, m.key, None if m.index == NO_RECORD else batch.base_offset + m.index)
        for batch in batches
        for m in batch.marks()
    ]


def mark_list(marks: list[Mark]) -> list[tuple[int, bytes, int]]:
    return [(m.kind, m.key, m.index) for m in marks]
