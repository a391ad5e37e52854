"""The wills of clients, each a row from before its client is told that it is connected.

A row goes when its client says goodbye or comes back in time, or in the checkpoint that has seen
the will's mark in a log. So a row that is found at start, and whose mark is in no log, is a will
that has yet to be published. Ids are never given out twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from penstock.catalog.cluster.holdings import check_made
from penstock.catalog.database.interface import Database, Row
from penstock.catalog.database.thread import Runner
from penstock.core.quotas import WILLS, Limits
from penstock.model.record import Headers, TenantId
from penstock.model.will import NO_WILL, Login, Will

NOT_DUE: Final = 0  # `due_at` while the client is connected
NO_LOGIN: Final = Login()
_NEVER: Final = -1  # `message_expiry_s` of a message that does not expire


@dataclass(frozen=True, slots=True)
class HeldWill:
    """When a will is due and whose it is; everything but its message."""

    will_id: int
    client_id: str
    owner: str
    delay_s: int
    session_expiry_s: int
    due_at: int  # steady time; NOT_DUE while the client is connected


@dataclass(frozen=True, slots=True)
class StoredWill:
    """A will and who it is published for."""

    will_id: int
    client_id: str
    owner: str
    login: Login
    will: Will


class WillCatalog:
    """The wills of a tenant; every method is one durable unit of work."""

    def __init__(self, runner: Runner, tenant: TenantId, inc: int = 0) -> None:
        """`inc` is the incarnation of a node; 0 where one broker has the catalog for itself."""
        self._runner = runner
        self._inc = inc
        self._tenant = tenant

    async def hold(
        self,
        client_id: str,
        owner: str,
        session_expiry_s: int,
        will: Will | None,
        replaced: int = NO_WILL,
        login: Login = NO_LOGIN,
        limits: tuple[Limits, Limits] | None = None,
    ) -> int:
        """Keep the will of a client that connects, if it has one, instead of its last; the id.

        A node gives the quotas of the tenant and its users: QuotaExceeded if it is one too many.
        """

        def work(database: Database) -> int:
            delete_wills(database, [replaced] if replaced else [])
            if will is None:
                return NO_WILL
            will_id = _next_id(database)
            database.execute(
                "insert into wills (tenant, will_id, client_id, owner, name, payload, qos, retain,"
                " headers, message_expiry_s, delay_s, session_expiry_s, due_at, proof, roles,"
                " credential, node_inc)"
                " values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16,"
                " $17)",
                self._tenant,
                will_id,
                client_id,
                owner,
                will.name,
                will.payload,
                will.qos,
                int(will.retain),
                msgspec.json.encode(will.headers).decode(),
                _NEVER if will.expiry_s is None else will.expiry_s,
                will.delay_s,
                session_expiry_s,
                NOT_DUE,
                login.proof,
                ",".join(login.roles),
                login.credential,
                self._inc or None,
            )
            if limits is not None:
                check_made(database, self._tenant, WILLS, owner, limits)
            return will_id

        return await self._runner.run(work)

    async def set_due(self, will_id: int, due_at: int) -> None:
        """The client went; its will waits until then."""

        def work(database: Database) -> None:
            database.execute("update wills set due_at = $2 where will_id = $1", will_id, due_at)

        await self._runner.run(work)

    async def delete(self, will_id: int) -> None:
        """The client said goodbye: its will is never published."""
        await self._runner.run(lambda database: delete_wills(database, [will_id]))

    async def held(self) -> list[HeldWill]:
        """The wills of the tenant that this node has to publish, in the order of their ids.

        Those of no node are from before there were several: who starts first takes them.
        """

        def work(database: Database) -> list[HeldWill]:
            if self._inc:
                database.execute(
                    "update wills set node_inc = $2 where tenant = $1 and node_inc is null",
                    *(self._tenant, self._inc),
                )
            rows = database.fetch(
                "select will_id, client_id, owner, delay_s, session_expiry_s, due_at from wills"
                " where tenant = $1 and coalesce(node_inc, 0) = $2 order by will_id",
                *(self._tenant, self._inc),
            )
            return [HeldWill(*row) for row in rows]

        return await self._runner.run(work)

    async def settle_elsewhere(
        self, client_id: str, owner: str, *, is_clean: bool
    ) -> list[HeldWill]:
        """A client connects to this node: what becomes of wills that other nodes hold for it.

        Back in time, they are called off. A clean start publishes those whose client had gone:
        they are given to this node, and returned.
        """

        def work(database: Database) -> list[HeldWill]:
            key = (self._tenant, client_id, owner, self._inc)
            where = (
                " where tenant = $1 and client_id = $2 and owner = $3 and node_inc <> $4"
                " and claim_inc is null"
            )
            if not is_clean:
                database.execute(f"delete from wills{where}", *key)
                return []
            database.execute(f"delete from wills{where} and due_at = $5", *key, NOT_DUE)
            rows = database.fetch(
                "select will_id, client_id, owner, delay_s, session_expiry_s, due_at"
                f" from wills{where} order by will_id",
                *key,
            )
            database.execute(f"update wills set node_inc = $4{where}", *key)
            return [HeldWill(*row) for row in rows]

        return await self._runner.run(work)

    async def load(self, will_ids: Sequence[int]) -> list[StoredWill]:
        """Those of the wills that are still there; a node claims them, so that no other has them.

        One that was claimed is published by this node, or by who recovers it.
        """

        def work(database: Database) -> list[StoredWill]:
            if self._inc:
                database.execute_many(
                    "update wills set claim_inc = $2 where will_id = $1 and node_inc = $2",
                    [(will_id, self._inc) for will_id in will_ids],
                )
            found = [
                database.fetch(
                    "select will_id, client_id, owner, name, payload, qos, retain, headers,"
                    " message_expiry_s, delay_s, proof, roles, credential from wills"
                    " where will_id = $1 and coalesce(claim_inc, 0) = $2",
                    *(will_id, self._inc),
                )
                for will_id in will_ids
            ]
            return [_stored(row) for rows in found for row in rows]

        return await self._runner.run(work)


def delete_wills(database: Database, will_ids: Iterable[int]) -> None:
    database.execute_many(
        "delete from wills where will_id = $1", [(will_id,) for will_id in will_ids]
    )


def _next_id(database: Database) -> int:
    database.execute(
        "update counters set next_value = next_value + 1 where counter = $1", "will_id"
    )
    ((following,),) = database.fetch(
        "select next_value from counters where counter = $1", "will_id"
    )
    return int(following) - 1


def _stored(row: Row) -> StoredWill:
    will_id, client_id, owner, name, payload, qos, retain, headers, expiry_s, delay_s = row[:10]
    proof, roles, credential = row[10:]
    will = Will(
        name=name,
        payload=bytes(payload),
        qos=qos,
        retain=bool(retain),
        headers=msgspec.json.decode(headers, type=Headers),
        expiry_s=None if expiry_s == _NEVER else expiry_s,
        delay_s=delay_s,
    )
    login = Login(proof, tuple(roles.split(",")) if roles else (), credential)
    return StoredWill(will_id, client_id, owner, login, will)
