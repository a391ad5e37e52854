"""A naive model of the delivery rule: one record, one filter after the other, as MQTT 5 says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from penstock.core.delivery.rule import Want

ME = "me"  # the client whose session it is


class Got(NamedTuple):
    """A record as a session gets it."""

    qos: int
    retain_as_published: bool
    identifiers: tuple[int, ...]


@dataclass
class Model:
    """What a session gets of one record."""

    live: Got | None = None
    from_log: Got | None = None


def model(wants: list[Want], offset: int, qos: int, publisher: str, keeps_qos0: bool) -> Model:
    best = -1
    keeps_flag = False
    is_owed = False
    numbers: list[int] = []
    for want in wants:
        if offset < want.since:
            continue  # the filter was not there yet
        if want.no_local and publisher == ME:
            continue
        if want.qos > best:
            best = want.qos
        if want.retain_as_published:
            keeps_flag = True
        if want.identifier and want.identifier not in numbers:
            numbers.append(want.identifier)
        if offset < want.owed_until:
            is_owed = True
    if best < 0:
        return Model()
    while best > qos:
        best -= 1
    got = Got(best, keeps_flag, tuple(sorted(numbers)))
    if best > 0 or keeps_qos0 or (is_owed and qos > 0):
        return Model(got, got)
    return Model(got, None)
