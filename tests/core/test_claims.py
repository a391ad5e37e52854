"""Do stretches say of every record what the broker's members say of it, one by one?"""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.deliver.members import Member
from penstock.broker.session.session import Session, Subscription
from penstock.core.access import BROKER
from penstock.core.claims import ANYBODY, OTHERS, OWN, Claim, Stretch, stretches
from penstock.core.position import OFFSET_END
from penstock.core.run import Run

TOPIC_ID = 7
OFFSETS = 8  # of the random cases: `since` is below


class NoOutbox:
    """What a member asks of a connection when it is made."""

    principal = BROKER

    def encoding(self, qos: int, retain_as_published: bool, identifiers: tuple[int, ...]) -> Any:
        return None


def by_the_broker(claims: list[Claim], offset: int, publisher: str) -> int | None:
    """At which QoS the broker hands on a record of QoS 2; None: not at all."""
    session = Session("me", NoOutbox(), 10)  # type: ignore[arg-type]
    mine = []
    for number, claim in enumerate(claims):
        one = Subscription(session, f"f/{number}", claim.qos, claim.no_local)
        one.since = {TOPIC_ID: claim.since} if claim.since else {}
        mine.append(one)
    then, _ = Member(session, mine).as_of(TOPIC_ID, offset)
    run = Run("f", b"", [0], [0], 2)
    run.publisher = publisher
    reading = None if then is None else then.reading(run)
    return None if reading is None else min(2, reading.qos)


def by_stretches(claims: list[Claim], offset: int, publisher: str) -> int | None:
    found = [
        one.qos
        for one in stretches(claims)
        if one.start <= offset < one.end
        and one.publishers in (ANYBODY, OWN if publisher == "me" else OTHERS)
    ]
    assert len(found) <= 1, "a record goes to a session once"
    return found[0] if found else None


CLAIMS = st.lists(
    st.builds(Claim, st.integers(0, 2), st.integers(0, OFFSETS - 1), st.booleans()),
    min_size=1,
    max_size=6,
)


@given(CLAIMS)
def test_stretches_are_what_the_broker_decides_record_by_record(claims: list[Claim]) -> None:
    for offset in range(OFFSETS):
        for publisher in ("me", "other", ""):
            wanted = by_the_broker(claims, offset, publisher)
            assert by_stretches(claims, offset, publisher) == wanted, (offset, publisher)


def test_a_better_filter_that_came_later_raises_the_qos_from_there_on() -> None:
    assert stretches([Claim(2, 5), Claim(1, 2), Claim(0, 9)]) == [
        Stretch(2, 5, 1),
        Stretch(5, OFFSET_END, 2),
    ]


def test_a_session_that_wants_nothing_of_its_own_has_no_stretch_for_it() -> None:
    assert stretches([Claim(1, 3, no_local=True)]) == [Stretch(3, OFFSET_END, 1, OTHERS)]
