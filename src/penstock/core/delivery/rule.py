"""The delivery rule: does a session get a record, at which QoS, and with which options.

A session gets a record once, however many of its filters match the name. A filter counts for the
records from `since` on; with no-local it does not count for what the session's own client
published. The filters that count are combined: the highest QoS, but never above the record's; all
identifiers; the retain flag as published if one of them asks for it (MQTT 5 §3.3.4, §3.8.3.1).

A connected session that is level gets all of that. From the log, a session that was away or slow
gets what is above QoS 0 for it; the rest was forwarded to those who were there. There are two
exceptions. If the broker keeps QoS 0 for the session (`keeps_qos0`), everything comes from the log.
And what waited when a filter was replaced by one of QoS 0 is still owed to it [MQTT-3.8.4-4].

Routes, catching up, the counts of waiting messages, `penstock trace` and the Spark job `dispatch`
use this module.
Compiled by mypyc; the same source runs interpreted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.core.position import OFFSET_END

ANYBODY: Final = 0  # whoever published the record
OTHERS: Final = 1  # anybody but the session's own client
OWN: Final = 2  # the session's own client

NEVER_KEPT: Final = 3  # above every QoS: no record comes from the log


class Want:
    """One filter of a session that matches the name, as it counts in one topic."""

    __slots__ = ("identifier", "no_local", "owed_until", "qos", "retain_as_published", "since")

    def __init__(
        self,
        qos: int,
        since: int = 0,
        no_local: bool = False,
        retain_as_published: bool = False,
        identifier: int = 0,
        owed_until: int = 0,
    ) -> None:
        self.qos = qos
        self.since = since  # the offset from which on it counts
        self.no_local = no_local
        self.retain_as_published = retain_as_published
        self.identifier = identifier  # 0: none
        self.owed_until = owed_until  # below, records above QoS 0 come from the log also at QoS 0


class Reading:
    """How a session takes records: what its filters that count come to."""

    __slots__ = ("identifiers", "is_owed", "qos", "retain_as_published")

    def __init__(
        self, qos: int, retain_as_published: bool, identifiers: tuple[int, ...], is_owed: bool
    ) -> None:
        self.qos = qos  # the highest at which it takes a record
        self.retain_as_published = retain_as_published
        self.identifiers = identifiers  # ascending, each once
        self.is_owed = is_owed  # at QoS 0, and records above come from the log all the same

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Reading)
            and self.qos == other.qos
            and self.retain_as_published == other.retain_as_published
            and self.identifiers == other.identifiers
            and self.is_owed == other.is_owed
        )

    def __hash__(self) -> int:
        return hash((self.qos, self.retain_as_published, self.identifiers, self.is_owed))


class Stretch(NamedTuple):
    """Records [start, end) that a session takes in one way, if they are from these publishers."""

    start: int
    end: int
    publishers: int
    reading: Reading


def counts(want: Want, *, is_own: bool) -> bool:
    """Does it count for records of the session's own client, or of others?"""
    return not (is_own and want.no_local)


def combined(wants: Sequence[Want], *, is_owed: bool = False) -> Reading:
    """How a session takes a record for which all of these count; at least one does."""
    if len(wants) == 1:  # as nearly always
        qos, identifier = wants[0].qos, wants[0].identifier
        identifiers: tuple[int, ...] = (identifier,) if identifier else ()
        return Reading(qos, wants[0].retain_as_published, identifiers, is_owed and qos == 0)
    qos = max([one.qos for one in wants])
    as_published = any(one.retain_as_published for one in wants)
    identifiers = tuple(sorted({one.identifier for one in wants if one.identifier}))
    return Reading(qos, as_published, identifiers, is_owed and qos == 0)


def stretches(wants: Sequence[Want]) -> list[Stretch]:
    """How a session takes the records of one name in one topic; no record is in two of them.

    Those for one kind of publisher ascend. What lies outside of them the session does not get.
    """
    if not any(one.no_local for one in wants):
        return _steps(wants, ANYBODY)
    of_own = [one for one in wants if counts(one, is_own=True)]
    return _steps(wants, OTHERS) + _steps(of_own, OWN)


def _steps(wants: Sequence[Want], publishers: int) -> list[Stretch]:
    edges = {one.since for one in wants}
    edges.update([one.owed_until for one in wants if one.owed_until > one.since])
    found: list[Stretch] = []
    for start in sorted(edges):
        here = [one for one in wants if one.since <= start]
        reading = combined(here, is_owed=any(one.owed_until > start for one in here))
        if found:
            last = found[-1]
            if last.reading == reading:
                continue
            found[-1] = Stretch(last.start, start, publishers, last.reading)
        found.append(Stretch(start, OFFSET_END, publishers, reading))
    return found


def is_from(publishers: int, *, is_own: bool) -> bool:
    """Is a record of the session's own client, or of another, from these publishers?"""
    return publishers == ANYBODY or publishers == (OWN if is_own else OTHERS)


def granted_qos(record_qos: int, reading: Reading) -> int:
    """At which QoS a session that is level gets a record."""
    return record_qos if record_qos < reading.qos else reading.qos


def kept_from_qos(reading: Reading, *, keeps_qos0: bool) -> int:
    """The lowest QoS of records that come from the log; NEVER_KEPT if none does."""
    if keeps_qos0:
        return 0
    return 1 if reading.qos or reading.is_owed else NEVER_KEPT


def qos_from_log(record_qos: int, reading: Reading, *, keeps_qos0: bool) -> int | None:
    """At which QoS a record comes from the log; None if it does not."""
    if record_qos < kept_from_qos(reading, keeps_qos0=keeps_qos0):
        return None
    return granted_qos(record_qos, reading)


def is_ever_kept(want: Want, *, keeps_qos0: bool) -> bool:
    """May a record come from the log because of this filter?"""
    reading = combined([want], is_owed=want.owed_until > want.since)
    return kept_from_qos(reading, keeps_qos0=keeps_qos0) != NEVER_KEPT
