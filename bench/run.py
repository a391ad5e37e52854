"""What a suite is given to measure with."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.engines import Engine
from bench.measure import BASELINES


@dataclass(frozen=True, slots=True)
class Bench:
    """One run: how patient it is, where data may lie, which engines there are."""

    engines: list[Engine]
    directory: Path  # on the file system that is measured
    is_quick: bool
    rounds: int

    @property
    def fastest(self) -> list[Engine]:
        """The fastest engine, after the baseline where there is one."""
        return [one for one in self.engines if one.name in BASELINES or one is self.engines[-1]]

    @property
    def turn_s(self) -> float:
        """How long one contender's turn takes."""
        return 0.3 if self.is_quick else 1.0

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A directory that is gone afterwards."""
        path = Path(tempfile.mkdtemp(prefix="bench-", dir=self.directory))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)
