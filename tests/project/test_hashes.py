"""Does hashes.txt have every version of constraints.txt, with hashes and without addresses?"""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import distributions

import pytest
from packaging.specifiers import SpecifierSet

from tools.engine import ROOT
from tools.hashes import (
    CONSTRAINTS,
    HASHES,
    PARTS,
    canonical,
    hashes_of,
    read_parts,
    read_pins,
    requirements,
)

LINE = re.compile(r"[a-z0-9-]+==[A-Za-z0-9.!+_-]+( \\\n {4}--hash=sha256:[0-9a-f]{64})+")
NAME = re.compile(r"[A-Za-z0-9._-]+")


def packages(listed: list[str]) -> set[str]:
    """The packages that requirements name."""
    found = [NAME.match(one) for one in listed]
    return {canonical(one[0]) for one in found if one is not None}


def test_both_files_name_the_same_versions() -> None:
    parts = read_parts(HASHES.read_text())
    assert tuple(parts) == PARTS
    listed = [one for part in parts.values() for one in part.values()]
    assert all(LINE.fullmatch(one) for one in listed)
    versions = dict(one.partition(" ")[0].split("==") for one in listed)
    assert len(versions) == len(listed), "no package is in two parts"
    assert versions == read_pins(CONSTRAINTS.read_text())


def test_no_file_names_an_address() -> None:
    for path in (CONSTRAINTS, HASHES):
        assert "://" not in path.read_text()


def test_each_part_has_what_is_installed_with_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    core, compiling, rest = (set(part) for part in read_parts(HASHES.read_text()).values())
    assert packages(project["dependencies"]) | {"setuptools"} <= core
    assert {"mypy"} <= compiling
    extras = [one for extra in project["optional-dependencies"].values() for one in extra]
    assert packages(extras) <= core | compiling | rest
    assert packages(extras).isdisjoint(core - packages(project["dependencies"]) - {"setuptools"})
    light = requirements(compile=False, full=False)
    assert light.count("==") == len(core)
    assert requirements(compile=True, full=False).count("==") == len(core) + len(compiling)
    assert requirements(compile=False, full=True).count("==") == len(core | compiling | rest)


@pytest.mark.parametrize(
    ("file", "is_of"),
    [
        ("some_pkg-1.2-cp311-cp311-manylinux_2_17_x86_64.whl", True),
        ("Some.Pkg-1.2.tar.gz", True),
        ("some-pkg-1.2.zip", True),
        ("some_pkg-1.2.post0-py3-none-any.whl", False),
        ("some_pkg-1.20.tar.gz", False),
        ("some_pkg_more-1.2.tar.gz", False),
        ("some_pkg-1.2.exe", False),
    ],
)
def test_the_files_of_a_version(file: str, is_of: bool) -> None:
    link = f"../../{file}#sha256={'0' * 64}"
    assert hashes_of([link], "some-pkg", "1.2") == (["0" * 64] if is_of else [])


def test_every_version_works_on_the_oldest_python_that_we_promise() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = project["requires-python"].removeprefix(">=") + ".0"
    pins = read_pins(CONSTRAINTS.read_text())
    installed = {canonical(one.metadata["Name"]): one for one in distributions()}
    needs = {
        f"{name}=={version}": installed[name].metadata.get("Requires-Python") or ""
        for name, version in pins.items()
        if name in installed and installed[name].version == version
    }
    assert needs, "this environment has none of the pinned versions"
    assert [one for one, python in needs.items() if oldest not in SpecifierSet(python)] == []
