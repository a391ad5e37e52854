"""Writes hashes.txt: the pins of constraints.txt with the SHA-256 of every file of that version.

The file is a list of requirements for `pip install --require-hashes`, in three parts, of which each
needs those before it: what the core needs, what compiling the engine needs, and the rest. Hashes
are those of all wheels and source archives that the index of pip offers, so that the file holds on
every platform and for every mirror; it names no address. `make hashes`, also part of
`make constraints`; read the difference before committing.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from typing import Final
from urllib.parse import unquote, urldefrag

from tools.engine import ROOT

CONSTRAINTS: Final = ROOT / "constraints.txt"
HASHES: Final = ROOT / "hashes.txt"
CORE, COMPILE, REST = PARTS = ("core", "compile", "rest")
MYPYC: Final = "mypy[mypyc]"
HEADER: Final = "# Written by `make hashes`; see docs/HACKING.md. Not changed by hand.\n"
_PIN: Final = re.compile(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.!+_-]+)")
_SHA256: Final = re.compile(r"sha256=([0-9a-f]{64})")
_ARCHIVE: Final = re.compile(r"\.(whl|tar\.gz|zip)$")


class HashesError(Exception):
    """hashes.txt cannot be written, or is not what it should be."""


def canonical(name: str) -> str:
    """A package by the name under which indexes list it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_pins(text: str) -> dict[str, str]:
    """Package -> version, of constraints.txt."""
    found = [_PIN.fullmatch(line) for line in text.splitlines() if line and line[0] != "#"]
    return {canonical(one[1]): one[2] for one in found if one is not None}


def read_parts(text: str) -> dict[str, dict[str, str]]:
    """Part -> package -> its requirement with all hashes, of hashes.txt."""
    parts: dict[str, dict[str, str]] = {}
    for block in re.split(r"^# (?=\w+$)", text, flags=re.MULTILINE)[1:]:
        name, _, lines = block.partition("\n")
        requirements = re.findall(r"^\S.*?[^\\]$", lines, re.MULTILINE | re.DOTALL)
        parts[name] = {canonical(one.partition("==")[0]): one for one in requirements}
    return parts


def requirements(*, compile: bool, full: bool) -> str:
    """What pip installs with --require-hashes: the core, with the compiler or everything."""
    wanted = PARTS if full else (CORE, COMPILE) if compile else (CORE,)
    parts = read_parts(HASHES.read_text())
    return "".join(f"{line}\n" for part in wanted for line in parts[part].values())


# Writing the file


class _Links(HTMLParser):
    """The links of a page of an index (PEP 503)."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for key, value in attrs if key == "href" and value]


def _index() -> str:
    """Where this pip looks for packages."""
    ask = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    told = subprocess.run(ask, check=False, text=True, capture_output=True).stdout.strip()
    if told:
        return told
    from pip._internal.models.index import PyPI

    return PyPI.simple_url


def hashes_of(links: Iterable[str], package: str, version: str) -> list[str]:
    """The SHA-256 of every file of this version."""
    found = set()
    for link in links:
        address, fragment = urldefrag(link)
        file = unquote(address.rpartition("/")[2])
        digest = _SHA256.search(fragment)
        if digest and _ARCHIVE.search(file) and _is_of(file, package, version):
            found.add(digest[1])
    return sorted(found)


def _is_of(file: str, package: str, version: str) -> bool:
    """Is this a file of the version? A wheel has its tags behind it, an archive nothing."""
    stem = _ARCHIVE.sub("", file)
    if file.endswith(".whl"):
        name, its_version = stem.split("-")[:2]
    else:
        name, _, its_version = stem.rpartition("-")
    return canonical(name) == package and its_version.replace("_", "-") == version


def _fetch(index: str, package: str, version: str) -> str:
    """The requirement with all its hashes."""
    ask = urllib.request.Request(f"{index.rstrip('/')}/{package}/", headers={"Accept": "text/html"})
    with urllib.request.urlopen(ask, timeout=60) as answer:
        page = _Links()
        page.feed(answer.read().decode())
    hashes = hashes_of(page.found, package, version)
    if not hashes:
        raise HashesError(f"the index has no file of {package} {version} with a SHA-256")
    return " \\\n".join([f"{package}=={version}", *(f"    --hash=sha256:{one}" for one in hashes)])


def _closure(wanted: list[str]) -> set[str]:
    """The packages that pip would install for these, at the versions of constraints.txt."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run"]
    command += ["--ignore-installed", "--report", "-", "--constraint", str(CONSTRAINTS), *wanted]
    report = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout
    return {canonical(one["metadata"]["name"]) for one in json.loads(report)["install"]}


def write(pins: Mapping[str, str]) -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    core = _closure(["setuptools", *project["dependencies"]])
    compiling = _closure(["setuptools", *project["dependencies"], MYPYC]) - core
    index = _index()
    with ThreadPoolExecutor(8) as pool:
        fetched = dict(
            zip(pins, pool.map(lambda one: _fetch(index, *one), pins.items()), strict=True)
        )
    parts = {CORE: core, COMPILE: compiling, REST: set(pins) - core - compiling}
    text = HEADER
    for part, packages in parts.items():
        text += f"\n# {part}\n" + "".join(f"{fetched[one]}\n" for one in sorted(packages))
    HASHES.write_text(text)
    print(f"hashes.txt: {len(pins)} packages, {text.count('sha256:')} files")


def main() -> int:
    try:
        write(read_pins(CONSTRAINTS.read_text()))
    except HashesError as wrong:
        print(f"error: {wrong}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
