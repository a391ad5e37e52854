"""Says which modules form the compiled engine, and how Python would load each one.

The list itself lives in pyproject.toml under [tool.penstock]. Nothing of Penstock is imported
or run. A module is *compiled* when an extension newer than every source it was made from is
what Python finds first, *stale* when that extension is older, else *interpreted*; *absent*
means that the source is not written yet.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import os
import shutil
import sys
import sysconfig
import tomllib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"

State = Literal["compiled", "stale", "interpreted", "absent"]


def listed() -> list[str]:
    """The engine's modules, in the order of pyproject.toml."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        modules: list[str] = tomllib.load(file)["tool"]["penstock"]["compiled"]
    return modules


def present() -> list[str]:
    """Those of them that are written."""
    return [module for module in listed() if source_of(module).is_file()]


def source_of(module: str) -> Path:
    """Where the module's source lies, or would lie."""
    parts = module.split(".")
    path = (ROOT if parts[0] == "tests" else SOURCE).joinpath(*parts)
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def find_compiler() -> str | None:
    """The C compiler that setuptools would run, or None."""
    configured = os.environ.get("CC") or str(sysconfig.get_config_var("CC") or "cc")
    return shutil.which(configured.split()[0])


def extensions() -> list[Path]:
    """Every compiled file next to the sources, for any version of Python."""
    return [path for suffix in ("*.so", "*.pyd") for path in SOURCE.rglob(suffix)]


def remove_extensions() -> None:
    """Leave only the sources, so that nothing compiled from older ones can be loaded."""
    for path in extensions():
        path.unlink(missing_ok=True)


def sources_behind(module: str) -> set[Path]:
    """The module's source and those of our modules it imports, directly or not.

    mypyc writes the value of a `Final` constant into every module that imports it, so a compiled
    module is out of date when any of these changed.
    """
    return _behind({}, source_of(module))


def tests_in(directories: Sequence[Path]) -> dict[Path, set[str]]:
    """The test files below that reach the engine, with the modules of it that each reaches.

    It, its helpers or its conftest import them. Other tests run the same way with any engine.
    """
    modules = {source_of(module): module for module in present()}
    known: dict[Path, list[Path]] = {}
    found: dict[Path, set[str]] = {}
    for test in (one for directory in directories for one in sorted(directory.rglob("test_*.py"))):
        behind = _behind(known, test, *(folder / "conftest.py" for folder in test.parents))
        reached = {module for source, module in modules.items() if source in behind}
        if reached:
            found[test] = reached
    return found


def _behind(known: dict[Path, list[Path]], *sources: Path) -> set[Path]:
    """Those of the files that exist, and all of ours that they import, directly or not.

    `known` remembers from call to call what each of them imports.
    """
    found: set[Path] = set()
    waiting = list(sources)
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        if path not in known:
            if not path.is_file():
                continue
            known[path] = [source_of(module) for module in _imports_of(path.read_bytes())]
        found.add(path)
        waiting.extend(known[path])
    return found


def digest() -> str:
    """Changes whenever compiling would give something else."""
    modules = present()
    sources = set[Path]().union(*map(sources_behind, modules))
    digest = hashlib.sha256(f"{sys.version} {modules}".encode())
    for path in (ROOT / "setup.py", *sorted(sources)):
        digest.update(f"{path.relative_to(ROOT)} {path.stat().st_size} ".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


@lru_cache(maxsize=1_024)  # modules share most of the sources behind them
def _imports_of(source: bytes) -> list[str]:
    return list(_find_imports(source))


def _find_imports(source: bytes) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] in ("penstock", "tests"))


def is_compiled() -> bool:
    """Whether all of the engine is compiled from the present sources, and nothing else is."""
    modules = present()
    count = len([path for path in extensions() if "__mypyc" not in path.name])
    search = [str(SOURCE)]
    return count == len(modules) and all(state(one, search) == "compiled" for one in modules)


def state(module: str, search: Sequence[str]) -> State:
    """How Python would load the module with `search` as its sys.path."""
    spec = _find(module, search)
    if spec is None or spec.origin is None:
        return "absent"
    if not spec.origin.endswith(tuple(EXTENSION_SUFFIXES)):
        return "interpreted"
    built_ns = os.stat(spec.origin).st_mtime_ns
    changed_ns = max((path.stat().st_mtime_ns for path in sources_behind(module)), default=0)
    return "stale" if built_ns < changed_ns else "compiled"


def _find(module: str, search: Sequence[str]) -> ModuleSpec | None:
    """Walk down from the top package without importing any of it."""
    spec: ModuleSpec | None = None
    path: Sequence[str] | None = search
    parts = module.split(".")
    for depth in range(len(parts)):
        spec = None if path is None else PathFinder.find_spec(".".join(parts[: depth + 1]), path)
        if spec is None:
            return None
        path = spec.submodule_search_locations
    return spec


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Print for each module of the engine whether it is compiled or interpreted."
    )
    parser.add_argument(
        "--require-compiled", action="store_true", help="exit 1 unless every module is compiled"
    )
    parser.add_argument(
        "--if-compiler",
        action="store_true",
        help="require compiled modules only if a C compiler is found",
    )
    parser.add_argument(
        "--word",
        action="store_true",
        help="print one word: compiled if all modules are compiled, else interpreted",
    )
    parser.add_argument(
        "--tests",
        nargs="+",
        type=Path,
        metavar="DIRECTORY",
        help="print only the test files in these directories that reach a module of the engine",
    )
    options = parser.parse_args()
    if options.tests:
        print(*tests_in(options.tests))
        return 0

    compiler = find_compiler()
    states = {module: state(module, [*sys.path, str(SOURCE)]) for module in listed()}
    if options.word:
        print("compiled" if set(states.values()) <= {"compiled", "absent"} else "interpreted")
        return 0
    for module, how in states.items():
        print(f"{module:<32} {how}")
    print(f"{'C compiler':<32} {compiler or 'none found'}")

    wanted = options.require_compiled and (compiler is not None or not options.if_compiler)
    missing = [module for module, how in states.items() if how in ("interpreted", "stale")]
    if wanted and missing:
        print(
            f"error: not compiled: {', '.join(missing)}. `make setup` compiles them and shows the "
            "output of the compiler.",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
