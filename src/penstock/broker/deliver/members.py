"""Members: a connected session as a reader of names, with the encodings it takes.

Compiled by mypyc; the same source runs interpreted.
"""

from __future__ import annotations

from penstock.broker.session.session import OFFSET_MASK, Session, Subscription
from penstock.core.run import Encoding, Run


class Member:
    """A session that reads a name, through one or more of its subscriptions."""

    __slots__ = (
        "_others",
        "_subscriptions",
        "encodings",
        "is_owed",
        "no_local",
        "outbox",
        "qos",
        "session",
    )

    def __init__(self, session: Session, subscriptions: list[Subscription]) -> None:
        outbox = session.outbox
        assert outbox is not None, "only connected sessions are routed to"
        self.session = session
        self._subscriptions = subscriptions
        self.outbox = outbox
        self.qos = max([one.qos for one in subscriptions])
        self.is_owed = any(one.owed is not None for one in subscriptions)
        others = [one for one in subscriptions if not one.no_local]
        self.no_local = len(others) < len(subscriptions)  # one of them, at least
        self._others = Member(session, others) if self.no_local and others else None
        as_published = any(one.retain_as_published for one in subscriptions)
        identifiers = self._identifiers()
        self.encodings = [outbox.encoding(qos, as_published, identifiers) for qos in range(3)]

    def _identifiers(self) -> tuple[int, ...]:
        return tuple(sorted({one.identifier for one in self._subscriptions if one.identifier}))

    def retained_encoding(self, qos: int) -> Encoding:
        """How it takes a message that is sent because it was retained."""
        return self.outbox.encoding(qos, True, self._identifiers())

    def reading(self, run: Run) -> Member | None:
        """The member for this run: without its no-local subscriptions if it is the client's own."""
        if self.no_local and run.publisher == self.session.client_id:
            return self._others
        return self

    def owed_until(self, topic_id: int) -> int:
        """Up to which offset messages that it takes at QoS 0 come to it from the log."""
        ends = [one.owed.get(topic_id, 0) for one in self._subscriptions if one.owed is not None]
        return max(ends) if ends else 0

    def is_owing(self, topic_id: int, end: int) -> bool:
        """Does a run that ends there come from the log, behind others that still have to?"""
        lag = self.session.lags.get(topic_id)
        if lag is None or lag >= self.owed_until(topic_id):
            return False
        for one in self._subscriptions:
            if one.owed is not None and one.owed.get(topic_id, 0) > lag:
                one.owed[topic_id] = end
        return True

    def as_of(self, topic_id: int, offset: int) -> tuple[Member | None, int]:
        """The member with the subscriptions that count at an offset, and up to where they do.

        None if there were none yet.
        """
        later = [one.since.get(topic_id, 0) for one in self._subscriptions]
        later = [since for since in later if since > offset]
        if not later:
            return self, OFFSET_MASK
        mine = [one for one in self._subscriptions if one.since.get(topic_id, 0) <= offset]
        return Member(self.session, mine) if mine else None, min(later)
