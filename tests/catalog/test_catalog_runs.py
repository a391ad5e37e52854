"""Are runs of pipeline jobs kept as they were last reported?"""

from __future__ import annotations

import msgspec

from penstock.catalog.catalog import Catalog
from penstock.catalog.database.interface import Database
from penstock.catalog.database.thread import InlineRunner
from penstock.model.runs import DONE, RUNNING, PipelineRun


async def test_a_run_is_kept_as_it_was_last_saved(database: Database) -> None:
    first = PipelineRun("a-1", "archive", ["t", "--to", "x y"], RUNNING, 10, 10)
    second = PipelineRun("a-2", "archive", [], RUNNING, 5, 7, 0, 3, 1, 9, {"ü": 2**60}, "why")

    catalog = await Catalog.open(InlineRunner(database))
    assert await catalog.runs.load() == []
    await catalog.runs.save([first, second])
    assert await catalog.runs.load() == [second, first]
    ended = msgspec.structs.replace(first, state=DONE, ended_at=20, rows=2**40)
    await catalog.runs.save([ended])
    assert await catalog.runs.load() == [second, ended]
