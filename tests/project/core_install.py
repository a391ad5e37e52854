"""Runs Python with only the core dependencies to be found, whatever else is installed.

    python -m tests.project.core_install -c CODE                 runs the code
    python -m tests.project.core_install penstock ARGUMENT ...   runs the command

Before it ends it prints the modules that were imported, as the last line of standard error.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path
from types import ModuleType

OPTIONAL = frozenset(
    [
        *("aiokafka", "cramjam", "cryptography", "deltalake", "jwt", "matplotlib", "numpy"),
        *("pandas", "psycopg"),
        *("pyarrow", "PyJWT", "pyspark"),
    ]
)
ROOT = Path(__file__).parents[2]


class CoreFinder(PathFinder):
    """Python's own search, to which optional packages are not installed."""

    @classmethod
    def find_spec(
        cls,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] in OPTIONAL:
            return None
        return PathFinder.find_spec(fullname, path, target)

    @classmethod
    def find_distributions(cls, context: DistributionFinder.Context) -> Iterator[Distribution]:
        found = PathFinder.find_distributions(context)
        return (one for one in found if one.metadata["Name"] not in OPTIONAL)


@dataclass(frozen=True, slots=True)
class Ended:
    """What a run with the core install left behind."""

    code: int
    out: str
    err: str
    imported: frozenset[str]  # modules

    def of_penstock(self) -> set[str]:
        return {one for one in self.imported if one.split(".")[0] == "penstock"}


def run_core(*arguments: str, cwd: Path) -> Ended:
    """Run this module in a process of its own."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.project.core_install", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *python_path()])},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    err, _, imported = ended.stderr.rstrip("\n").rpartition("\n")
    return Ended(ended.returncode, ended.stdout, err, frozenset(json.loads(imported)))


def python_path() -> list[str]:
    given = os.environ.get("PYTHONPATH")
    return given.split(os.pathsep) if given else []


def main() -> None:
    at = sys.meta_path.index(PathFinder)
    sys.meta_path[at] = CoreFinder
    before = set(sys.modules)
    atexit.register(tell_imported, before)
    if sys.argv[1] == "-c":
        exec(sys.argv[2], {"__name__": "__main__"})
    else:
        from penstock.cli.main import main

        sys.exit(main(sys.argv[2:]))


def tell_imported(before: set[str]) -> None:
    print("\n" + json.dumps(sorted(set(sys.modules) - before)), file=sys.stderr)


if __name__ == "__main__":
    main()
