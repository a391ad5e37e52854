"""Makes the checkout ready: .venv/, the packages in it, the compiled engine. `make setup`.

Repeatable: each step looks at what is there and does only what is missing. Packages are
installed again when pyproject.toml or constraints.txt changed, the engine is compiled again
when a source behind it changed. Runs on a bare Python of the required version.

`--light` is enough to serve: the core package, and mypyc where a compiler can use it. A checkout
that once had everything keeps everything.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any, NoReturn

from tools import engine

ROOT = engine.ROOT
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
CONSTRAINTS = ROOT / "constraints.txt"
STAMP = VENV / "penstock-packages.json"
LOG = VENV / "penstock-setup.log"

DOWNLOAD = re.compile(r"Downloading ([^-/]+)-([^-/]+?)(?:-\S+|\.tar\.gz) (\(.* [MG]B\))")


def say(step: str, text: str) -> None:
    print(f"  {step:<9} {text}", flush=True)


def news_in(line: str) -> str:
    """What a line of pip's tells a person about how far it is; mostly nothing."""
    if found := DOWNLOAD.match(line):
        return "downloading {} {} {}".format(*found.groups())
    if line.startswith("Building wheel for ") and line.endswith("started"):
        return f"building {line.split()[3]}"
    if line.startswith("Installing collected packages:"):
        return f"unpacking {line.count(',') + 1} packages"
    return ""


def fail(text: str) -> NoReturn:
    sys.exit(f"error: {text}")


def ensure_venv() -> None:
    """Go on inside .venv: make it unless its Python starts and is new enough."""
    if Path(sys.prefix).resolve() == VENV:
        return
    ask = "import sys; sys.exit(sys.version_info < (3, 11) or sys.prefix == sys.base_prefix)"
    if not PYTHON.exists() or subprocess.run([PYTHON, "-c", ask], check=False).returncode != 0:
        say("python", f"making .venv with Python {sys.version.split()[0]}")
        made = subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=False)
        if made.returncode != 0:
            fail("could not make .venv; on Debian and Ubuntu the package python3-venv is needed")
    os.execv(PYTHON, [str(PYTHON), "-m", "tools.prepare", *sys.argv[1:]])


def packages_digest() -> str:
    """Changes whenever an installation would give something else."""
    digest = hashlib.sha256(sys.version.encode())
    for path in (ROOT / "pyproject.toml", CONSTRAINTS):
        digest.update(path.read_bytes())
    digest.update(str(VENV).encode())  # the scripts in bin/ hold it
    return digest.hexdigest()


def installed() -> dict[str, Any]:
    """What the last complete installation wrote down; empty if there was none."""
    try:
        stamp: dict[str, Any] = json.loads(STAMP.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return stamp


def ensure_packages(*, light: bool, may_compile: bool) -> None:
    """Penstock itself (editable) and what it needs, at the versions of constraints.txt."""
    before = installed()
    now = {
        "digest": packages_digest(),
        "full": not light or before.get("full", False),
        "mypyc": may_compile or before.get("mypyc", False),
    }
    if before == now:
        say("packages", "up to date")
        return

    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    extras = sorted(project["optional-dependencies"]) if now["full"] else []
    builders = ["setuptools", *(["mypy[mypyc]"] if now["mypyc"] else [])]
    wanted = f"[{','.join(extras)}]" if extras else ""

    started_s = time.monotonic()
    patience = " (1.3 GB: a few minutes the first time)" if now["full"] and not before else ""
    say("packages", f"installing penstock{wanted}{patience}")
    LOG.unlink(missing_ok=True)
    STAMP.unlink(missing_ok=True)
    pip(*builders)
    # Built with the pinned setuptools just installed, not with whatever is newest today.
    pip("--no-build-isolation", "--editable", f".{wanted}")
    STAMP.write_text(json.dumps(now) + "\n")
    say("packages", f"done in {time.monotonic() - started_s:.0f} s")


def pip(*arguments: str) -> None:
    """Run pip install, show its news, keep all it says in the log."""
    command = [str(PYTHON), "-m", "pip", "install", "--progress-bar", "off"]
    command += ["--disable-pip-version-check", "--constraint", str(CONSTRAINTS), *arguments]
    # The engine is compiled by its own step, which shows what the compiler says.
    environment = {**os.environ, "PENSTOCK_COMPILE": "0"}
    lines: list[str] = []
    with (
        LOG.open("a") as log,
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as running,
    ):
        assert running.stdout is not None
        for line in running.stdout:
            log.write(line)
            lines.append(line.rstrip())
            if news := news_in(line.strip()):
                say("", news)
    if running.returncode != 0:
        print("\n".join(lines[-30:]), file=sys.stderr)
        fail(f"pip could not install the packages; all it said is in {LOG.relative_to(ROOT)}")


def ensure_engine(mode: str) -> None:
    """The listed modules compiled from the present sources, or none of them compiled."""
    present = [module for module in engine.listed() if engine.source_of(module).is_file()]
    states = {module: engine.state(module, [str(engine.SOURCE)]) for module in present}
    if mode == "0" or (mode == "auto" and engine.find_compiler() is None):
        engine.remove_extensions()
        why = "PENSTOCK_COMPILE=0" if mode == "0" else "no C compiler found"
        say("engine", f"interpreted ({why})")
        return
    count = len([path for path in engine.extensions() if "__mypyc" not in path.name])
    if all(how == "compiled" for how in states.values()) and count == len(present):
        say("engine", "compiled, up to date")
        return

    started_s = time.monotonic()
    say("engine", f"compiling {len(present)} modules (about 10 s per 1,000 lines)")
    command = [str(PYTHON), "-W", "ignore:setup.py install", "setup.py", "build_ext", "--inplace"]
    built = subprocess.run(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    with LOG.open("a") as log:
        log.write(built.stdout)
    if built.returncode == 0 and engine.extensions():
        say("engine", f"compiled in {time.monotonic() - started_s:.0f} s")
        return
    print(built.stdout, file=sys.stderr)
    if built.returncode != 0:
        fail("the engine was not compiled; the reason stands above")
    say("engine", "interpreted: compiling failed, the reason stands above")


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the checkout ready to run or to develop.")
    parser.add_argument("--light", action="store_true", help="only what `penstock serve` needs")
    options = parser.parse_args()
    mode = os.environ.get("PENSTOCK_COMPILE", "auto")
    if mode not in ("auto", "0", "1"):
        fail(f"PENSTOCK_COMPILE={mode!r}: use auto, 0 or 1")

    ensure_venv()
    ensure_packages(
        light=options.light, may_compile=mode != "0" and engine.find_compiler() is not None
    )
    ensure_engine(mode)
    return 0


if __name__ == "__main__":
    sys.exit(main())
