"""Members: a connected session as a reader of names, with the encodings it takes.

The delivery rule (core/delivery/rule) decides; a member holds what it says about new messages, so
that delivering one decides nothing again. Compiled by mypyc; the same source runs interpreted.
"""

from __future__ import annotations

from penstock.broker.session.session import Session, Subscription
from penstock.core.delivery.rule import Reading, Stretch, combined, counts, granted_qos, stretches
from penstock.core.delivery.run import Encoding, Run


class Member:
    """A session that reads a name, through one or more of its subscriptions."""

    __slots__ = (
        "_others",
        "_reading",
        "_stretches",
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
        wants = [one.want() for one in subscriptions]
        reading = self._reading = combined(wants)
        self.qos = reading.qos
        self.is_owed = any(one.owed is not None for one in subscriptions)
        others = [one for at, one in enumerate(subscriptions) if counts(wants[at], is_own=True)]
        self.no_local = len(others) < len(subscriptions)  # one of them, at least
        self._others = Member(session, others) if self.no_local and others else None
        # By the QoS of the message: as the session gets it.
        self.encodings = [self.encoding(granted_qos(qos, reading)) for qos in range(3)]
        self._stretches: dict[int, list[Stretch]] | None = None  # by topic id; made when asked

    def encoding(self, qos: int, *, is_retained: bool = False) -> Encoding:
        """How it is sent a message at this QoS; one sent because it was retained says so."""
        reading = self._reading
        as_published = reading.retain_as_published or is_retained
        return self.outbox.encoding(qos, as_published, reading.identifiers)

    def encoding_then(self, reading: Reading, qos: int) -> Encoding:
        """How it is sent a stored message, for which perhaps fewer of its subscriptions count."""
        now = self._reading
        as_published, identifiers = reading.retain_as_published, reading.identifiers
        if as_published == now.retain_as_published and identifiers == now.identifiers:
            return self.encodings[qos]
        return self.outbox.encoding(qos, as_published, identifiers)

    def reading(self, run: Run) -> Member | None:
        """The member for this run: without its no-local subscriptions if it is the client's own."""
        if self.no_local and run.publisher == self.session.client_id:
            return self._others
        return self

    def is_owing(self, topic_id: int, end: int) -> bool:
        """Does a run that ends there come from the log, behind others that still have to?"""
        lag = self.session.lags.get(topic_id)
        if lag is None:
            return False
        is_owing = False
        for one in self._subscriptions:
            if one.owed is not None and one.owed.get(topic_id, 0) > lag:
                one.owed[topic_id] = end
                is_owing = True
        return is_owing

    def stretches(self, topic_id: int) -> list[Stretch]:
        """How it takes what is stored in a topic."""
        known = self._stretches
        if known is None:
            known = self._stretches = {}
        found = known.get(topic_id)
        if found is None:
            found = stretches([one.want(topic_id) for one in self._subscriptions])
            if not self.is_owed:  # what is owed may become more
                known[topic_id] = found
        return found
