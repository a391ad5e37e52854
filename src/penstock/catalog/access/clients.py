"""Known clients: every client id that connected, durable in SQL with the next checkpoint.

At most CLIENTS_MAX are kept for each tenant: those that were seen last.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from penstock.catalog.database.interface import Database, Value
from penstock.catalog.database.thread import Runner
from penstock.core.naming.names import quoted
from penstock.model.errors import RefusedError
from penstock.model.record import TenantId

CLIENTS_MAX: Final = 100_000  # of a tenant: about 20 MB


class ClientRow(NamedTuple):
    """A client as it connected last; times are µs since 1970, UTC."""

    client_id: str
    owner: str  # '' for an anonymous client
    credential_type: str  # password, key, certificate, token or none
    credential: str  # id of the key or fingerprint of the certificate; '' for others
    certificate_name: str  # common name of the certificate
    last_address: str
    first_seen: int
    last_seen: int  # when it connected or disconnected last


class KnownClient(NamedTuple):
    row: ClientRow
    has_session: bool  # that outlives its connection


_COLUMNS: Final = ", ".join(ClientRow._fields)
_SEE: Final = (
    f"select {_COLUMNS}, (select count(*) from sessions where sessions.tenant = clients.tenant"
    " and sessions.client_id = clients.client_id and sessions.expiry_s > 0) from clients"
)


class ClientCatalog:
    """The known clients of a tenant, over the catalog's runner."""

    def __init__(self, runner: Runner, tenant: TenantId) -> None:
        self._runner = runner
        self._tenant = tenant

    async def page(self, limit: int, after: str = "") -> list[KnownClient]:
        """Those behind a client id, in the order of their ids."""
        # No client id has a NUL, and PostgreSQL refuses to compare with one.
        after = after.partition("\0")[0]
        sql = f"{_SEE} where tenant = $1 and client_id > $2 order by client_id limit $3"
        return await self._see(sql, after, limit)

    async def find(self, client_id: str) -> list[KnownClient]:
        """The client; empty if it is not known."""
        if "\0" in client_id:
            return []
        return await self._see(f"{_SEE} where tenant = $1 and client_id = $2", client_id)

    async def _see(self, sql: str, *args: Value) -> list[KnownClient]:
        def work(database: Database) -> list[KnownClient]:
            rows = database.fetch(sql, self._tenant, *args)
            return [KnownClient(ClientRow(*row[:-1]), bool(row[-1])) for row in rows]

        return await self._runner.run(work)

    async def forget(self, client_id: str) -> bool:
        """Whether the client was known; RefusedError while it has a session."""
        if "\0" in client_id:
            return False

        def work(database: Database) -> bool:
            key = (self._tenant, client_id)
            if database.fetch("select 1 from sessions where tenant = $1 and client_id = $2", *key):
                raise RefusedError(
                    f"client {quoted(client_id)} has a session: delete it first with "
                    "`penstock session kick ID --forget`"
                )
            deleted = database.execute(
                "delete from clients where tenant = $1 and client_id = $2", *key
            )
            return bool(deleted)

        return await self._runner.run(work)


def save_clients(
    database: Database,
    tenant: TenantId,
    arrived: Iterable[ClientRow],
    left: Iterable[tuple[str, int]],
    clients_max: int = CLIENTS_MAX,
) -> None:
    """Part of a checkpoint: clients that connected, and those that disconnected with the time.

    Above the bound those that were not seen for longest are forgotten.
    """
    added = database.execute_many(
        f"insert into clients (tenant, {_COLUMNS})"
        " values ($1, $2, $3, $4, $5, $6, $7, $8, $9) on conflict (tenant, client_id)"
        " do update set owner = excluded.owner, credential_type = excluded.credential_type,"
        " credential = excluded.credential, certificate_name = excluded.certificate_name,"
        " last_address = excluded.last_address, last_seen = excluded.last_seen",
        [(tenant, *row) for row in arrived],
    )
    database.execute_many(
        "update clients set last_seen = $3 where tenant = $1 and client_id = $2 and last_seen < $3",
        [(tenant, *one) for one in left],
    )
    if added:
        _forget_oldest(database, tenant, clients_max)


def _forget_oldest(database: Database, tenant: TenantId, clients_max: int) -> None:
    ((count,),) = database.fetch("select count(*) from clients where tenant = $1", tenant)
    if count > clients_max:
        database.execute(
            "delete from clients where tenant = $1 and client_id in (select client_id"
            " from clients where tenant = $1 order by last_seen, client_id limit $2)",
            tenant,
            count - clients_max,
        )
