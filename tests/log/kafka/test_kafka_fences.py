"""Do all readers of a log that several nodes write to agree on which records count?

Nodes append, are declared dead and fenced, and append all the same, because they were only frozen.
A list of plain tuples says what readers have to find.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.fences import Fences
from penstock.log.fencing import fences_in
from penstock.log.format.batch import Batch
from penstock.log.format.builder import BatchBuilder
from penstock.log.format.marks import (
    MARK_IDEMPOTENCY_KEY,
    MARK_QOS2_OPENED,
    MARK_QOS2_RELEASED,
    NO_RECORD,
    fence_mark,
)
from penstock.log.kafka.records.mapping import decode_batch, encode_batch, record_count
from tests.appends import add
from tests.examples import examples
from tests.log.kafka.test_kafka_mapping import PRODUCER, TOPIC, T, stored
from tests.log.kafka.test_kafka_records import golden

Found = list[tuple[int, bytes]]  # offset, payload or key of a mark


@dataclass(frozen=True)
class Group:
    """Messages that are appended in one call."""

    count: int
    is_marked: bool


@dataclass(frozen=True)
class Append:
    """One commit of a node: messages of several publishers, marks of no message, fences."""

    node: int
    groups: tuple[Group, ...]
    released: int = 0
    fenced: tuple[int, ...] = ()


nodes = st.integers(1, 4)
groups = st.lists(st.builds(Group, st.integers(1, 3), st.booleans()), max_size=3).map(tuple)
appends = st.builds(
    Append, nodes, groups, st.integers(0, 2), st.lists(nodes, max_size=1).map(tuple)
).filter(lambda one: one.groups or one.released or one.fenced)


@dataclass
class FencedWorld:
    """A partition, and what it has to mean."""

    stored: list[bytes] = field(default_factory=list)
    bases: list[int] = field(default_factory=list)
    end: int = 0
    records: list[tuple[int, int, bytes, bool]] = field(default_factory=list)  # with node, marked
    marks: list[tuple[int, int, bytes]] = field(default_factory=list)
    fences: list[tuple[int, int]] = field(default_factory=list)  # incarnation, offset

    def append(self, one: Append) -> None:
        builder = BatchBuilder(T)
        guarded: list[tuple[int, int]] = []
        for group in one.groups:
            first = builder.count
            texts = [b"%d" % (self.end + first + i) for i in range(group.count)]
            add(builder, "n", texts, T, 1)
            for i, text in enumerate(texts):
                self.records.append((self.end + first + i, one.node, text, group.is_marked))
            if group.is_marked:
                guarded.append((first, builder.count))
                builder.add_mark(MARK_IDEMPOTENCY_KEY, texts[0], first)
                self.marks.append((self.end + first, one.node, texts[0]))
        alone = self.end + builder.count
        for number in range(one.released):
            builder.add_mark(MARK_QOS2_RELEASED, b"released %d" % number, NO_RECORD)
            self.marks.append((alone, one.node, b"released %d" % number))
        for incarnation in one.fenced:
            mark = fence_mark(incarnation)
            builder.add_mark(mark.kind, mark.key, NO_RECORD)
            self.fences.append((incarnation, alone))
        batch = builder.encode(1, self.end, 0)
        self.stored.append(encode_batch(batch, PRODUCER, 0, one.node, guarded))
        self.bases.append(self.end)
        self.end += record_count(batch, is_shared=True)

    def _counts(self, node: int, offset: int) -> bool:
        return not any(who == node and fence < offset for who, fence in self.fences)

    def messages_that_count(self) -> Found:
        return [
            (offset, text)
            for offset, node, text, is_marked in self.records
            if not is_marked or self._counts(node, offset)
        ]

    def marks_that_count(self) -> Found:
        return [(offset, key) for offset, node, key in self.marks if self._counts(node, offset)]

    def known_before(self, end: int) -> dict[int, int]:
        """What the catalog has of the fences before `end`: the first of each node."""
        known: dict[int, int] = {}
        for incarnation, offset in self.fences:
            if offset < end:
                known.setdefault(incarnation, offset)
        return known


def messages_in(batches: list[Batch]) -> Found:
    return [
        (record.offset, record.payload)
        for batch in batches
        for record in batch.records(TOPIC, batch.base_offset, batch.end_offset)
    ]


def marks_in(batches: list[Batch]) -> Found:
    found: Found = []
    for batch in batches:
        for mark in batch.marks():
            index = batch.header.count if mark.index == NO_RECORD else mark.index
            if mark.kind in (MARK_IDEMPOTENCY_KEY, MARK_QOS2_RELEASED, MARK_QOS2_OPENED):
                found.append((batch.base_offset + index, mark.key))
    return found


def follow(world: FencedWorld, start: int, fences: Fences) -> list[Batch]:
    """As a node reads its tail: every fence is learned on the way."""
    found: list[Batch] = []
    for data, base in zip(world.stored, world.bases, strict=True):
        if base >= start:
            for batch in decode_batch(stored(data, base), TOPIC, fences):
                for incarnation, offset in fences_in(batch):
                    fences.note(incarnation, offset)
                found.append(batch)
    return found


@examples(300)
@given(st.lists(appends, max_size=14), st.integers(0, 14))
def test_readers_of_any_kind_find_what_is_not_behind_a_fence_of_its_writer(
    plans: list[Append], late: int
) -> None:
    world = FencedWorld()
    for one in plans:
        world.append(one)
    fences = Fences()
    batches = follow(world, 0, fences)
    assert messages_in(batches) == world.messages_that_count()
    assert marks_in(batches) == world.marks_that_count()
    assert fences.as_dict() == world.known_before(world.end)
    # Offsets without messages are covered, so every offset can be read from.
    reached = 0
    for batch in batches:
        assert batch.base_offset == reached < batch.end_offset
        reached = batch.end_offset
    assert reached == world.end
    # Who opens the log later knows the fences before its end from the catalog.
    start = world.bases[late] if late < len(world.bases) else world.end
    tail = follow(world, start, Fences(world.known_before(start)))
    assert messages_in(tail) == [one for one in world.messages_that_count() if one[0] >= start]
    # Who reads old records again knows all fences before the end.
    everything = [
        batch
        for data, base in zip(world.stored, world.bases, strict=True)
        for batch in decode_batch(stored(data, base), TOPIC, fences)
    ]
    assert messages_in(everything) == world.messages_that_count()


@examples(300)
@given(st.lists(appends, max_size=14))
def test_what_a_node_may_acknowledge_counts_for_everybody(plans: list[Append]) -> None:
    """A node acknowledges marked records once it has read them, with no fence of it before."""
    world = FencedWorld()
    acknowledged: Found = []
    seen = Fences()
    for one in plans:
        before = len(world.records)
        world.append(one)
        if seen.offset_of(one.node) is None:
            acknowledged += [(offset, text) for offset, _, text, _ in world.records[before:]]
        for incarnation in one.fenced:
            seen.note(incarnation, world.end - 1)
    found = messages_in(follow(world, 0, Fences()))
    assert [one for one in acknowledged if one not in found] == []


def shared() -> Batch:
    builder = BatchBuilder(0)
    add(builder, "orders/1", [b"a", b"b"], T + 7, 1, "till")
    add(builder, "orders/2", [b"c"], T + 2_500, 1)
    builder.add_mark(MARK_IDEMPOTENCY_KEY, b"key", 0)
    builder.add_mark(MARK_QOS2_RELEASED, b"gone", NO_RECORD)
    mark = fence_mark(5)
    builder.add_mark(mark.kind, mark.key, NO_RECORD)
    return builder.encode(1, 0, 0)


def test_the_bytes_of_what_one_of_several_nodes_writes_stay_as_they_are() -> None:
    batch = shared()
    assert encode_batch(batch, PRODUCER, 11, 6, [(0, 2)]) == golden("penstock-node")
    assert record_count(batch, is_shared=True) == 4
    messages, marks = decode_batch(stored(golden("penstock-node"), 40), TOPIC)
    assert messages_in([messages]) == [(40, b"a"), (41, b"b"), (42, b"c")]
    assert [mark.key for mark in messages.marks()] == [b"key"]
    assert (marks.base_offset, marks.end_offset) == (43, 44)
    assert fences_in(marks) == [(5, 43)]
    assert (messages.incarnation, marks.incarnation) == (6, 6)
    # Void are the messages of the marked append, and what a dead node released, not its fences.
    messages, marks = decode_batch(stored(golden("penstock-node"), 40), TOPIC, Fences({6: 39}))[1:]
    assert messages_in([messages]) == [(42, b"c")]
    assert [mark.key for mark in marks.marks()] == [fence_mark(5).key]


def test_records_of_a_broker_alone_count_whatever_is_fenced() -> None:
    fences = Fences({6: 0})
    back = decode_batch(stored(golden("penstock-marks"), 40), TOPIC, fences)
    assert [mark.key for batch in back for mark in batch.marks()] == [b"gone"]
    assert back[0].incarnation == 0
