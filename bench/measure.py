"""How everything here is measured and shown: turns, medians, ratios, bars.

Contenders of one row take turns, so that whatever else the machine does hits all of them alike. A
ratio is the median of the ratios of the single turns, a figure the median of its turns.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Final

MISSED: Final = "MISSED"
BEFORE: Final = "before"  # the engine of another checkout
PLAIN: Final = "plain"  # this checkout without rules
BASELINES: Final = {BEFORE: "to before", PLAIN: "rules/plain"}  # and the column of ratios to each
LOSS_MAX: Final = 0.05  # against a baseline


@dataclass(frozen=True, slots=True)
class Bar:
    """What a ratio has to reach; `goal` is what it should reach."""

    limit: float
    at_most: bool = False  # else at least
    is_required: bool = True
    goal: float | None = None

    def verdict(self, ratio: float) -> str:
        """`ok`, or by how much of the bar it was missed; a bar that is not required is a goal."""
        is_met = ratio <= self.limit if self.at_most else ratio >= self.limit
        if is_met:
            return "ok" if self.is_required else "goal reached"
        by = f"{abs(ratio - self.limit) / self.limit:.0%}"
        return f"{MISSED} by {by}" if self.is_required else f"goal missed by {by}"

    def __str__(self) -> str:
        sign = "≤" if self.at_most else "≥"
        goal = "" if self.goal is None else f" (goal {self.goal:g})"
        return f"{sign} {self.limit:g}x{goal}"


@dataclass(frozen=True, slots=True)
class Figure:
    """A median, and how it compares with what was measured beside it."""

    value: float
    ratio: float | None = None
    to_baseline: float | None = None  # the ratio to what the baseline of the run reached

    @classmethod
    def of(
        cls,
        values: list[float],
        references: list[float] | None = None,
        baseline: list[float] | None = None,
    ) -> Figure:
        return cls(median(values), _ratio(values, references), _ratio(values, baseline))


def _ratio(values: list[float], references: list[float] | None) -> float | None:
    if references is None:
        return None
    return median([a / b for a, b in zip(values, references, strict=True)])


def engine_figures(
    names: Iterable[str],
    taken: Mapping[str, list[float]],
    references: Mapping[str, list[float]] | list[float] | None = None,
) -> dict[str, Figure]:
    """A figure for each engine, against one reference for all or each against its own."""
    baseline = next((taken[name] for name in BASELINES if name in taken), None)
    return {
        name: Figure.of(
            taken[name],
            references[name] if isinstance(references, Mapping) else references,
            None if name in BASELINES else baseline,
        )
        for name in names
    }


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table. `figures` has a column for each engine, or one called `value`."""

    scenario: str
    unit: str  # `/s` counts per second; others are shown as they are
    figures: Mapping[str, Figure]
    reference: tuple[str, float] | None = None  # what it is compared with, and its median
    bar: Bar | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def is_required(self) -> bool:
        return self.bar is not None and self.bar.is_required

    def verdicts(self) -> dict[str, str]:
        """For each engine; empty where nothing is asked for."""
        if self.bar is None:
            return {}
        return {
            engine: self.bar.verdict(figure.ratio)
            for engine, figure in self.figures.items()
            if figure.ratio is not None
        }

    def losses(self) -> list[str]:
        """By how much an engine fell behind the baseline, where that is too much."""
        against = next((name for name in self.figures if name in BASELINES), "")
        return [
            f"{engine} LOST {loss:.0%} against {against}"
            for engine, figure in self.figures.items()
            if (loss := self.loss(figure)) > LOSS_MAX
        ]

    def loss(self, figure: Figure) -> float:
        """The part of the baseline's value that is missing; below 0 where more was reached."""
        if figure.to_baseline is None:
            return 0.0
        return 1 - figure.to_baseline if self.unit == "/s" else figure.to_baseline - 1

    def to_json(self) -> dict[str, object]:
        return {
            "scenario": self.scenario,
            "unit": self.unit,
            "figures": {
                name: {
                    "value": figure.value,
                    "ratio": figure.ratio,
                    "to_baseline": figure.to_baseline,
                }
                for name, figure in self.figures.items()
            },
            "reference": self.reference,
            "bar": None if self.bar is None else str(self.bar),
            "required": self.is_required,
            "verdicts": self.verdicts(),
            "notes": list(self.notes),
        }


def alternate(contenders: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Let everybody have `rounds` turns; every other round goes backwards."""
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            taken[name].append(contenders[name]())
    return taken


def show(value: float, unit: str) -> str:
    """A figure for people: three digits and its unit."""
    if unit == "/s":
        for scale, letter in ((1e6, "M"), (1e3, "k")):
            if value >= scale:
                return f"{_digits(value / scale)} {letter}/s"
        return f"{_digits(value)} /s"
    return f"{_digits(value)} {unit}".rstrip()


def _digits(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


_HEADS: Final = ("scenario", "beside it", "figure", "ratio", "bar", "verdict")
_WIDTHS: Final = (80, 12, 12, 9, 19, 24, 18)


def heads(engines: Iterable[str]) -> list[str]:
    """The heads of the columns; the last one names the baseline among the engines."""
    return [*_HEADS, next((BASELINES[name] for name in engines if name in BASELINES), "")]


def cells(row: Row) -> list[list[str]]:
    """The row as text, a line for each engine."""
    verdicts = row.verdicts()
    beside = "" if row.reference is None else f"{show(row.reference[1], row.unit)}"
    lines = []
    for engine, figure in row.figures.items():
        dot = "● " if row.is_required else "  "
        name = f"{dot}{row.scenario}" + ("" if engine == "value" else f" [{engine}]")
        ratio = "" if figure.ratio is None else f"{_digits(figure.ratio)}x"
        lines.append(
            [
                name,
                beside,
                show(figure.value, row.unit),
                ratio,
                "" if row.bar is None else str(row.bar),
                verdicts.get(engine, ""),
                _to_baseline(row, figure),
            ]
        )
    return lines


def _to_baseline(row: Row, figure: Figure) -> str:
    if figure.to_baseline is None:
        return ""
    return f"{figure.to_baseline:.2f}x" + (" LOST" if row.loss(figure) > LOSS_MAX else " ok")


def text_line(columns: Iterable[str]) -> str:
    first, *others = zip(columns, _WIDTHS, strict=True)
    return f"{first[0]:<{first[1]}}" + "".join(f"{text:>{width}}" for text, width in others)


def print_row(row: Row) -> None:
    for line in cells(row):
        print(text_line(line))
    for note in row.notes:
        print(f"      {note}")
    sys.stdout.flush()


def markdown(title: str, columns: list[str], rows: Iterable[Row]) -> str:
    """A table for a report."""
    lines = [f"### {title}", "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    notes: list[str] = []
    for row in rows:
        lines += [f"| {' | '.join(one.strip() for one in line)} |" for line in cells(row)]
        notes += [f"- {row.scenario}: {note}" for note in row.notes]
    return "\n".join([*lines, "", *notes, ""])


def machine_facts(directory: Path) -> dict[str, str]:
    """What the figures depend on."""
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    facts = {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {_cpu_model()}",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "file system": _file_system(directory),
        "load before": load,
    }
    for package in ("penstock", "pyarrow", "mypy"):
        facts[package] = version(package)
    return facts


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown processor"


def _file_system(directory: Path) -> str:
    """The kind of file system that holds the data of the benchmark."""
    best = ("", "unknown")
    resolved = str(directory.resolve())
    for line in Path("/proc/mounts").read_text().splitlines():
        _, point, kind, *_ = line.split()
        if resolved.startswith(point) and len(point) >= len(best[0]):
            best = (point, kind)
    return best[1]
