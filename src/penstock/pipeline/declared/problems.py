"""What is wrong with a pipeline's file: gathered, sorted by line, and told at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from penstock.model.errors import InvalidPipeline
from penstock.pipeline.declared.places import Place


@dataclass(frozen=True, slots=True)
class Problem:
    """A sentence about a place in the file."""

    place: Place
    text: str


class Problems:
    """The problems of one file."""

    def __init__(self, file: Path, lines: list[str]) -> None:
        self._file = file
        self._lines = lines
        self._found: list[Problem] = []

    def add(self, place: Place, text: str) -> None:
        self.add_all([Problem(place, text)])

    def add_all(self, problems: Iterable[Problem]) -> None:
        self._found += [problem for problem in problems if problem not in self._found]

    def raise_any(self) -> None:
        """InvalidPipeline with all of them, if there is one."""
        if self._found:
            ordered = sorted(self._found, key=lambda one: (one.place.line, one.place.column))
            raise InvalidPipeline("\n".join(map(self.words, ordered)))

    def words(self, problem: Problem) -> str:
        """For people: the place, the sentence, and the line itself with a mark below it."""
        place = problem.place
        head = f"{self._file.name}:{place.line}: {problem.text}"
        line = self._lines[place.line - 1] if place.line <= len(self._lines) else ""
        if not line.strip():
            return head
        number = f"{place.line:>5} | "
        # Tabs stay tabs, so that the mark is below what it marks.
        pad = "".join("\t" if char == "\t" else " " for char in line[: place.column - 1])
        return f"{head}\n{number}{line}\n{' ' * (len(number) - 2)}| {pad}^"


def nearest(wanted: str, known: Iterable[str], *, label: str = "known are") -> str:
    """What to suggest instead of an unknown word."""
    names = list(known)
    near = difflib.get_close_matches(wanted.lower(), [name.lower() for name in names], 1)
    for name in names:
        if near and name.lower() == near[0]:
            return f"did you mean {name!r}?"
    return f"{label} {', '.join(names)}" if names else "none is declared"
