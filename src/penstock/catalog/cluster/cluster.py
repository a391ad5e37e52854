"""The nodes of a catalog as one of them sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.catalog.cluster.holdings import forget_holdings
from penstock.catalog.cluster.nodes import (
    DEAD,
    LIVE,
    NodeRow,
    claim_recovery,
    list_nodes,
    mark_gone,
)
from penstock.catalog.cluster.recovering import FoundMarks, all_fences, give_back, node_levels
from penstock.catalog.cluster.share_parts import drop_member
from penstock.catalog.database.interface import Database
from penstock.catalog.database.thread import Runner
from penstock.model.errors import RefusedError
from penstock.model.record import TenantId


class ClusterCatalog:
    """Every method is one durable unit of work."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    async def list(self) -> list[NodeRow]:
        return await self._runner.run(list_nodes)

    async def set_address(self, inc: int, address: str, http_address: str = "") -> None:
        """Where the doors of a node are, once they are open; HTTP as other nodes reach it."""

        def work(database: Database) -> None:
            database.execute(
                "update nodes set address = $2, http_address = $3 where inc = $1",
                *(inc, address, http_address),
            )

        await self._runner.run(work)

    async def drain(self, inc: int, *, is_draining: bool = True) -> None:
        """Ask a node to send its clients away; RefusedError if it is not live."""

        def work(database: Database) -> None:
            if not database.execute(
                "update nodes set is_draining = $2 where inc = $1 and state = $3",
                *(inc, int(is_draining), LIVE),
            ):
                raise RefusedError(
                    f"no live node has the incarnation {inc}: `penstock node list` shows them"
                )

        await self._runner.run(work)

    async def claim_recovery(self, dead_inc: int, inc: int, *, is_overdue: bool) -> bool:
        return await self._runner.run(
            lambda database: claim_recovery(database, dead_inc, inc, is_overdue=is_overdue)
        )

    async def leave(self, inc: int, *, is_in_doubt: bool = False) -> None:
        """A node ends in order. What it could not give back, or left to others, is recovered.

        So is one that does not know what it stored last: it may have to be fenced.
        """

        def work(database: Database) -> None:
            left = [
                database.fetch(f"select 1 from {table} where {column} = $1 limit 1", inc)
                for table, column in (
                    ("sessions", "owner_inc"),
                    ("wills", "node_inc"),
                    ("share_parts", "owner_inc"),
                )
            ]
            if any(left) or is_in_doubt:
                database.execute("update nodes set state = $2 where inc = $1", inc, DEAD)
            else:
                database.execute("delete from claims where owner_inc = $1", inc)
                drop_member(database, inc)
                forget_holdings(database, inc)
                mark_gone(database, inc)

        await self._runner.run(work)

    async def levels(self, inc: int) -> dict[int, tuple[int, int]]:
        """(epoch, offset) by topic id: how far a node was at its newest checkpoint."""
        return await self._runner.run(lambda database: node_levels(database, inc))

    async def fences(self) -> dict[int, dict[int, int]]:
        """Offsets of fences, by topic id and incarnation."""
        return await self._runner.run(all_fences)

    async def give_back(
        self, dead_inc: int, inc: int, fences: Mapping[int, int], found: FoundMarks, now_us: int
    ) -> bool:
        """Free everything of a dead node; False if another node has recovered it."""
        return await self._runner.run(
            lambda database: give_back(
                database, dead_inc, inc, fences=fences, found=found, now_us=now_us
            )
        )

    async def ask(self, channel: str, question: str) -> None:
        """Tell all nodes what one of them is asked for."""

        def work(database: Database) -> None:
            database.fetch("select pg_notify($1, $2)", channel, question)

        await self._runner.run(work)

    async def claim(self, tenant: TenantId, kind: str, name: str, inc: int) -> int:
        """Work with something that one node at a time may: its incarnation, ours if it worked."""

        def work(database: Database) -> int:
            database.execute(
                "insert into claims (tenant, kind, name, owner_inc) values ($1, $2, $3, $4)"
                " on conflict (tenant, kind, name) do nothing",
                *(tenant, kind, name, inc),
            )
            ((owner,),) = database.fetch(
                "select owner_inc from claims where tenant = $1 and kind = $2 and name = $3",
                *(tenant, kind, name),
            )
            return int(owner)

        return await self._runner.run(work)

    async def claims(self, kind: str) -> dict[tuple[TenantId, str], int]:
        """The incarnations that work with things of a kind, by tenant and name."""

        def work(database: Database) -> dict[tuple[TenantId, str], int]:
            rows = database.fetch(
                "select tenant, name, owner_inc from claims where kind = $1", kind
            )
            return {(TenantId(tenant), str(name)): int(owner) for tenant, name, owner in rows}

        return await self._runner.run(work)

    async def hand_over(
        self, tenant: TenantId, kind: str, name: str, inc: int, target_inc: int
    ) -> bool:
        """Give what is ours to another node; False if that node is not live, or it is not ours."""

        def work(database: Database) -> bool:
            is_live = database.fetch(
                "select 1 from nodes where inc = $1 and state = $2 for share", target_inc, LIVE
            )
            return bool(is_live) and bool(
                database.execute(
                    "update claims set owner_inc = $5 where tenant = $1 and kind = $2"
                    " and name = $3 and owner_inc = $4",
                    *(tenant, kind, name, inc, target_inc),
                )
            )

        return await self._runner.run(work)

    async def split(
        self, tenant: TenantId, kind: str, whole: str, names: Sequence[str], inc: int
    ) -> None:
        """What this node has as one belongs to it by parts from now on."""

        def work(database: Database) -> None:
            if database.execute(
                "delete from claims where tenant = $1 and kind = $2 and name = $3"
                " and owner_inc = $4",
                *(tenant, kind, whole, inc),
            ):
                database.execute_many(
                    "insert into claims (tenant, kind, name, owner_inc) values ($1, $2, $3, $4)"
                    " on conflict (tenant, kind, name) do nothing",
                    [(tenant, kind, name, inc) for name in names],
                )

        await self._runner.run(work)
