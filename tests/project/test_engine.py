"""Is the engine loaded the way this run promises, and compiled from the present sources?"""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from tests.each import each
from tools import engine

MODULES = [module for module in engine.listed() if engine.source_of(module).is_file()]
EXPECTED = os.environ.get("PENSTOCK_EXPECT_ENGINE")


def is_compiled(module: str) -> bool:
    return str(importlib.import_module(module).__file__).endswith(tuple(EXTENSION_SUFFIXES))


@each("module", MODULES)
def test_module_is_loaded_as_this_run_promises(module: str) -> None:
    assert EXPECTED in (None, "compiled", "interpreted"), EXPECTED
    if EXPECTED is not None:
        assert is_compiled(module) == (EXPECTED == "compiled"), f"{module} is not {EXPECTED}"
    else:
        assert is_compiled(module) == is_compiled(MODULES[0]), "only part of the engine is compiled"


@each("module", MODULES)
def test_compiled_module_is_not_older_than_its_sources(module: str) -> None:
    assert engine.state(module, sys.path) != "stale", "run `make setup`: it compiles what changed"


@each("module", MODULES)
def test_nothing_compiled_waits_while_it_handles_an_exception(module: str) -> None:
    # mypyc would leave that exception with the thread, as the context of every later one.
    tree = ast.parse(engine.source_of(module).read_text())
    handlers = (node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler))
    waits = [
        node.lineno
        for handler in handlers
        for node in ast.walk(handler)
        if isinstance(node, ast.Await | ast.AsyncWith | ast.AsyncFor | ast.Yield | ast.YieldFrom)
    ]
    assert waits == []


def test_sources_behind_a_module_are_found_through_every_form_of_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = {
        "top": "import penstock.second\nimport os",
        "second": "def late():\n    from penstock import third",
        "third": "from penstock.fourth import CONSTANT",
        "fourth": "import penstock.top",
        "stranger": "",
    }
    (tmp_path / "penstock").mkdir()
    for name, text in sources.items():
        (tmp_path / "penstock" / f"{name}.py").write_text(text)
    monkeypatch.setattr(engine, "SOURCE", tmp_path)

    behind = engine.sources_behind("penstock.top")

    assert {path.stem for path in behind} == {"top", "second", "third", "fourth"}


def test_a_test_reaches_the_engine_through_its_helpers_and_its_conftest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = {
        "src/penstock/engine.py": "",
        "src/penstock/dry.py": "",
        "tests/helper.py": "import penstock.engine",
        "tests/plain/test_dry.py": "import penstock.dry",
        "tests/plain/test_helped.py": "from tests.helper import name",
        "tests/fixtures/conftest.py": "from penstock import engine",
        "tests/fixtures/test_fixture.py": "",
        "tests/fixtures/below/test_below.py": "",
    }
    for name, text in sources.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(engine, "ROOT", tmp_path)
    monkeypatch.setattr(engine, "SOURCE", tmp_path / "src")
    monkeypatch.setattr(engine, "listed", lambda: ["penstock.engine"])

    found = engine.tests_in([tmp_path / "tests"])

    assert [path.stem for path in found] == ["test_below", "test_fixture", "test_helped"]


@pytest.mark.over_a_second
def test_every_module_of_the_engine_is_reached_by_a_test_that_runs_interpreted() -> None:
    (line,) = re.findall(r"(?m)^ENGINE_TESTS := (.+)$", (engine.ROOT / "Makefile").read_text())
    tests = engine.tests_in([engine.ROOT / directory for directory in line.split()])
    reached = set[str]().union(*tests.values())
    assert sorted(set(MODULES) - reached) == []


def test_module_becomes_stale_when_a_source_behind_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "penstock"
    package.mkdir()
    (package / "top.py").write_text("from penstock.limits import BOUND")
    (package / "limits.py").write_text("BOUND = 1")
    extension = package / f"top{EXTENSION_SUFFIXES[0]}"
    extension.touch()
    monkeypatch.setattr(engine, "SOURCE", tmp_path)
    for path, moment_ns in [("top.py", 10), ("limits.py", 20), (extension.name, 30)]:
        os.utime(package / path, ns=(moment_ns, moment_ns))
    assert engine.state("penstock.top", [str(tmp_path)]) == "compiled"

    os.utime(package / "limits.py", ns=(40, 40))
    assert engine.state("penstock.top", [str(tmp_path)]) == "stale"

    extension.unlink()
    assert engine.state("penstock.top", [str(tmp_path)]) == "interpreted"
    assert engine.state("penstock.missing", [str(tmp_path)]) == "absent"


def test_interpreted_run_finds_no_compiled_file_even_in_a_process_it_starts(
    tmp_path: Path,
) -> None:
    ask = f"import importlib; print(importlib.import_module({MODULES[0]!r}).__file__)"
    script = tmp_path / "ask.py"
    script.write_text(
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {ask!r}], check=True)"
    )
    answer = subprocess.run(
        [sys.executable, "-m", "tools.interpreted", sys.executable, str(script)],
        cwd=engine.ROOT,
        check=True,
        text=True,
        stdout=subprocess.PIPE,
    )
    assert answer.stdout.strip().endswith(".py")
    assert not answer.stdout.startswith(str(engine.SOURCE))
