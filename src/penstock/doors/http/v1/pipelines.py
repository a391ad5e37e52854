"""`/v1/pipelines`: the runs of pipeline jobs, the newest first."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from penstock.broker.upkeep.pipelines import PipelineRuns
from penstock.doors.http.routing.endpoints import Endpoints
from penstock.doors.http.routing.needs import Needs
from penstock.doors.http.routing.router import Route
from penstock.doors.http.routing.schemas import number
from penstock.doors.http.v1.describing import Facts, Field
from penstock.doors.http.v1.reading import LIMIT_MAX, check_query, read_limit
from penstock.doors.http.wire.messages import Request, Response, json_response
from penstock.model.runs import PipelineRun, ScheduledJob

PIPELINES: Final = "/v1/pipelines"


class RunList(Struct):
    runs: list[PipelineRun]
    schedule: list[ScheduledJob]


def add_routes(door: Endpoints) -> None:
    pipelines = PipelinesDoor(door.engine.pipelines)
    facts = Facts(
        "list the runs of pipeline jobs, the newest first, and the jobs of the schedule",
        RunList,
        query=(Field("limit", "maximum number of runs (1,000)", number(1, LIMIT_MAX)),),
    )
    door.router.add(Route("GET", PIPELINES, pipelines.show, facts=facts, needs=Needs.ADMIN))


class PipelinesDoor:
    def __init__(self, runs: PipelineRuns) -> None:
        self._runs = runs

    async def show(self, request: Request) -> Response:
        limit = read_limit(check_query(request, "limit"))
        runs = await self._runs.load()
        return json_response(RunList(runs[: -limit - 1 : -1], self._runs.schedule))
