"""A will: what the broker publishes for a client that goes without saying so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.model.record import Headers

NO_WILL: Final = 0  # where the id of a will would stand


@dataclass(frozen=True, slots=True)
class Will:
    """The message, and how long after its client's end it is published."""

    name: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    headers: Headers = ()
    expiry_s: int | None = None  # counted from when it is published; None: never
    delay_s: int = 0


class Login(NamedTuple):
    """How the client came in that left a will; no secret."""

    proof: str = ""  # the kind of credential
    roles: tuple[str, ...] = ()  # of a key or a token; empty: those of the user
    credential: str = ""  # tells one credential of the kind from another
