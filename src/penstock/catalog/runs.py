"""Runs of pipeline jobs, durable in SQL."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.catalog.database.interface import Database
from penstock.catalog.database.thread import Runner
from penstock.model.record import TenantId
from penstock.model.runs import PipelineRun

_COLUMNS = (
    "run_id, job, arguments, state, started_at, updated_at, ended_at, row_count, batch_count, lag,"
    " offsets, error"
)


class RunCatalog:
    """The runs of a tenant, over the catalog's runner."""

    def __init__(self, runner: Runner, tenant: TenantId) -> None:
        self._runner = runner
        self._tenant = tenant

    async def save(self, runs: Sequence[PipelineRun]) -> None:
        """Insert runs, or replace what is known of them, in one unit."""

        def work(database: Database) -> None:
            database.execute_many(
                f"insert into pipeline_runs (tenant, {_COLUMNS})"
                " values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)"
                " on conflict (tenant, run_id) do update set state = excluded.state,"
                " updated_at = excluded.updated_at, ended_at = excluded.ended_at,"
                " row_count = excluded.row_count, batch_count = excluded.batch_count,"
                " lag = excluded.lag, offsets = excluded.offsets, error = excluded.error",
                [(self._tenant, *_row(run)) for run in runs],
            )

        await self._runner.run(work)

    async def load(self) -> list[PipelineRun]:
        """All of them, oldest first."""

        def work(database: Database) -> list[PipelineRun]:
            rows = database.fetch(
                f"select {_COLUMNS} from pipeline_runs where tenant = $1"
                " order by started_at, run_id",
                self._tenant,
            )
            return [_run(*row) for row in rows]

        return await self._runner.run(work)


def _run(
    run_id: str, job: str, arguments: str, state: str, started_at: int, updated_at: int,
    ended_at: int, rows: int, batches: int, lag: int, offsets: str, error: str,
) -> PipelineRun:  # fmt: skip
    return PipelineRun(
        run_id=run_id,
        job=job,
        arguments=msgspec.json.decode(arguments, type=list[str]),
        state=state,
        started_at=started_at,
        updated_at=updated_at,
        ended_at=ended_at,
        rows=rows,
        batches=batches,
        lag=lag,
        offsets=msgspec.json.decode(offsets, type=dict[str, int]),
        error=error,
    )


def _row(run: PipelineRun) -> tuple[str | int, ...]:
    return (
        run.run_id,
        run.job,
        msgspec.json.encode(run.arguments).decode(),
        run.state,
        run.started_at,
        run.updated_at,
        run.ended_at,
        run.rows,
        run.batches,
        run.lag,
        msgspec.json.encode(run.offsets).decode(),
        run.error,
    )
