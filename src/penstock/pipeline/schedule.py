"""Jobs that a broker starts by itself: what `[spark.schedule]` may say.

    [spark.schedule]
    clean = { every = "1d", run = "clean ./archive --older-than 30d" }

Each entry has a name, how often it is started, and the words that follow `penstock pipeline run`.
"""

from __future__ import annotations

import argparse
import difflib
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from penstock.core.durations import seconds
from penstock.model.errors import InvalidSetting, RefusedError
from penstock.pipeline.declared.reading import read_declaration
from penstock.pipeline.jobs import JOBS, find_job

EVERY_S_MIN: Final = 1.0
AT_MOST: Final = "6h"  # a job that takes longer is ended: something is wrong with it
ENTRIES_MAX: Final = 100
_KEYS: Final = ("every", "run", "at_most")


@dataclass(frozen=True, slots=True)
class Scheduled:
    """One entry."""

    name: str
    job: str
    arguments: tuple[str, ...]  # of the job
    every_s: float
    at_most_s: float


def read_schedule(table: Any, origin: str) -> tuple[Scheduled, ...]:
    """The entries of a table; InvalidSetting says which one is wrong, and how."""
    if not isinstance(table, dict):
        raise InvalidSetting(f"{origin}: schedule {table!r} is not a table: write [spark.schedule]")
    if len(table) > ENTRIES_MAX:
        raise InvalidSetting(
            f"{origin}: [spark.schedule] has {len(table)} entries: at most {ENTRIES_MAX} are "
            "allowed"
        )
    found = []
    for name, entry in table.items():
        try:
            found.append(_entry(name, entry))
        except InvalidSetting as wrong:
            raise InvalidSetting(f"{origin}: [spark.schedule] {name}: {wrong}") from None
    return tuple(found)


def _entry(name: str, entry: Any) -> Scheduled:
    if not isinstance(entry, dict):
        raise InvalidSetting(f'{entry!r} is not {{ every = "1d", run = "clean ./archive" }}')
    for key in entry:
        if key not in _KEYS:
            near = difflib.get_close_matches(key, _KEYS, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"keys are {', '.join(_KEYS)}"
            raise InvalidSetting(f"{key!r} is unknown: {hint}")
    if "every" not in entry or "run" not in entry:
        raise InvalidSetting(
            "give both 'every', the interval, and 'run', the job and its arguments"
        )
    every_s = seconds("every", entry["every"])
    at_most_s = seconds("at_most", entry.get("at_most", AT_MOST))
    if every_s < EVERY_S_MIN:
        raise InvalidSetting(
            f"every {entry['every']!r} is too short: use at least {EVERY_S_MIN:g}s"
        )
    job, *arguments = _words(entry["run"])
    _check_job(job, arguments)
    return Scheduled(name, job, tuple(arguments), every_s, at_most_s)


def _words(text: Any) -> list[str]:
    try:
        words = shlex.split(text) if isinstance(text, str) else []
    except ValueError as wrong:
        raise InvalidSetting(f"run {text!r}: {wrong}") from None
    if not words:
        raise InvalidSetting(f"run {text!r} is not a job and its arguments in quotes")
    return words


def _check_job(job: str, arguments: list[str]) -> None:
    """Refuse now what the job would refuse every time."""
    if job not in JOBS:
        near = difflib.get_close_matches(job, JOBS, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"jobs are {', '.join(JOBS)}"
        raise InvalidSetting(f"job {job!r} is unknown: {hint}")
    parser = _Parser(prog=job, add_help=False)
    find_job(job).add_arguments(parser)
    parser.add_argument("--master")
    options = parser.parse_args(arguments)
    if job == "sql":
        try:
            read_declaration(Path(options.file))
        except RefusedError as wrong:
            raise InvalidSetting(f"{job}: {wrong}") from None
    if getattr(options, "follow", False):
        raise InvalidSetting(
            "a scheduled job must end: omit --follow; 'every' starts the job again"
        )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InvalidSetting(f"{self.prog}: {message}")
