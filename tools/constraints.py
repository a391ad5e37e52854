"""Writes constraints.txt: the exact version of every package that `make setup` installs.

Resolves the core dependencies and every extra of pyproject.toml, newest first, in a fresh
environment, and writes down what pip chose: names and versions only, so that the file holds
for whichever index a person uses; then writes their hashes (tools/hashes.py). `make constraints`;
read the difference before committing.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from tools import hashes
from tools.engine import ROOT

PIN = re.compile(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+_-]+")
HEADER = "# Written by `make constraints`; see docs/HACKING.md before changing a line by hand.\n"
NOT_PINNED = ("pip==",)  # comes with the environment


def main() -> int:
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    wanted: list[str] = [*project["dependencies"], "setuptools"]
    for extra in project["optional-dependencies"].values():
        wanted.extend(extra)

    with tempfile.TemporaryDirectory(prefix="penstock-constraints-") as directory:
        python = str(Path(directory) / "bin" / "python")
        subprocess.run([sys.executable, "-m", "venv", directory], check=True)
        pip = [python, "-m", "pip", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--upgrade", "--progress-bar", "off", *wanted], check=True)
        frozen = subprocess.run(
            [*pip, "freeze", "--all"], check=True, text=True, stdout=subprocess.PIPE
        ).stdout.split("\n")

    pins = [line for line in frozen if line and not line.startswith(NOT_PINNED)]
    odd = [line for line in pins if not PIN.fullmatch(line)]
    if odd:
        print(f"error: not a name and a version: {', '.join(odd)}", file=sys.stderr)
        return 1
    text = HEADER + "".join(f"{pin}\n" for pin in sorted(pins, key=str.casefold))
    (ROOT / "constraints.txt").write_text(text)
    print(f"constraints.txt: {len(pins)} packages")
    return hashes.main()


if __name__ == "__main__":
    sys.exit(main())
