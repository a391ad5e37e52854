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

from penstock.catalog.database import Database, Row
from penstock.catalog.thread import Runner
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

    def __init__(self, runner: Runner, tenant: TenantId) -> None:
        self._runner = runner
        self._tenant = tenant

    async def hold(
        self,
        client_id: str,
        owner: str,
        session_expiry_s: int,
        will: Will | None,
        replaced: int = NO_WILL,
        login: Login = NO_LOGIN,
    ) -> int:
        """Keep the will of a client that connects, if it has one, instead of its last; the id."""

        def work(database: Database) -> int:
            delete_wills(database, [replaced] if replaced else [])
            if will is None:
                return NO_WILL
            will_id = _next_id(database)
            database.execute(
                "insert into wills (tenant, will_id, client_id, owner, name, payload, qos, retain,"
                " headers, message_expiry_s, delay_s, session_expiry_s, due_at, proof, roles,"
                " credential)"
                " values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)",
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
            )
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
        """All wills of the tenant, in the order of their ids."""

        def work(database: Database) -> list[HeldWill]:
            rows = database.fetch(
                "select will_id, client_id, owner, delay_s, session_expiry_s, due_at from wills"
                " where tenant = $1 order by will_id",
                self._tenant,
            )
            return [HeldWill(*row) for row in rows]

        return await self._runner.run(work)

    async def load(self, will_ids: Sequence[int]) -> list[StoredWill]:
        """Those of the wills that are still there."""

        def work(database: Database) -> list[StoredWill]:
            found = [
                database.fetch(
                    "select will_id, client_id, owner, name, payload, qos, retain, headers,"
                    " message_expiry_s, delay_s, proof, roles, credential from wills"
                    " where will_id = $1",
                    will_id,
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
        name,
        bytes(payload),
        qos,
        bool(retain),
        msgspec.json.decode(headers, type=Headers),
        None if expiry_s == _NEVER else expiry_s,
        delay_s,
    )
    login = Login(proof, tuple(roles.split(",")) if roles else (), credential)
    return StoredWill(will_id, client_id, owner, login, will)
