"""What tenants and users hold of their quotas, on all nodes together: units of work.

Two sorts of rows in `holdings`, by the kind of what they count:

- *Stored* things (sessions, wills) are counted by triggers, whoever changes their tables. Each
  connection to the database has rows of its own and adds to them; a row may be below zero.
- Things that *a node has* (connections, subscriptions, what was published in the last second) are
  written by that node, with its incarnation, and go with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.catalog.cluster.nodes import GONE, LIVE
from penstock.catalog.database.interface import Database
from penstock.catalog.database.thread import Runner
from penstock.core.quotas import SESSIONS, WILLS, Limits
from penstock.model.record import TenantId

TENANT: Final = "tenant"  # the holder of what all users of a tenant have together
STORED: Final = ((SESSIONS, "sessions"), (WILLS, "wills"))  # and their tables

Key = tuple[str, str]  # kind and holder

# A session is counted for its tenant and its owner. The table is named with its schema: whoever
# deletes a row by hand may have another search path.
_FUNCTION: Final = """
    create or replace function count_holdings() returns trigger language plpgsql as $body$
    declare
        adding constant text := format(
            'insert into %I.holdings as h (tenant, kind, holder, stripe, amount)'
            ' values ($1, $2, ''tenant'', $4, $5), ($1, $2, ''user '' || $3, $4, $5)'
            ' on conflict (tenant, kind, holder, stripe)'
            ' do update set amount = h.amount + excluded.amount', tg_table_schema);
    begin
        if tg_op <> 'INSERT' then
            execute adding using old.tenant, tg_argv[0], old.owner, pg_backend_pid()::bigint, -1;
        end if;
        if tg_op <> 'DELETE' then
            execute adding using new.tenant, tg_argv[0], new.owner, pg_backend_pid()::bigint, 1;
        end if;
        return null;
    end
    $body$
"""


def user_holder(user: str) -> str:
    """The holder of what one user has; '' is all anonymous clients of a tenant."""
    return f"user {user}"


def install_counting(database: Database, schema: str) -> None:
    """Inside the transaction of a node that joins: count what is stored from now on.

    The rows of connections that are gone are added up, so that their number stays small.
    """
    found = database.fetch(
        "select 1 from pg_trigger t join pg_class c on c.oid = t.tgrelid"
        " join pg_namespace n on n.oid = c.relnamespace"
        " where n.nspname = $1 and t.tgname = 'count_holdings'",
        schema,
    )
    if found:
        _add_up(database)
        _forget_gone(database)
        return
    database.execute(_FUNCTION)
    for kind, table in STORED:
        # Nobody changes the table between the trigger, which locks it, and the end of this.
        database.execute(
            f"create trigger count_holdings after insert or delete or update of owner on {table}"
            f" for each row execute function count_holdings('{kind}')"
        )
        database.execute(
            "insert into holdings (tenant, kind, holder, stripe, amount)"
            f" select tenant, $1, $2, 0, count(*) from {table} group by tenant"
            " union all select tenant, $1, 'user ' || owner, 0, count(*)"
            f" from {table} group by tenant, owner",
            *(kind, TENANT),
        )


def _add_up(database: Database) -> None:
    for kind, _ in STORED:
        database.execute(
            "with old as (delete from holdings where kind = $1 and stripe not in"
            " (select pid from pg_stat_activity where pid is not null)"
            " returning tenant, holder, amount)"
            " insert into holdings (tenant, kind, holder, stripe, amount)"
            " select tenant, $1, holder, pg_backend_pid(), sum(amount) from old"
            " group by tenant, holder having sum(amount) <> 0"
            " on conflict (tenant, kind, holder, stripe)"
            " do update set amount = holdings.amount + excluded.amount",
            kind,
        )


def _forget_gone(database: Database) -> None:
    """What nodes had that a node of an earlier version recovered, which knows nothing of it."""
    kinds = [kind for kind, _ in STORED]
    database.execute(
        "delete from holdings where kind not in ($1, $2)"
        " and stripe not in (select inc from nodes where state <> $3)",
        *(*kinds, GONE),
    )


def held(database: Database, tenant: TenantId, kind: str, user: str) -> tuple[int, int]:
    """How many the tenant and the user have, with what this transaction has changed."""
    rows = database.fetch(
        "select holder, sum(amount)::bigint from holdings"
        " where tenant = $1 and kind = $2 and holder in ($3, $4) group by holder",
        *(tenant, kind, TENANT, user_holder(user)),
    )
    found = {str(holder): int(amount) for holder, amount in rows}
    return found.get(TENANT, 0), found.get(user_holder(user), 0)


def check_made(
    database: Database, tenant: TenantId, kind: str, user: str, limits: tuple[Limits, Limits]
) -> None:
    """QuotaExceeded if the one that this transaction has just made is one too many.

    It has taken a number from `counters` for it, which nodes do one after the other, until they
    commit. So it sees everything that others made before.
    """
    of_tenant, of_user = limits
    if of_tenant.get(kind) is None and of_user.get(kind) is None:
        return
    by_tenant, by_user = held(database, tenant, kind, user)
    of_user.check(kind, by_user - 1)
    of_tenant.check(kind, by_tenant - 1)


class HoldingCatalog:
    """What the nodes have of a tenant's quotas; every method is one durable unit of work."""

    def __init__(self, runner: Runner, tenant: TenantId, inc: int) -> None:
        self._runner = runner
        self._tenant = tenant
        self._inc = inc

    async def put(self, amounts: dict[Key, int]) -> None:
        """This node has so many."""
        rows = [(self._tenant, *key, self._inc, amount) for key, amount in sorted(amounts.items())]

        def work(database: Database) -> None:
            database.execute_many(
                "insert into holdings (tenant, kind, holder, stripe, amount)"
                " values ($1, $2, $3, $4, $5) on conflict (tenant, kind, holder, stripe)"
                " do update set amount = excluded.amount",
                [row for row in rows if row[-1]],
            )
            database.execute_many(
                "delete from holdings where tenant = $1 and kind = $2 and holder = $3"
                " and stripe = $4",
                [row[:-1] for row in rows if not row[-1]],
            )

        await self._runner.run(work)

    async def elsewhere(self, keys: Sequence[Key]) -> dict[Key, int]:
        """How many all other nodes have together."""

        def work(database: Database) -> dict[Key, int]:
            return {key: self._elsewhere(database, key) for key in keys}

        return await self._runner.run(work)

    def _elsewhere(self, database: Database, key: Key) -> int:
        ((amount,),) = database.fetch(
            "select coalesce(sum(amount), 0)::bigint from holdings"
            " where tenant = $1 and kind = $2 and holder = $3 and stripe <> $4",
            *(self._tenant, *key, self._inc),
        )
        return int(amount)

    async def node_count(self) -> int:
        """How many nodes are live."""

        def work(database: Database) -> int:
            ((count,),) = database.fetch("select count(*) from nodes where state = $1", LIVE)
            return int(count)

        return await self._runner.run(work)


def forget_holdings(database: Database, inc: int) -> None:
    """What a node had: it has gone."""
    kinds = [kind for kind, _ in STORED]
    database.execute("delete from holdings where stripe = $1 and kind not in ($2, $3)", inc, *kinds)
