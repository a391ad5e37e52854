"""Do zsh and fish complete what is typed, with the scripts that `penstock completion` prints?

bash is tested in tests/cli/test_cli_completion.py.
"""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from penstock import Broker
from tests.waiting import wait_until

# Completes for the script; otherwise writes down how it was called.
PROGRAM: Final = """#!/bin/sh
if [ "$1" = completion ]; then exec "$PYTHON" -m penstock "$@"; fi
echo "$@" >> "$CALLED"
"""
ZSHRC: Final = """
fpath=("$SCRIPTS" $fpath)
autoload -Uz compinit && compinit -u -D
bindkey '^I' complete-word
PROMPT='ready> '
"""
ASKED: Final = [
    ("penstock cont", ["context"]),
    ("penstock topic cr", ["create"]),
    ("penstock topic create --dur", ["--durability"]),
    ("penstock topic create --durability f", ["fsync"]),
    ("penstock topic list --at topic --js", ["--json"]),
    ("penstock pipeline run st", ["stats"]),
    ("penstock consume sen", ["sensors"]),
    ("penstock group redrive ord", ["orders"]),
]


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for scripts, and a `penstock` on the path whose broker has two topics."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "penstock").write_text(PROGRAM)
    (programs / "penstock").chmod(0o755)
    with Broker(tmp_path / "data") as broker:
        for topic in ("sensors", "orders"):
            broker.create_topic(topic)
    for name, value in {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHON": sys.executable,
        "PENSTOCK_AT": str(tmp_path / "data"),
        "CALLED": str(tmp_path / "called"),
        "SCRIPTS": str(tmp_path),
        "ZDOTDIR": str(tmp_path),
        "HOME": str(tmp_path),
        "TERM": "xterm",
    }.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def print_script(shell: str, path: Path) -> Path:
    with path.open("wb") as file:
        subprocess.run(["penstock", "completion", shell], stdout=file, check=True, timeout=60)
    subprocess.run([shell, "-n", str(path)], check=True, timeout=60)
    return path


def test_fish_offers_what_may_follow_and_says_nothing_else(shell: Path) -> None:
    script = print_script("fish", shell / "penstock.fish")
    lines = " ".join(f"'{typed}'" for typed, _ in ASKED)
    ask = f"source {script}; for line in {lines}; echo \\> $line; complete -C $line; end"
    done = subprocess.run(
        ["fish", "--no-config", "-c", ask], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr == ""
    found = {
        line: [one.split("\t")[0] for one in offered]
        for line, *offered in (part.splitlines() for part in done.stdout.split("> ")[1:])
    }
    assert found == dict(ASKED)


def test_zsh_completes_what_is_typed_when_tab_is_pressed(shell: Path) -> None:
    print_script("zsh", shell / "_penstock")
    (shell / ".zshrc").write_text(ZSHRC)
    called = shell / "called"
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        ["zsh", "-d", "-i"], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    ) as running:
        os.close(theirs)
        for number, (typed, _) in enumerate(ASKED, 1):
            said = b""
            while not said.endswith(b"ready> ") and b"ready> \x1b" not in said:
                said += os.read(ours, 4096)
            os.write(ours, f"{typed}\t\n".encode())
            wait_until(lambda number=number: len(calls(called)) == number)
        os.write(ours, b"exit\n")
        running.wait(60)
    os.close(ours)
    expected = [f"{typed.rpartition(' ')[0]} {offered}" for typed, (offered,) in ASKED]
    assert calls(called) == [one.removeprefix("penstock ") for one in expected]


def calls(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []
