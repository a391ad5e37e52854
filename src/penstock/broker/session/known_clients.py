"""Known clients: which client ids connected, whose they are, and when they were last seen.

Only what changed since the last checkpoint is in memory, and at most CHANGES_MAX of it. A client
that comes and goes costs a row of the next checkpoint, and no transaction of its own; a crash
forgets what no checkpoint saved.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeVar

from penstock.catalog.access.clients import CLIENTS_MAX, ClientCatalog, ClientRow, KnownClient
from penstock.catalog.session.saving import Checkpoint
from penstock.model.clock import Clock

__all__ = ["ASSIGNED_PREFIX", "ClientCatalog", "Credential", "KnownClient", "KnownClients"]

ASSIGNED_PREFIX: Final = "auto-"  # of client ids that the broker chose; they are not remembered
CLIENT_ID_CHARS_MAX: Final = 256  # longer ones are not remembered: MQTT allows 64 KB
CHANGES_MAX: Final = CLIENTS_MAX  # while the catalog cannot be written; then the oldest go

T = TypeVar("T")


class Credential(NamedTuple):
    """What a client showed; no secret."""

    type: str
    id: str  # of a key, or the fingerprint of a certificate
    certificate_name: str


class KnownClients:
    """A view: clients that connected or disconnected since the last checkpoint."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._arrived: dict[str, ClientRow] = {}
        self._left: dict[str, int] = {}  # when, by client id
        self._taken: tuple[dict[str, ClientRow], dict[str, int]] = ({}, {})

    def arrive(self, client_id: str, owner: str, credential: Credential, address: str) -> None:
        """A client was let in."""
        if _is_remembered(client_id):
            now_us = self._clock.now_us()
            seen = ClientRow(
                client_id,
                owner,
                *credential,
                last_address=address,
                first_seen=now_us,
                last_seen=now_us,
            )
            self._note(seen)

    def leave(self, client_id: str) -> None:
        """The connection of a client ended."""
        if _is_remembered(client_id):
            _put(self._left, client_id, self._clock.now_us())

    def _note(self, row: ClientRow) -> None:
        earlier = self._arrived.get(row.client_id)
        if earlier is not None:
            row = row._replace(first_seen=earlier.first_seen)
        _put(self._arrived, row.client_id, row)

    def take_changes(self, point: Checkpoint) -> bool:
        self._taken = (self._arrived, self._left)
        point.arrived = list(self._arrived.values())
        point.left = list(self._left.items())
        self._arrived, self._left = {}, {}
        return bool(point.arrived or point.left)

    def settle(self, *, is_saved: bool) -> None:
        if not is_saved:
            arrived, left = self._arrived, self._left
            self._arrived, self._left = self._taken
            for row in arrived.values():
                self._note(row)
            for client_id, at_us in left.items():
                _put(self._left, client_id, at_us)
        self._taken = ({}, {})


def _is_remembered(client_id: str) -> bool:
    return len(client_id) <= CLIENT_ID_CHARS_MAX and not client_id.startswith(ASSIGNED_PREFIX)


def _put(changes: dict[str, T], client_id: str, change: T) -> None:
    changes[client_id] = change
    if len(changes) > CHANGES_MAX:
        del changes[next(iter(changes))]
