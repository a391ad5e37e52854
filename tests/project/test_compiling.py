"""Is the engine compiled whole or not at all, and never changed under whoever runs it?

Each test compiles a checkout with a single small module, with the real tools.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools import engine

MODULE = "penstock.small"
SOURCE = "def double(number: int) -> int:\n    return number * 2\n"
PREPARE = "from tools import prepare; prepare.ensure_engine('auto', light={light})"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose engine is one module."""
    root = tmp_path / "checkout"
    shutil.copytree(engine.ROOT / "tools", root / "tools")
    shutil.copy(engine.ROOT / "setup.py", root)
    (root / "README.md").touch()
    project = (engine.ROOT / "pyproject.toml").read_text()
    listed = re.sub(r"(?ms)^compiled = \[.*?^\]", f'compiled = ["{MODULE}"]', project)
    (root / "pyproject.toml").write_text(listed)
    package = root / "src" / "penstock"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "small.py").write_text(SOURCE)
    (root / ".venv").mkdir()
    (root / ".venv" / "penstock-packages.json").write_text(json.dumps({"mypyc": True}))
    return root


def prepare(checkout: Path, *, light: bool) -> str:
    """Do what `make run` (light) or `make setup` does about the engine; what was said."""
    ended = subprocess.run(
        [sys.executable, "-c", PREPARE.format(light=light)],
        cwd=checkout,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def wait_compiled(checkout: Path) -> str:
    """Wait until the background is done, however it ended; what it said."""
    with (checkout / "build" / "engine.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
    return (checkout / ".venv" / "penstock-compile.log").read_text()


def wait_begun(checkout: Path) -> None:
    """Wait until the background reads the sources."""
    log = checkout / ".venv" / "penstock-compile.log"
    given_up_s = time.monotonic() + 60
    while "mypyc reads" not in log.read_text():
        assert time.monotonic() < given_up_s, log.read_text()
        time.sleep(0.05)


def compiler_of(checkout: Path) -> int:
    """The process that compiles in the background."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command, place = path.read_bytes(), (path.parent / "cwd").readlink()
        except OSError:
            continue  # it has ended
        if b"tools.compiling" in command and place == checkout:
            return int(path.parent.name)
    raise AssertionError("nothing is compiled in the background")


def compiled(checkout: Path) -> list[str]:
    return sorted(path.name.partition(".")[0] for path in (checkout / "src").rglob("*.so"))


def test_a_broker_has_the_whole_engine_loaded_from_its_start() -> None:
    # Else compiled files that appear while it runs would meet interpreted ones.
    ask = "import sys, penstock.cli.server.running; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", ask], capture_output=True, text=True, check=True
    ).stdout.split()
    # Topics in Kafka load theirs when the storage is opened, which is the first thing after that.
    expected = {one for one in engine.present() if not one.startswith("penstock.log.kafka.")}
    assert expected <= set(loaded)


@pytest.mark.slow
def test_the_background_compiles_for_the_next_start(checkout: Path) -> None:
    said = prepare(checkout, light=True)
    assert "compiled in the background" in said and "PENSTOCK_COMPILE=0 skips it" in said
    assert "still being compiled in the background" in prepare(checkout, light=True)
    assert "compiled; the next `make run` uses it" in wait_compiled(checkout)
    assert compiled(checkout) == []  # nothing changes under a broker that runs
    assert prepare(checkout, light=True) == "  engine    compiled\n"
    assert compiled(checkout) == ["penstock_engine__mypyc", "small"]
    assert prepare(checkout, light=True) == "  engine    compiled, up to date\n"
    ask = "from penstock import small; print(small.__file__, small.double(21))"
    answer = subprocess.run(
        [sys.executable, "-c", ask],
        env={**os.environ, "PYTHONPATH": str(checkout / "src")},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert answer[0].endswith(".so") and answer[1] == "42"


@pytest.mark.slow
def test_setup_tells_how_far_it_is_and_installs_at_once(checkout: Path) -> None:
    said = prepare(checkout, light=False)
    assert "mypyc reads penstock" in said and f"mypyc translates {MODULE} (1 of 1)" in said
    assert "C compiler: the engine (file 1 of 2)" in said
    assert "once, until one of them changes; PENSTOCK_COMPILE=0 skips it" in said
    assert re.search(r"compiled in \d+ s\n$", said)
    assert compiled(checkout) == ["penstock_engine__mypyc", "small"]


@pytest.mark.slow
def test_setup_waits_for_the_background_and_takes_what_it_made(checkout: Path) -> None:
    prepare(checkout, light=True)
    said = prepare(checkout, light=False)
    assert "waiting for another process" in said
    assert said.endswith("  engine    compiled\n") and "C compiler" not in said
    assert compiled(checkout) == ["penstock_engine__mypyc", "small"]


@pytest.mark.slow
def test_a_compile_that_is_killed_leaves_nothing_and_is_done_again(checkout: Path) -> None:
    prepare(checkout, light=True)
    os.kill(compiler_of(checkout), signal.SIGKILL)
    wait_compiled(checkout)
    assert not (checkout / "build" / "engine").exists()
    assert "compiled in the background" in prepare(checkout, light=True)
    wait_compiled(checkout)
    assert prepare(checkout, light=True) == "  engine    compiled\n"


@pytest.mark.slow
def test_what_was_compiled_from_other_sources_is_not_used(checkout: Path) -> None:
    prepare(checkout, light=False)
    small = checkout / "src" / "penstock" / "small.py"
    small.write_text(SOURCE.replace("2", "3"))
    assert "compiled in the background" in prepare(checkout, light=True)
    assert compiled(checkout) == []  # what was there belongs to the older source
    wait_begun(checkout)
    small.write_text(SOURCE)
    assert "the sources changed while they were compiled" in wait_compiled(checkout)
    assert prepare(checkout, light=True) == "  engine    compiled\n"  # from the first time


@pytest.mark.slow
def test_sources_that_do_not_compile_are_tried_once(checkout: Path) -> None:
    (checkout / "src" / "penstock" / "small.py").write_text("def wrong() -> int:\n    return ''\n")
    prepare(checkout, light=True)
    said = wait_compiled(checkout)
    assert "Incompatible return value type" in said and "runs interpreted" in said
    said = prepare(checkout, light=True)
    assert "it could not be compiled, see .venv/penstock-compile.log" in said
    assert "`make setup` tries again" in said
    assert "interpreted: the engine could not be compiled" in prepare(checkout, light=False)
    assert compiled(checkout) == []
