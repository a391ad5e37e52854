"""Does the delivery rule say of every record what a naive model says, decided for it alone?

Those who use the rule are compared with the same model: members here, catching up in
tests/broker/deliver/test_catchup.py, the counts of waiting messages in
tests/broker/session/test_waiting.py, the Spark job `dispatch` in
tests/pipeline/jobs/test_matching.py.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.deliver.members import Member
from penstock.broker.session.session import Session, Subscription
from penstock.core.access import BROKER
from penstock.core.delivery.rule import (
    ANYBODY,
    OTHERS,
    OWN,
    Reading,
    Stretch,
    Want,
    combined,
    granted_qos,
    is_ever_kept,
    is_from,
    qos_from_log,
    stretches,
)
from penstock.core.delivery.run import Run, record_flags
from penstock.core.position import OFFSET_END
from tests.core.delivery.delivery_model import ME, Got, Model, model

TOPIC_ID = 7
OFFSETS = 8  # of the random cases: `since` and `owed_until` lie there
EVERY_RECORD = [
    (offset, qos, publisher)
    for offset in range(OFFSETS)
    for qos in range(3)
    for publisher in (ME, "other", "")
]


def by_the_rule(wants: list[Want], offset: int, qos: int, is_own: bool, keeps_qos0: bool) -> Model:
    found = [
        one.reading
        for one in stretches(wants)
        if one.start <= offset < one.end and is_from(one.publishers, is_own=is_own)
    ]
    assert len(found) <= 1, "a session gets a record once"
    if not found:
        return Model()
    reading = found[0]
    rest = (reading.retain_as_published, reading.identifiers)
    from_log = qos_from_log(qos, reading, keeps_qos0=keeps_qos0)
    return Model(
        Got(granted_qos(qos, reading), *rest),
        None if from_log is None else Got(from_log, *rest),
    )


OFFSET = st.integers(0, OFFSETS - 1)
WANTS = st.lists(
    st.one_of(
        st.builds(Want, st.integers(0, 2), OFFSET, st.booleans(), st.booleans(), st.integers(0, 3)),
        st.builds(  # only a filter of QoS 0 is owed something
            Want, st.just(0), OFFSET, st.booleans(), st.booleans(), st.integers(0, 3), OFFSET
        ),
    ),
    min_size=1,
    max_size=6,
)


@given(WANTS, st.booleans())
def test_every_record_is_given_as_a_naive_model_gives_it(
    wants: list[Want], keeps_qos0: bool
) -> None:
    for offset, qos, publisher in EVERY_RECORD:
        expected = model(wants, offset, qos, publisher, keeps_qos0)
        found = by_the_rule(wants, offset, qos, publisher == ME, keeps_qos0)
        assert found == expected, (offset, qos, publisher)


@given(WANTS, st.booleans())
def test_filters_that_never_bring_anything_from_the_log_are_known(
    wants: list[Want], keeps_qos0: bool
) -> None:
    for want in wants:
        comes = [
            model([want], offset, qos, "other", keeps_qos0).from_log
            for offset in range(OFFSETS)
            for qos in range(3)
        ]
        assert is_ever_kept(want, keeps_qos0=keeps_qos0) == any(one is not None for one in comes)


@given(WANTS)
def test_stretches_of_one_kind_of_publisher_ascend_and_each_differs_from_the_one_before(
    wants: list[Want],
) -> None:
    for publishers in (ANYBODY, OTHERS, OWN):
        mine = [one for one in stretches(wants) if one.publishers == publishers]
        for one, following in pairwise(mine):
            assert one.start < one.end == following.start
            assert one.reading != following.reading
        assert all(one.end == OFFSET_END for one in mine[-1:])


# Members: what a route holds of the rule


class Kind:
    """An encoding that remembers what it is for."""

    def __init__(self, qos: int, as_published: bool, identifiers: tuple[int, ...]) -> None:
        self.qos = qos
        self.got = Got(qos, as_published, identifiers)


class NoOutbox:
    """What a member asks of a connection when it is made."""

    principal = BROKER

    def encoding(self, qos: int, retain_as_published: bool, identifiers: tuple[int, ...]) -> Any:
        return Kind(qos, retain_as_published, identifiers)


def member_of(wants: list[Want]) -> Member:
    session = Session(ME, NoOutbox(), 10)  # type: ignore[arg-type]
    mine = []
    for number, want in enumerate(wants):
        one = Subscription(session, f"f/{number}", want.qos, want.no_local)
        one.retain_as_published = want.retain_as_published
        one.identifier = want.identifier
        one.since = {TOPIC_ID: want.since} if want.since else {}
        one.owed = {TOPIC_ID: want.owed_until} if want.owed_until else None
        mine.append(one)
    return Member(session, mine)


@given(WANTS)
def test_a_member_takes_new_messages_as_the_rule_says_of_the_newest_record(
    wants: list[Want],
) -> None:
    member = member_of(wants)
    for qos in range(3):
        for publisher in (ME, "other", ""):
            run = Run("f", b"", [0], [0], record_flags(qos, False))
            run.publisher = publisher
            reading = member.reading(run)
            encoding: Any = None if reading is None else reading.encodings[qos]
            expected = by_the_rule(wants, OFFSETS, qos, publisher == ME, False).live
            assert (None if encoding is None else encoding.got) == expected


@given(WANTS, st.booleans())
def test_a_member_takes_stored_messages_as_the_rule_says(
    wants: list[Want], keeps_qos0: bool
) -> None:
    member = member_of(wants)
    assert member.stretches(TOPIC_ID) == stretches(wants)
    for stretch in member.stretches(TOPIC_ID):
        for qos in range(3):
            sent = qos_from_log(qos, stretch.reading, keeps_qos0=keeps_qos0)
            if sent is not None:
                encoding: Any = member.encoding_then(stretch.reading, sent)
                reading = stretch.reading
                assert encoding.got == (sent, reading.retain_as_published, reading.identifiers)


# By hand


def taken(qos: int, *, is_owed: bool = False) -> Reading:
    return Reading(qos, False, (), is_owed)


def test_a_better_filter_that_came_later_raises_the_qos_from_there_on() -> None:
    assert stretches([Want(2, 5), Want(1, 2), Want(0, 9)]) == [
        Stretch(2, 5, ANYBODY, taken(1)),
        Stretch(5, OFFSET_END, ANYBODY, taken(2)),
    ]


def test_a_session_that_wants_nothing_of_its_own_has_no_stretch_for_it() -> None:
    assert stretches([Want(1, 3, no_local=True)]) == [Stretch(3, OFFSET_END, OTHERS, taken(1))]


def test_what_is_owed_at_qos_0_ends_where_it_was_owed() -> None:
    found = stretches([Want(0, 2, owed_until=6)])
    assert found == [
        Stretch(2, 6, ANYBODY, taken(0, is_owed=True)),
        Stretch(6, OFFSET_END, ANYBODY, taken(0)),
    ]
    owed, rest = (one.reading for one in found)
    assert qos_from_log(1, owed, keeps_qos0=False) == 0
    assert qos_from_log(0, owed, keeps_qos0=False) is None
    assert qos_from_log(1, rest, keeps_qos0=False) is None


def test_identifiers_and_the_retain_flag_are_those_of_all_filters_that_count() -> None:
    wants = [Want(1, identifier=9), Want(0, identifier=2, retain_as_published=True), Want(2)]
    assert combined(wants) == Reading(2, True, (2, 9), False)
