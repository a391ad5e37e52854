"""Does Penstock work where nothing but its core dependencies is installed?"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.project.core_install import OPTIONAL
from tests.project.test_core_install import API, SERVED
from tools.engine import ROOT
from tools.hashes import requirements
from tools.stranger import (
    Place,
    StrangerError,
    empty_environment,
    paste_shell_lines,
    run_example,
    send_by_http,
)

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("core environment")]  # made once

COPIED = ("LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py")
COMMANDS = """
topic create t
topic list
topic info t
topic alter t --retention-age 1d
publish t hello
consume t --consumer me
consumer list t
consumer seek t me earliest
consumer remove t me
group list t
log verify
log dump t
log export --lines exported
log import --lines exported --at imported
pipeline list
config init settings.toml
user list
bench --seconds 0.1
serve --check
topic delete t --yes
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A directory with an environment made from the core dependencies."""
    root = tmp_path_factory.mktemp("core")
    for name in COPIED:
        shutil.copy(ROOT / name, root)
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
    for name in ("src", "tools"):
        shutil.copytree(ROOT / name, root / name, ignore=ignored)
    (root / "core.txt").write_text(requirements(compile=False, full=False))
    made = Place(root, {**empty_environment(), "PENSTOCK_COMPILE": "0"})
    made.run(sys.executable, "-m", "venv", ".venv")
    pip = [".venv/bin/python", "-m", "pip", "install"]
    made.run(*pip, "--require-hashes", "--requirement", "core.txt")
    made.run(*pip, "--no-deps", "--no-build-isolation", ".")
    return made


@pytest.fixture
def here(place: Place, tmp_path: Path) -> Place:
    """An empty directory, with that environment in it."""
    (tmp_path / ".venv").symlink_to(place.directory / ".venv")
    return Place(tmp_path, place.environment)


def test_nothing_optional_is_installed(here: Place) -> None:
    ask = f"from importlib.util import find_spec; print([*filter(find_spec, {sorted(OPTIONAL)})])"
    assert here.run(".venv/bin/python", "-c", ask) == "[]\n"


def test_commands_work_on_a_directory(here: Place) -> None:
    for line in COMMANDS.strip().splitlines():
        here.run(".venv/bin/penstock", *line.split())  # raises StrangerError if it fails


def test_the_python_api_works(here: Place) -> None:
    assert here.run(".venv/bin/python", "-c", API) == "[{'celsius': 35}]\n"


def test_the_server_and_its_clients_work(here: Place) -> None:
    shutil.rmtree(here.directory / "data", ignore_errors=True)
    assert here.run(".venv/bin/python", "-c", SERVED) == "0\n['t']\n"


def test_a_broker_serves_commands_and_the_lines_of_the_readme(here: Place) -> None:
    serve = (".venv/bin/penstock", "serve", "--mqtt", "127.0.0.1:0", "--http", "127.0.0.1:0")
    with here.serving(*serve, data=here.directory / "penstock_data") as served:
        paste_shell_lines(here, served)
        run_example(here)
        send_by_http(here, Path(".venv/bin/penstock"), served)
        for line in ("session list", "topic list", "group list sensors", "user list"):
            here.run(".venv/bin/penstock", *line.split())


def test_a_job_says_what_to_install(here: Place) -> None:
    with pytest.raises(StrangerError, match=r"pip install 'penstock\[spark\]'"):
        here.run(".venv/bin/penstock", "pipeline", "run", "stats")
    assert sorted(os.listdir(here.directory)) == [".venv"]
