"""Installs Penstock and the packages it needs into .venv/: only files whose hashes are known.

hashes.txt has the versions of constraints.txt with the hashes of all their files. Repeatable: what
the last complete installation wrote down says whether anything is missing. Runs inside .venv, one
installation at a time.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

from tools.engine import ROOT
from tools.hashes import CONSTRAINTS, HASHES, requirements

VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "penstock-packages.json"
LOCK = VENV / "penstock-packages.lock"
LOG = VENV / "penstock-setup.log"
COMPILE_LOG = VENV / "penstock-compile.log"  # of compiling in the background

DOWNLOAD: Final = re.compile(r"Downloading ([^-/]+)-([^-/]+?)(?:-\S+|\.tar\.gz) (\(.* [MG]B\))")


def say(step: str, text: str) -> None:
    print(f"  {step:<9} {text}", flush=True)


def fail(text: str) -> NoReturn:
    sys.exit(f"error: {text}")


def ensure_packages(*, light: bool) -> None:
    """Penstock itself (editable) and what it needs; all extras unless `light` is enough.

    An environment that once had everything, or the compiler, keeps it.
    """
    with _lock():
        before = _installed()
        full: bool = not light or before.get("full", False)
        mypyc: bool = not light or before.get("mypyc", False)
        now = {"digest": _digest(), "full": full, "mypyc": mypyc}
        if before == now:
            say("packages", "up to date")
            return
        _install(full=full, mypyc=mypyc, is_first=not before)
        STAMP.write_text(json.dumps(now) + "\n")


def ensure_mypyc() -> None:
    """What compiling needs, besides the installed packages."""
    with _lock():
        stamp = _installed()
        if not stamp.get("mypyc"):
            _install_hashed(compile=True, full=False)
            STAMP.write_text(json.dumps({**stamp, "mypyc": True}) + "\n")


def _install(*, full: bool, mypyc: bool, is_first: bool) -> None:
    started_s = time.monotonic()
    what = "penstock and all extras" if full else "penstock"
    patience = " (1.3 GB: a few minutes the first time)" if full and is_first else ""
    say("packages", f"installing {what}{patience}")
    LOG.unlink(missing_ok=True)
    STAMP.unlink(missing_ok=True)
    _install_hashed(compile=mypyc, full=full)
    # Built with the pinned setuptools just installed, not with whatever is newest today.
    _pip("--no-deps", "--no-build-isolation", "--editable", ".")
    say("packages", f"done in {time.monotonic() - started_s:.0f} s")


def _install_hashed(*, compile: bool, full: bool) -> None:
    """A file that is not the one whose hash was written down is not installed."""
    with tempfile.NamedTemporaryFile("w", prefix="penstock-", suffix=".txt") as listed:
        listed.write(requirements(compile=compile, full=full))
        listed.flush()
        _pip("--require-hashes", "--requirement", listed.name)


@contextmanager
def _lock() -> Iterator[None]:
    """Wait until no other process changes the environment, and keep it so."""
    with LOCK.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _digest() -> str:
    """Changes whenever an installation would give something else."""
    digest = hashlib.sha256(sys.version.encode())
    for path in (ROOT / "pyproject.toml", CONSTRAINTS, HASHES):
        digest.update(path.read_bytes())
    digest.update(str(VENV).encode())  # the scripts in bin/ hold it
    return digest.hexdigest()


def _installed() -> dict[str, Any]:
    """What the last complete installation wrote down; empty if there was none."""
    try:
        stamp: dict[str, Any] = json.loads(STAMP.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return stamp


def _pip(*arguments: str) -> None:
    """Run pip install, show its news, keep all it says in the log."""
    command = [str(PYTHON), "-m", "pip", "install", "--progress-bar", "off"]
    command += ["--disable-pip-version-check", *arguments]
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
            if news := _news_in(line.strip()):
                say("", news)
    if running.returncode != 0:
        print("\n".join(lines[-30:]), file=sys.stderr)
        fail(f"pip could not install the packages; its output is in {LOG.relative_to(ROOT)}")


def _news_in(line: str) -> str:
    """What a line of pip's tells a person about how far it is; mostly nothing."""
    if found := DOWNLOAD.match(line):
        return "downloading {} {} {}".format(*found.groups())
    if line.startswith("Building wheel for ") and line.endswith("started"):
        return f"building {line.split()[3]}"
    if line.startswith("Installing collected packages:"):
        return f"unpacking {line.count(',') + 1} packages"
    return ""
