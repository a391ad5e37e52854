"""Does what the documents show really work? Their examples are run as they stand."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.doors.served import Served
from tools import stranger

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def blocks(document: str, language: str) -> list[str]:
    return stranger.blocks((ROOT / document).read_text(), language)


def test_the_readme_example_prints_what_the_readme_says(tmp_path: Path) -> None:
    (example,) = blocks("README.md", "python")
    (expected,) = blocks("README.md", "text")
    (tmp_path / "example.py").write_text(example)
    ended = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, expected, "")


@pytest.mark.slow
def test_the_shell_lines_of_the_readme_work_as_pasted(tmp_path: Path) -> None:
    (tmp_path / ".venv").symlink_to(sys.prefix)
    place = stranger.Place(tmp_path, stranger.empty_environment())
    with Served(tmp_path / "penstock_data") as served:
        ready = stranger.Served(served.port, served.http_port, "")
        stranger.paste_shell_lines(place, ready)
        stranger.paste_shell_lines(place, ready)  # nothing is in the way the second time


def test_every_shell_block_of_the_readme_finds_the_command() -> None:
    for lines in blocks("README.md", "sh"):
        assert lines.startswith("source .venv/bin/activate")
    text = (ROOT / "README.md").read_text()
    assert len(re.findall(r"(?m)^```$", text)) == len(re.findall(r"(?m)^```\w+$", text))


def test_the_readme_example_has_at_most_twenty_lines() -> None:
    (example,) = blocks("README.md", "python")
    assert len(example.splitlines()) <= 20


def test_the_readme_gives_the_pitch_and_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert (
        "MQTT and HTTP in, one fsynced log, Spark tables and streams out: one `pip install`."
        in text
    )
    assert "\n    make run\n" in text and "\n    make test\n" in text


def checked(snippet: str) -> str:
    """The snippet with each line `expression  # -> value` turned into a comparison."""
    return re.sub(
        r"^(\S.*?)  # -> (.+)$",
        lambda line: f"expect({line[1]}, {line[2]}, {line[0]!r})",
        snippet,
        flags=re.MULTILINE,
    )


def test_the_snippets_of_the_python_guide_run_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    checks = 0

    def expect(found: Any, wanted: Any, line: str) -> None:
        nonlocal checks
        checks += 1
        assert found == wanted, line

    names: dict[str, Any] = {"expect": expect, "__name__": "guide"}
    try:
        for snippet in blocks("docs/PYTHON.md", "python"):
            exec(compile(checked(snippet), "docs/PYTHON.md", "exec"), names)
    finally:
        names["broker"].close()
    assert checks > 15


@pytest.mark.slow
def test_the_session_of_the_command_line_guide_looks_as_shown(tmp_path: Path) -> None:
    (session,) = blocks("docs/CLI.md", "console")
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    environment.pop("PENSTOCK_AT", None)
    for part in re.split(r"^\$ ", session, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        assert "penstock" in shlex.split(command) or command.startswith("cat ")
        ended = subprocess.run(
            ["sh", "-c", command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        pattern = ".+".join(re.escape(piece) for piece in expected.split("…"))
        assert re.fullmatch(pattern, ended.stdout), f"{command}: {ended.stdout} {ended.stderr}"
        assert (ended.returncode, ended.stderr) == (0, "")
