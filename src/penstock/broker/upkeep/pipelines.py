"""Runs of pipeline jobs: what their processes report becomes rows of the catalog."""

from __future__ import annotations

import asyncio
from pathlib import Path

from penstock.catalog.reports import REPORTS, read_reports, remove_old_reports
from penstock.catalog.runs import RunCatalog
from penstock.model.clock import Clock
from penstock.model.runs import PipelineRun, ScheduledJob


class PipelineRuns:
    """The runs of the tenant. A broker in memory has no directory to watch."""

    def __init__(self, catalog: RunCatalog, clock: Clock, directory: Path | None) -> None:
        self.directory = directory
        self._catalog = catalog
        self._clock = clock
        self.schedule: list[ScheduledJob] = []  # of the settings file
        self._known: dict[str, PipelineRun] = {}

    async def take_reports(self) -> None:
        """Copy what is new in the reports into the catalog."""
        directory = self.directory
        if directory is None or not (directory / REPORTS).is_dir():
            return
        found = await asyncio.to_thread(read_reports, directory)
        changed = [run for run in found if self._known.get(run.run_id) != run]
        if changed:
            await self._catalog.save(changed)
        self._known = {run.run_id: run for run in found}
        await asyncio.to_thread(remove_old_reports, directory, self._clock.age_us)

    async def load(self) -> list[PipelineRun]:
        """All runs ever, oldest first."""
        await self.take_reports()
        return await self._catalog.load()
