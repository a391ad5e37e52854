"""How a group of readers stands, as brokers and clients tell it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pending:
    """A record that is not done."""

    offset: int
    deliveries: int
    state: str  # "leased", or "waiting" to be given out again
    expires_at: int = 0  # of a lease; µs since 1970, UTC


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """How a group stands."""

    group: str
    next_offset: int
    lag: int  # records that were never given out
    pending: list[Pending]
