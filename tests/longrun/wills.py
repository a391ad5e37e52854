"""Which wills must be published, which may be, which never: one row for each connection.

The broker publishes a will at every end of a connection but a DISCONNECT it has read. After a kill
it waits for the client a little, so whether one that came back was in time is not known here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum

from tests.longrun.ledger import Ledger


class Fate(Enum):
    """What is known of a will."""

    ARMED = "its client is connected"
    LEAVING = "DISCONNECT is on its way"
    DUE = "it must be published"
    OPEN = "it may be published"
    NEVER = "its client has said goodbye"


@dataclass(slots=True)
class WillRow:
    client_id: str
    qos: int
    delay_s: int
    fate: Fate = Fate.OPEN
    was_killed: bool = False
    is_seen: bool = False


class Wills:
    """All wills of a run, by payload."""

    def __init__(self, ledger: Ledger) -> None:
        self.rows: dict[bytes, WillRow] = {}
        self._ledger = ledger
        self._newest: dict[str, WillRow] = {}  # client id -> that of its newest connection
        self._unseen: dict[bytes, WillRow] = {}

    def coming(self, client_id: str, qos: int | None, delay_s: int) -> bytes:
        """A CONNECT is sent, with a will unless `qos` is None; the payload of the will."""
        for row in self._unseen.values():
            if row.client_id == client_id and row.fate in (Fate.ARMED, Fate.DUE, Fate.LEAVING):
                is_sure = not row.delay_s and not row.was_killed and row.fate is not Fate.LEAVING
                row.fate = Fate.DUE if is_sure else Fate.OPEN
        self._newest.pop(client_id, None)
        payload = b"will %d of %s" % (len(self.rows), client_id.encode())
        if qos is not None:
            row = WillRow(client_id, qos, delay_s)
            self.rows[payload] = self._unseen[payload] = self._newest[client_id] = row
        return payload

    def _move(self, client_id: str, fate: Fate, *from_: Fate) -> None:
        row = self._newest.get(client_id)
        if row is not None and row.fate in from_:
            row.fate = fate

    def connected(self, client_id: str) -> None:
        self._move(client_id, Fate.ARMED, Fate.OPEN)

    def lost(self, client_id: str) -> None:
        self._move(client_id, Fate.DUE, Fate.ARMED)

    def leaving(self, client_id: str) -> None:
        self._move(client_id, Fate.LEAVING, Fate.ARMED)

    def left(self, client_id: str) -> None:
        self._move(client_id, Fate.NEVER, Fate.LEAVING)

    def killed(self) -> None:
        """The broker: what it had not heard or not said by then waits for its client again."""
        for row in self._unseen.values():
            row.was_killed = True
            if row.fate is Fate.ARMED:
                row.fate = Fate.DUE
            elif row.fate is Fate.LEAVING:
                row.fate = Fate.OPEN

    def published(self, payload: bytes) -> None:
        """The watcher got it; at QoS 2 it does so once."""
        row = self.rows[payload]
        if row.is_seen and row.qos == 2:
            self._ledger.complain(f"{payload!r} was published again: {row}")
        row.is_seen = True
        self._unseen.pop(payload, None)
        if row.fate in (Fate.ARMED, Fate.NEVER):
            self._ledger.complain(f"{payload!r} was published, and {row.fate.value}")

    def check_stored(self, counts: Counter[bytes]) -> None:
        """At the end, when none is waiting any more."""
        for payload, row in self.rows.items():
            allowed = {Fate.OPEN: (0, 1), Fate.NEVER: (0,)}.get(row.fate, (1,))
            if counts[payload] not in allowed or (row.is_seen and not counts[payload]):
                self._ledger.complain(f"{payload!r} is stored {counts[payload]} times: {row}")

    @property
    def due(self) -> list[bytes]:
        """What the watcher must still get; QoS 0 may pass it by."""
        return [p for p, row in self._unseen.items() if row.fate is Fate.DUE and row.qos]

    def close(self) -> None:
        """Forget what is over."""
        over = (Fate.NEVER, Fate.OPEN)
        self._unseen = {p: row for p, row in self._unseen.items() if row.fate not in over}
