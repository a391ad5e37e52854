"""Builds the compiled engine; everything else about the package is in pyproject.toml.

PENSTOCK_COMPILE decides: `auto` (default) compiles where a C compiler is found and falls back to
pure Python with a message when that fails, `1` makes any failure an error, `0` never compiles.
Whatever happens, the outcome is whole: either every module of the engine is compiled or none.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError

STARTED_NS = time.time_ns()
ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))  # an isolated build does not start with the checkout on the path

from tools import engine  # noqa: E402


def say(text: str) -> None:
    print(f"engine: {text}", flush=True)


def compile_mode() -> str:
    mode = os.environ.get("PENSTOCK_COMPILE", "auto")
    if mode not in ("auto", "0", "1"):
        sys.exit(f"PENSTOCK_COMPILE={mode!r}: use auto, 0 or 1")
    return mode


MODE = compile_mode()


def give_up(reason: str) -> None:
    """Stop the build in mode 1; else say that the package will run interpreted, and why."""
    if MODE == "1":
        sys.exit(f"engine: {reason}, and PENSTOCK_COMPILE=1 demands a compiled engine")
    say(f"{reason}: Penstock will run interpreted (correct, slower)")


def engine_extensions() -> list[Extension]:
    """The C extensions made from the engine's modules; empty means interpreted."""
    if MODE == "0":
        say("PENSTOCK_COMPILE=0: not compiled")
        return []
    if engine.find_compiler() is None:
        give_up("no C compiler found")
        return []
    try:
        from mypyc.build import mypycify
    except ImportError:
        give_up("mypyc is not installed")
        return []
    modules = engine.present()
    if not modules:
        return []
    say(f"compiling {', '.join(modules)}")
    os.environ["MYPYPATH"] = str(engine.SOURCE)
    try:
        extensions: list[Extension] = mypycify(
            [
                # Not the settings of `make check`: an isolated build has none of the dependencies
                # installed, and what strictness says about them, or about modules that are not
                # compiled, must not decide over speed.
                "--config-file=",
                *(["--verbose"] if "--verbose" in sys.argv else []),  # says how far it is
                "--ignore-missing-imports",
                "--follow-imports=silent",
                "--namespace-packages",
                "--explicit-package-bases",
                f"--cache-dir={ROOT / 'build' / 'mypy'}",
                *(str(engine.source_of(module).relative_to(ROOT)) for module in modules),
            ],
            opt_level="3",
            group_name="penstock_engine",
        )
    except (SystemExit, Exception) as error:  # SystemExit is how it reports errors in the source
        give_up(f"mypyc could not translate the source (exit {error}; its words stand above)")
        return []
    return extensions


class BuildEngine(build_ext):
    """Compiles all extensions or leaves none behind."""

    def run(self) -> None:
        beside_sources = bool(self.inplace)
        if beside_sources:
            engine.remove_extensions()
        try:
            super().run()
        except (BaseError, CCompilerError):
            give_up("the C compiler failed (its words stand above)")
            for path in self.get_outputs():  # of an earlier build
                Path(path).unlink(missing_ok=True)
            self.extensions = []
            return
        if not self.extensions:
            return
        # Unchanged C is not compiled again, so the files' own dates say little: let them tell
        # which state of the sources they stand for.
        for path in engine.extensions() if beside_sources else self.get_outputs():
            os.utime(path, ns=(STARTED_NS, STARTED_NS))
        say("compiled")


os.chdir(ROOT)  # mypyc names its files relative to here
# Only commands that build need the engine; asking for the version or an sdist must be quick.
BUILDING = {"build", "build_ext", "bdist_wheel", "editable_wheel", "develop", "install"}
setup(
    ext_modules=engine_extensions() if BUILDING & set(sys.argv) else [],
    cmdclass={"build_ext": BuildEngine},
)
