"""Jobs on a timer: the broker starts them as processes of their own, and ends them with itself.

Each entry of `[spark.schedule]` is started again `every` so often, counted from its last start,
also across restarts of the broker; never twice at once, and only so many entries at a time. A job
that fails is in the server log and among the runs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import msgspec

from penstock.broker.upkeep.pipelines import PipelineRuns
from penstock.catalog.reports import RunReport
from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.model.runs import DONE, FAILED, PipelineRun, ScheduledJob

if TYPE_CHECKING:
    from penstock.pipeline.schedule import Scheduled

LOG: Final = logging.getLogger("penstock.schedule")
STOP_S_MAX: Final = 5.0  # for a job to end when the broker does; then it is killed
TAIL_BYTES_MAX: Final = 4_096  # of what a job says on its error output
WITH_BROKER: Final = "--with-broker"  # ends the job with its standard input


class Schedule:
    """All entries, running on the broker's loop."""

    def __init__(
        self,
        entries: Sequence[Scheduled],
        data: Path,
        runs: PipelineRuns,
        clock: Clock,
        environment: Mapping[str, str],
        running_max: int,
    ) -> None:
        self._entries = entries
        self._data = data
        self._runs = runs
        self._clock = clock
        self._environment = environment
        self._room = asyncio.Semaphore(running_max)
        self._tasks: list[asyncio.Task[None]] = []
        self._running: set[JobProcess] = set()

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._keep_running(one), name=f"penstock-job-{one.name}")
            for one in self._entries
        ]

    async def close(self) -> None:
        """End what runs; on return nothing of it is left."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*(asyncio.to_thread(one.end) for one in list(self._running)))
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _keep_running(self, entry: Scheduled) -> None:
        arguments = self._arguments(entry)
        shown = ScheduledJob(entry.name, entry.job, list(entry.arguments), entry.every_s)
        self._runs.schedule.append(shown)
        age_us = max(self._clock.age_us(await self._last_start(entry, arguments)), 0)
        while True:
            wait_s = max(entry.every_s - age_us / 1e6, 0)
            shown.next_at = self._clock.now_us() + round(wait_s * 1e6)
            await asyncio.sleep(wait_s)
            async with self._room:
                shown.next_at = 0
                began_us = self._clock.steady_us()
                try:
                    await self._run(entry, arguments, self._clock.now_us())
                except PenstockError as trouble:  # the catalog is away: the next run may be noted
                    values = {"event": "job failed", "job": entry.name, "problem": str(trouble)}
                    LOG.error("scheduled job %(job)r: %(problem)s", values)
            age_us = self._clock.steady_us() - began_us

    async def _last_start(self, entry: Scheduled, arguments: list[str]) -> int:
        """When it was started last, in µs since 1970; 0 if never, or if nobody can tell."""
        try:
            runs = await self._runs.load()
        except PenstockError:
            return 0
        mine = [run for run in runs if run.job == entry.job and run.arguments == arguments]
        return max((run.started_at for run in mine), default=0)

    def _arguments(self, entry: Scheduled) -> list[str]:
        return [*entry.arguments, "--at", str(self._data), WITH_BROKER]

    async def _run(self, entry: Scheduled, arguments: list[str], started_us: int) -> None:
        try:
            process = JobProcess([entry.job, *arguments], self._environment)
        except OSError as failed:
            await self._fail(entry, arguments, started_us, f"it cannot be started: {failed}")
            return
        self._running.add(process)
        values = {"event": "job starts", "job": entry.name, "kind": entry.job}
        LOG.info("scheduled job %(job)r (%(kind)s) starts", values)
        try:
            problem = await asyncio.to_thread(process.wait, entry.at_most_s)
        finally:
            self._running.discard(process)
        if problem:
            await self._fail(entry, arguments, started_us, problem)
            return
        values["event"] = "job ends"
        LOG.info("scheduled job %(job)r (%(kind)s) ends", values)

    async def _fail(
        self, entry: Scheduled, arguments: list[str], started_us: int, problem: str
    ) -> None:
        """Tell about it, and see to it that it stands among the runs."""
        values = {"event": "job failed", "job": entry.name, "kind": entry.job, "problem": problem}
        LOG.error("scheduled job %(job)r (%(kind)s) failed: %(problem)s", values)
        now_us = self._clock.now_us()
        mine = [
            run
            for run in await self._runs.load()
            if run.job == entry.job and run.arguments == arguments and run.started_at >= started_us
        ]
        if not mine:
            run_id = f"{entry.job}-{started_us}"
            mine = [
                PipelineRun(
                    run_id=run_id,
                    job=entry.job,
                    arguments=arguments,
                    state=DONE,
                    started_at=started_us,
                    updated_at=now_us,
                )
            ]
        if not mine[-1].error:
            failed = msgspec.structs.replace(
                mine[-1], state=FAILED, error=problem, updated_at=now_us, ended_at=now_us
            )
            await asyncio.to_thread(_report, self._data, failed)
        await self._runs.take_reports()


class JobProcess:
    """A job and all that it started, in a process group of its own."""

    def __init__(self, arguments: list[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock.cli.main", "pipeline", "run", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,
        )
        self._is_ending = threading.Event()

    def wait(self, s_max: float) -> str:
        """Blocks until it has ended; why it failed, empty if it did not or was told to end."""
        assert self._process.stderr is not None and self._process.stdin is not None
        said = _Tail(self._process.stderr)
        try:
            code = self._process.wait(s_max)
        except subprocess.TimeoutExpired:
            self._kill()
            return f"it took longer than {s_max:g} s and was ended"
        finally:
            self._process.stdin.close()
        if code == 0 or self._is_ending.is_set():
            return ""
        return said.last_line() or f"it ended with code {code}"

    def end(self) -> None:
        """Blocks until it is gone."""
        self._is_ending.set()
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self._kill()

    def _kill(self) -> None:
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: int) -> None:
        if self._process.poll() is None:  # else its number may be somebody else's by now
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)


class _Tail:
    """The end of what a process says; the rest is read and forgotten."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._kept = b""
        self._thread = threading.Thread(target=self._read, name="penstock-job-errors", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with self._stream:
            while chunk := self._stream.read1(TAIL_BYTES_MAX):  # type: ignore[attr-defined]
                self._kept = (self._kept + chunk)[-TAIL_BYTES_MAX:]

    def last_line(self) -> str:
        self._thread.join(STOP_S_MAX)
        lines = self._kept.decode(errors="replace").strip().splitlines()
        return lines[-1].removeprefix("penstock: ") if lines else ""


def _report(data: Path, run: PipelineRun) -> None:
    with RunReport(data, run):
        pass
