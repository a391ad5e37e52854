"""Checks the limits on the size of the sources in src/: files, functions, and arguments of a call.

    .venv/bin/python -m tools.limits

A file has at most 500 lines and a function at most 60; a call passes at most five arguments by
position, because nobody can read what the sixth one means. `make lint` runs it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tools.engine import ROOT

FILE_LINES_MAX: Final = 500
FUNCTION_LINES_MAX: Final = 60
ARGUMENTS_MAX: Final = 5
# Their arguments are a list of values, or they are Java's, which has no names for them.
VARIADIC: Final = {
    *("create_subprocess_exec", "execute", "map", "pack", "zip"),
    *("HadoopFsRelation", "InMemoryFileIndex"),
}
# They pass their arguments on: so many come before those of the function that is called.
PASSED_ON: Final = {"partial": 1, "to_thread": 1, "run_in_executor": 2}


def broken_limits(path: Path, text: str) -> Iterator[str]:
    """One line for each place that exceeds a limit."""
    lines = text.count("\n")
    if lines > FILE_LINES_MAX:
        yield f"{path}: {lines} lines: split the file, {FILE_LINES_MAX} are allowed"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            lines = node.end_lineno - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield (
                    f"{path}:{node.lineno}: {node.name} has {lines} lines: split the function, "
                    f"{FUNCTION_LINES_MAX} are allowed"
                )
        elif isinstance(node, ast.Call):
            count = _positional(node)
            if count > ARGUMENTS_MAX:
                yield (
                    f"{path}:{node.lineno}: {ast.unparse(node.func)} is given {count} arguments by "
                    f"position: name them, {ARGUMENTS_MAX} are allowed"
                )


def _positional(call: ast.Call) -> int:
    called = call.func
    name = ""
    if isinstance(called, ast.Attribute):
        name = called.attr
    elif isinstance(called, ast.Name):
        name = called.id
    if name in VARIADIC:
        return 0
    return sum(map(_count, call.args)) - PASSED_ON.get(name, 0)


def _count(argument: ast.expr) -> int:
    """How many arguments it is: `*(1, 2)` is two of them."""
    unpacked = argument.value if isinstance(argument, ast.Starred) else None
    return len(unpacked.elts) if isinstance(unpacked, ast.Tuple | ast.List) else 1


def main() -> None:
    found = [
        line
        for path in sorted((ROOT / "src").rglob("*.py"))
        for line in broken_limits(path.relative_to(ROOT), path.read_text())
    ]
    if found:
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()
