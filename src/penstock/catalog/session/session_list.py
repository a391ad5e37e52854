"""Looking at stored sessions without touching them."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.catalog.cluster.share_parts import load_pins
from penstock.catalog.database.interface import Database
from penstock.catalog.database.thread import Runner
from penstock.catalog.session.stored_sessions import StoredSession, load_session
from penstock.model.record import TenantId


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session in the catalog, and whose it is.

    While its client is connected it has a position only where it lags.
    """

    owner: str
    is_connected: bool
    stored: StoredSession
    owner_inc: int = 0  # the node that has it; 0: none, or this broker is alone


class SessionList:
    """Reads the sessions of a tenant, over the catalog's runner."""

    def __init__(self, runner: Runner, tenant: TenantId, inc: int = 0) -> None:
        self._runner = runner
        self._tenant = tenant
        self._inc = inc

    async def find(self, client_ids: list[str]) -> dict[str, SessionRow]:
        """Those of these clients that have one."""
        # No client is called that (MQTT 5 §1.5.4), and PostgreSQL refuses to look for it.
        client_ids = [one for one in client_ids if "\0" not in one]

        def work(database: Database) -> dict[str, SessionRow]:
            found = {}
            for client_id in client_ids:
                rows = database.fetch(
                    "select owner, is_connected, coalesce(owner_inc, 0) from sessions"
                    " where tenant = $1 and client_id = $2",
                    self._tenant,
                    client_id,
                )
                for owner, is_connected, owner_inc in rows:
                    stored = load_session(database, self._tenant, client_id)
                    if self._inc:
                        stored.pins.extend(load_pins(database, self._tenant, client_id))
                    found[client_id] = SessionRow(owner, bool(is_connected), stored, owner_inc)
            return found

        return await self._runner.run(work)

    async def page(self, limit: int, after: str = "") -> list[str]:
        """Clients of all nodes that are connected or have a session, behind a client id."""
        after = after.partition("\0")[0]

        def work(database: Database) -> list[str]:
            rows = database.fetch(
                "select client_id from sessions where tenant = $1 and client_id > $2"
                " and (is_connected = 1 or expiry_s > 0) order by client_id limit $3",
                *(self._tenant, after, limit),
            )
            return [client_id for (client_id,) in rows]

        return await self._runner.run(work)
