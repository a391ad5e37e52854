"""The HTTP door, as its connections see it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from penstock.doors.budget import Budget
from penstock.doors.http.limits import HttpLimits
from penstock.doors.http.wire.messages import Request
from penstock.doors.serving import Serving

if TYPE_CHECKING:
    from penstock.doors.http.wire.bodies import BodyStream
    from penstock.doors.http.wire.connection import HttpConnection


class Host(Protocol):
    """What a connection asks of its door."""

    limits: HttpLimits
    budget: Budget  # for the bodies of clients that have logged in
    strangers: Budget  # for those of all others
    unsent: Budget  # for all that clients have still to take
    serving: Serving
    date: bytes  # the Date header, a second old at most
    is_stopping: bool
    send_s_max: float  # for a client that takes nothing of its answer, now

    def admit(self, request: Request) -> None:
        """Find out who sends a body that has not come whole; then `Request.admit`, or an error."""
        ...

    def dispatch(self, request: Request) -> None:
        """Answer it, now or later, through `Request.reply`."""
        ...

    def shared_headers(self, request: Request) -> tuple[tuple[str, str], ...]:
        """What web pages of other origins need to be told, if they may ask at all."""
        ...

    def produce(self, stream: BodyStream) -> asyncio.Task[None]:
        """Run a streamed body."""
        ...

    def relieve(self) -> None:
        """More waits to be taken than may: let go of those who have the most of it, soon."""
        ...

    def note_violation(self, protocol: str, peer: str, problem: str) -> None:
        """A client broke a rule: count it and log it."""
        ...

    def forget(self, connection: HttpConnection) -> None: ...
