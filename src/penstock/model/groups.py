"""How a group of readers stands, as brokers and clients tell it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from penstock.model.errors import InvalidSetting
from penstock.model.record import Offsets

LEASE_S: Final = 30.0
LEASE_S_MIN: Final = 0.01
LEASE_S_MAX: Final = 24 * 3600.0
DELIVERIES: Final = 5
DELIVERIES_MAX: Final = 1_000_000
FROM_START: Final[Offsets] = 0  # where a redrive begins, however many partitions there are
REDRIVE_STEP: Final = 1_000  # dead letters that one request puts back


# Records that an answer is about: offsets, or by partition where a topic has several; None: all.
PlacesLike = Sequence[int] | Mapping[str, Sequence[int]] | None


class Pending(msgspec.Struct, frozen=True, omit_defaults=True):
    """A record that is not done. Partition 0 is not written down."""

    offset: int
    deliveries: int
    state: str  # "leased", or "waiting" to be given out again
    expires_at: int  # of a lease; µs since 1970, UTC; 0: none
    partition: int = 0


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """How a group stands."""

    group: str
    next_offset: Offsets
    lag: int  # records that were never given out
    pending: list[Pending]
    lease_s: float = LEASE_S
    deliveries_max: int = DELIVERIES  # then a record is a dead letter; 0: never


@dataclass(frozen=True, slots=True)
class Redriven:
    """What a redrive did with the dead letters of a group."""

    dead_topic: str
    records: int  # put back by it; with a dry run, those that would be
    next_offset: Offsets  # of the dead-letter topic: where to go on
    is_complete: bool  # the end of the dead-letter topic was reached
    is_dry_run: bool = False


def check_lease_s(lease_s: float | None) -> float | None:
    """InvalidSetting for what is not a length of a lease; None stands for that of the group."""
    if lease_s is None:
        return None
    is_number = isinstance(lease_s, int | float) and not isinstance(lease_s, bool)
    if not is_number or not LEASE_S_MIN <= lease_s <= LEASE_S_MAX:
        raise InvalidSetting(
            f"lease_s is {lease_s!r}: use a number of seconds from {LEASE_S_MIN:g} to "
            f"{LEASE_S_MAX:g}"
        )
    return float(lease_s)


def check_deliveries_max(deliveries_max: int | None) -> int | None:
    """InvalidSetting for what is not a number of deliveries; None stands for that of the group."""
    if deliveries_max is None:
        return None
    is_int = isinstance(deliveries_max, int) and not isinstance(deliveries_max, bool)
    if not is_int or not 0 <= deliveries_max <= DELIVERIES_MAX:
        raise InvalidSetting(
            f"deliveries_max is {deliveries_max!r}: use an integer from 1 to {DELIVERIES_MAX}, or "
            "0 for no limit"
        )
    return deliveries_max


async def redrive_all(
    step: Callable[[Offsets, int], Awaitable[Redriven]], limit: int | None = None
) -> int:
    """Take steps, each from an offset on and with a limit, until all is done; how many records."""
    count, offset = 0, FROM_START
    while limit is None or count < limit:
        wanted = REDRIVE_STEP if limit is None else min(limit - count, REDRIVE_STEP)
        done = await step(offset, wanted)
        count += done.records
        offset = done.next_offset
        if done.is_complete:
            break
    return count
