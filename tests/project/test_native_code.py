"""Does docs/OPERATIONS.md name every package with compiled code that an extra brings?"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
COMPILED = re.compile(r"\.(so|pyd|dylib|jar)(\.|$)")
FOR_TESTS = "dev"  # its row ends with `and others`


def installed(requirements: Iterable[str]) -> dict[str, Distribution]:
    """What these requirements bring, and what that brings; only what is installed here."""
    found: dict[tuple[str, frozenset[str]], Distribution] = {}
    left = [Requirement(one) for one in requirements]
    while left:
        wanted = left.pop()
        key = (wanted.name.lower().replace("_", "-"), frozenset(wanted.extras))
        if key in found:
            continue
        try:
            found[key] = distribution(wanted.name)
        except PackageNotFoundError:
            continue
        for text in found[key].requires or ():
            below = Requirement(text)
            extras = (*wanted.extras, "")
            if below.marker is None or any(below.marker.evaluate({"extra": e}) for e in extras):
                left.append(below)
    return {name: one for (name, _), one in found.items()}


def compiled(requirements: Iterable[str]) -> set[str]:
    return {
        name
        for name, one in installed(requirements).items()
        if any(COMPILED.search(str(file)) for file in one.files or ())
    }


def rows() -> dict[str, str]:
    """What the first column names, by extra; '' for what is always installed."""
    text = (ROOT / "docs/OPERATIONS.md").read_text()
    section = text.partition("## Native code in the packages")[2].partition("\n## ")[0]
    found = {}
    for line in section.splitlines():
        if match := re.match(r"\| (always|`\[(\w+)\]`): (.*?) \|", line):
            found[match[2] or ""] = match[3]
    return found


def test_every_extra_has_a_row() -> None:
    assert rows().keys() == {"", *EXTRAS}


@pytest.mark.parametrize("extra", ["", *sorted(EXTRAS.keys() - {FOR_TESTS})])
def test_each_package_with_compiled_code_is_named(extra: str) -> None:
    always = compiled(PROJECT["dependencies"])
    brings = compiled(EXTRAS[extra]) - always if extra else always
    assert {one for one in brings if f"`{one}`" not in rows()[extra]} == set()
