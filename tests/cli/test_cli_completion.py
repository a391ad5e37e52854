"""Does bash complete commands, actions, options, choices and topics? tests/peers has the others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Command

ASK = """
source "$1"; shift
penstock() { "$PYTHON" -m penstock "$@"; }
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
_penstock
echo "${COMPREPLY[*]}"
"""


@pytest.fixture
def script(tmp_path: Path, run: Command) -> Path:
    path = tmp_path / "penstock.bash"
    path.write_text(run("completion", "bash").out)
    return path


def complete(script: Path, *typed: str) -> list[str]:
    """What bash offers for the last word."""
    done = subprocess.run(
        ["bash", "-c", ASK, "bash", str(script), "penstock", *typed],
        env=os.environ | {"PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=True,
    )
    assert not done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["to"], ["topic", "top"]),
        (["topic", ""], ["create", "list", "info", "alter", "erase", "delete"]),
        (["topic", "create", "x", "--dur"], ["--durability"]),
        (["topic", "create", "--durability", ""], ["fsync", "os", "replicated"]),
        (["topic", "list", "--at", "topic", "--js"], ["--json"]),
        (["consume", "orders", "--from", ""], []),
        (["pipeline", "run", "st"], ["stats"]),
        (["completion", ""], ["bash", "zsh", "fish", "topics"]),
    ],
    ids=str,
)
def test_bash_offers_what_may_follow(script: Path, typed: list[str], offered: list[str]) -> None:
    assert complete(script, *typed) == offered


def test_bash_offers_the_topics_there_are(script: Path, run: Command) -> None:
    assert complete(script, "consume", "") == []
    for topic in ("sensors", "orders"):
        run("topic", "create", topic)
    assert complete(script, "consume", "") == ["orders", "sensors"]
    assert complete(script, "group", "redrive", "s") == ["sensors"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_a_script_with_commands_options_and_choices(
    run: Command, shell: str
) -> None:
    text = run("completion", shell).out
    assert all(word in text for word in ("redrive", "durability", "replicated"))
