"""Builds wheels, with and without the compiled engine, and tries each in an empty environment.

    python3 -m tools.wheels [--pure]

For every Python from 3.11 to 3.13 that is here (on the path, or below ~/.pyenv/versions): a wheel
with the compiled engine and one without, from the committed state; each is installed into an empty
environment, has to store and read a message, and has to stay below 50 MB with all it needs. Wheels
are left in dist/. `make wheel`.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tools.engine import ROOT
from tools.stranger import Place, StrangerError, empty_environment, expect

VERSIONS: Final = ("3.11", "3.12", "3.13")
BYTES_MAX: Final = 50_000_000  # of all that `pip install penstock` installs


def find_pythons() -> list[tuple[str, str]]:
    """(version, program) of each that works."""
    found: list[tuple[str, str]] = []
    for version in VERSIONS:
        below = sorted(Path.home().glob(f".pyenv/versions/{version}*/bin/python"), reverse=True)
        for program in (shutil.which(f"python{version}"), *map(str, below), sys.executable):
            if program is not None and _says(program) == version:
                found.append((version, program))
                break
    return found


def _says(program: str) -> str:
    ask = "import sys; print('%d.%d' % sys.version_info[:2])"
    ended = subprocess.run([program, "-c", ask], capture_output=True, text=True, check=False)
    return ended.stdout.strip()


def build(place: Place, python: str, source: Path, *, is_compiled: bool) -> Path:
    """The wheel, from a clone of its own: what another build left must not get into it."""
    clone = place.directory / ("compiled" if is_compiled else "pure")
    place.run("git", "clone", "--quiet", source, clone)
    there = Place(place.directory, {**place.environment, "PENSTOCK_COMPILE": str(int(is_compiled))})
    wheels = place.directory / f"{clone.name}-wheel"
    there.run(python, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", wheels, clone)
    (wheel,) = wheels.glob("penstock-*.whl")
    return wheel


def try_wheel(place: Place, python: str, wheel: Path, kind: str) -> int:
    """Install it and use it; how many bytes were installed."""
    empty = place.directory / f"empty-{kind}"
    place.run(python, "-m", "venv", empty)
    site = next((empty / "lib").glob("python*")) / "site-packages"
    before = _bytes(site)
    pip = (empty / "bin" / "python", "-m", "pip", "--disable-pip-version-check")
    place.run(*pip, "install", "--constraint", ROOT / "constraints.txt", wheel)
    ask = "from penstock.core.engine_kind import engine_kind; print(engine_kind())"
    expect(f"{kind}\n", place.run(empty / "bin" / "python", "-c", ask))
    penstock, data = empty / "bin" / "penstock", ("--at", place.directory / f"data-{kind}")
    place.run(penstock, "topic", "create", "t", *data)
    place.run(penstock, "publish", "t", "hello", *data)
    expect("hello\n", place.run(penstock, "consume", "t", *data))
    return _bytes(site) - before


def _bytes(directory: Path) -> int:
    files = (one for one in directory.rglob("*") if one.is_file())
    return sum(one.stat().st_size for one in files if "__pycache__" not in one.parts)


def main() -> int:
    parser = argparse.ArgumentParser(description="build wheels and try them")
    parser.add_argument("--pure", action="store_true", help="only the wheel without the engine")
    kinds = ("interpreted",) if parser.parse_args().pure else ("interpreted", "compiled")
    pythons = find_pythons()
    if not pythons:
        print(f"error: no Python {', '.join(VERSIONS)} was found", file=sys.stderr)
        return 1
    (ROOT / "dist").mkdir(exist_ok=True)
    for version, python in pythons:
        for kind in kinds:
            with tempfile.TemporaryDirectory(prefix="penstock-wheel-") as directory:
                place = Place(Path(directory), empty_environment())
                try:
                    wheel = build(place, python, ROOT, is_compiled=kind == "compiled")
                    size = try_wheel(place, python, wheel, kind)
                except StrangerError as failed:
                    print(f"error: Python {version}, {kind}: {failed}", file=sys.stderr)
                    return 1
                if size > BYTES_MAX:
                    print(f"error: {size:,} bytes are installed; {BYTES_MAX:,} are allowed")
                    return 1
                shutil.copy(wheel, ROOT / "dist")
                print(f"Python {version}, {kind}: {wheel.name}, {size / 1e6:.1f} MB installed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
