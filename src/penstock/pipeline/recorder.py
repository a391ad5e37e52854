"""Keeping the report of a run up to date, from its first moment to its last."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from penstock.catalog.reports import RunReport
from penstock.model.clock import Clock
from penstock.model.runs import DONE, FAILED, INTERRUPTED, RUNNING, PipelineRun
from penstock.pipeline.jobs import Progress

ERROR_CHARS_MAX: Final = 1_000  # the sentence is what counts, not Java's stack


class Recorder:
    """One run. Where there is no data directory, or only to read, the run is not recorded."""

    def __init__(self, data: Path | None, job: str, arguments: list[str], clock: Clock) -> None:
        now_us = clock.now_us()
        begun = datetime.fromtimestamp(now_us / 1e6, UTC)
        run_id = f"{job}-{begun:%Y%m%dT%H%M%S}-{secrets.token_hex(2)}"
        self.run = PipelineRun(
            run_id=run_id,
            job=job,
            arguments=arguments,
            state=RUNNING,
            started_at=now_us,
            updated_at=now_us,
        )
        self._clock = clock
        self._report = None if data is None else RunReport(data, self.run)

    def __enter__(self) -> Self:
        if self._report is not None:
            try:
                self._report.__enter__()
            except OSError:
                self._report = None
        return self

    def tell(self, progress: Progress) -> None:
        """Write down how far the run is: it may wait for hours before it tells again."""
        self._note(
            rows=progress.rows, batches=progress.batches, lag=progress.lag, offsets=progress.offsets
        )
        self._write()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        state, said = DONE if error is None else FAILED, reason(error)
        if kind is KeyboardInterrupt:
            state, said = INTERRUPTED, ""
        self._note(state=state, error=said, ended_at=self._clock.now_us())
        self._write()
        if self._report is not None:
            self._report.__exit__(kind, error, trace)

    def _note(self, **changes: Any) -> None:
        changes["updated_at"] = self._clock.now_us()
        self.run = msgspec.structs.replace(self.run, **changes)

    def _write(self) -> None:
        if self._report is not None:
            self._report.tell(self.run)


def reason(error: BaseException | None) -> str:
    """Why a run failed, in a sentence: of what Spark brings along, the Python error inside it."""
    if error is None:
        return ""
    lines = [line for line in str(error).splitlines() if line.strip()]
    inner = [line for line in lines if line.startswith("penstock.model.errors.")]
    text = inner[-1].partition(": ")[2] if inner else (lines[0] if lines else type(error).__name__)
    return text[:ERROR_CHARS_MAX]
