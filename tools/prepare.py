"""Makes the checkout ready: .venv/, the packages in it, the compiled engine. `make setup`.

Repeatable: each step looks at what is there and does only what is missing. Packages are
installed again when pyproject.toml, constraints.txt or hashes.txt changed, the engine is compiled
again when a source behind it changed. Runs on a bare Python of the required version.

`--light` is enough to serve, and soon done: the core package, with the engine interpreted until
the background has compiled it. A checkout that once had everything keeps everything.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from tools import compiling, engine
from tools.packages import (
    COMPILE_LOG,
    LOG,
    PYTHON,
    VENV,
    ensure_mypyc,
    ensure_packages,
    fail,
    say,
)

SKIP = "PENSTOCK_COMPILE=0 skips it"


def ensure_venv() -> None:
    """Go on inside .venv: make it unless its Python starts and is new enough."""
    if Path(sys.prefix).resolve() == VENV:
        return
    ask = "import sys; sys.exit(sys.version_info < (3, 11) or sys.prefix == sys.base_prefix)"
    if not PYTHON.exists() or subprocess.run([PYTHON, "-c", ask], check=False).returncode != 0:
        say("python", f"creating .venv with Python {sys.version.split()[0]}")
        made = subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=False)
        if made.returncode != 0:
            fail("could not create .venv; on Debian and Ubuntu, install the package python3-venv")
    os.execv(PYTHON, [str(PYTHON), "-m", "tools.prepare", *sys.argv[1:]])


def ensure_engine(mode: str, *, light: bool) -> None:
    """The listed modules compiled from the present sources, or none of them compiled."""
    if mode == "0" or (mode == "auto" and engine.find_compiler() is None):
        engine.remove_extensions()
        why = "PENSTOCK_COMPILE=0" if mode == "0" else "no C compiler found"
        say("engine", f"interpreted ({why})")
    elif engine.is_compiled():
        say("engine", "compiled, up to date")
    elif compiling.install():
        say("engine", "compiled")
    elif light and mode == "auto":
        engine.remove_extensions()
        compile_later()
    else:
        compile_now(mode)


def compile_later() -> None:
    """Serve interpreted; the next `make run` finds the engine compiled."""
    log = COMPILE_LOG.relative_to(engine.ROOT)
    if compiling.has_failed():
        say("engine", f"interpreted: it could not be compiled, see {log}; `make setup` tries again")
    elif compiling.start_in_background():
        say("engine", "interpreted for now (correct, slower): it is compiled in the background,")
        say("", "once, in about two minutes; the next `make run` uses the compiled engine.")
        say("", f"Progress: {log}. {SKIP}.")
    else:
        say(
            "engine",
            f"interpreted for now: it is still being compiled in the background, see {log}",
        )


def compile_now(mode: str) -> None:
    started_s = time.monotonic()

    def tell(text: str) -> None:
        say("engine", text)

    ensure_mypyc()
    with compiling.lock(tell):
        if compiling.install():  # another process was quicker
            say("engine", "compiled")
            return
        count = len(engine.present())
        say("engine", f"compiling {count} modules: once, until one of them changes; {SKIP}")
        engine.remove_extensions()
        try:
            compiling.compile_engine(tell)
        except compiling.CompileError as failed:
            print(failed.said, file=sys.stderr)
            with LOG.open("a") as log:
                log.write(failed.said)
            if mode == "1":
                fail(f"{failed}; the reason is above")
            say("engine", f"interpreted: {failed}, the reason is above")
            return
        if not compiling.install():
            fail("a source of the engine changed just now: run `make` again")
    say("engine", f"compiled in {time.monotonic() - started_s:.0f} s")


def main() -> int:
    parser = argparse.ArgumentParser(description="Prepare the checkout to run or to develop.")
    parser.add_argument(
        "--light", action="store_true", help="install only what `penstock serve` needs"
    )
    options = parser.parse_args()
    mode = os.environ.get("PENSTOCK_COMPILE", "auto")
    if mode not in ("auto", "0", "1"):
        fail(f"PENSTOCK_COMPILE={mode!r}: use auto, 0 or 1")

    ensure_venv()
    ensure_packages(light=options.light)
    ensure_engine(mode, light=options.light)
    return 0


if __name__ == "__main__":
    sys.exit(main())
