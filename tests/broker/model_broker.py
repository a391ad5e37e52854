"""A broker that is slow and obviously right: lists, and `names.matches` for every pair.

It knows nothing of logs, windows or routes: a message is put on the list of each session that is
to have it, at the moment it is published.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.core.naming.names import matches


@dataclass(frozen=True)
class Wanted:
    """A subscription's options."""

    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    identifier: int = 0


@dataclass(frozen=True)
class Message:
    """What one reader is handed of one publish."""

    name: str
    payload: bytes
    qos: int
    retain: bool
    identifiers: tuple[int, ...]


@dataclass
class ModelSession:
    is_kept: bool
    is_online: bool = True
    subscriptions: dict[str, Wanted] = field(default_factory=dict)
    due: list[Message] = field(default_factory=list)  # from commits, in order
    due_retained: list[Message] = field(default_factory=list)  # at subscribe, in any order


class ModelBroker:
    """Sessions by client id, and the retained message of each name."""

    def __init__(self, *, keeps_qos0: bool = False) -> None:
        self._keeps_qos0 = keeps_qos0
        self.sessions: dict[str, ModelSession] = {}
        self.retained: dict[str, tuple[bytes, int, str]] = {}  # payload, QoS, publisher

    def connect(self, client_id: str, *, clean: bool, is_kept: bool) -> bool:
        """True if the session was there before."""
        session = self.sessions.get(client_id)
        is_present = session is not None and not clean
        if session is None or clean:
            session = self.sessions[client_id] = ModelSession(is_kept)
        session.is_online, session.is_kept = True, is_kept
        return is_present

    def disconnect(self, client_id: str) -> None:
        session = self.sessions[client_id]
        session.is_online = False
        if not session.is_kept:
            del self.sessions[client_id]

    def subscribe(self, client_id: str, filter: str, wanted: Wanted) -> None:
        session = self.sessions[client_id]
        session.subscriptions[filter] = wanted
        identifiers = (wanted.identifier,) if wanted.identifier else ()
        for name, (payload, qos, publisher) in self.retained.items():
            if matches(filter, name) and not (wanted.no_local and publisher == client_id):
                message = Message(name, payload, min(qos, wanted.qos), True, identifiers)
                session.due_retained.append(message)

    def unsubscribe(self, client_id: str, filter: str) -> bool:
        return self.sessions[client_id].subscriptions.pop(filter, None) is not None

    def publish(self, client_id: str, name: str, payload: bytes, qos: int, retain: bool) -> None:
        if retain and payload:
            self.retained[name] = (payload, qos, client_id)
        elif retain:
            self.retained.pop(name, None)
        for reader, session in self.sessions.items():
            mine = [one for filter, one in session.subscriptions.items() if matches(filter, name)]
            mine = [one for one in mine if not (one.no_local and reader == client_id)]
            if not mine:
                continue
            granted = min(qos, max(one.qos for one in mine))
            if granted == 0 and not session.is_online and not self._keeps_qos0:
                continue  # not kept for those away
            shows = retain and any(one.retain_as_published for one in mine)
            identifiers = tuple(sorted({one.identifier for one in mine if one.identifier}))
            session.due.append(Message(name, payload, granted, shows, identifiers))
