"""What a session's filters claim of one name's records: from which offset on, and at which QoS.

A record goes to a session once, at the highest QoS of the matching filters that were there when it
was stored (`since` up to its offset); filters with no-local do not count for what the session's own
client published. `stretches` says that for all offsets at once, so that whole columns of records
can be decided together. Dry; the broker decides record by record in broker/members, and a property
test holds the two together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.core.position import OFFSET_END

ANYBODY: Final = 0  # whoever published the record
OTHERS: Final = 1  # anybody but the session's own client
OWN: Final = 2  # the session's own client


class Claim(NamedTuple):
    """One filter that matches the name."""

    qos: int
    since: int  # the offset from which on it counts
    no_local: bool = False


class Stretch(NamedTuple):
    """Records [start, end) that go to the session at one QoS, or at their own if that is lower."""

    start: int
    end: int
    qos: int
    publishers: int = ANYBODY


def stretches(claims: Sequence[Claim]) -> list[Stretch]:
    """What the claims of one session on one name come to; no record is in two of them."""
    if not any(claim.no_local for claim in claims):
        return _steps(claims, ANYBODY)
    others = [claim for claim in claims if not claim.no_local]
    return _steps(claims, OTHERS) + _steps(others, OWN)


def _steps(claims: Sequence[Claim], publishers: int) -> list[Stretch]:
    found: list[Stretch] = []
    for claim in sorted(claims, key=lambda claim: claim.since):
        if found and claim.qos <= found[-1].qos:
            continue
        if found and found[-1].start == claim.since:
            found.pop()
        elif found:
            found[-1] = found[-1]._replace(end=claim.since)
        found.append(Stretch(claim.since, OFFSET_END, claim.qos, publishers))
    return found
