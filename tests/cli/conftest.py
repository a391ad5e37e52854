"""The command, in this process, on a data directory of its own."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.main import main


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Command = Callable[..., Outcome]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data directory that commands use unless told otherwise; not made yet."""
    path = tmp_path / "data"
    monkeypatch.setenv("PENSTOCK_AT", str(path))
    return path


@pytest.fixture
def run(data: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """run("topic", "create", "t", stdin="…") -> Outcome"""

    def runner(*arguments: str, stdin: bytes | str = b"") -> Outcome:
        given = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given)))
        capfd.readouterr()
        try:
            code = main(arguments)
        except SystemExit as left:  # argparse: --help, --version, usage
            code = int(left.code or 0)
        said = capfd.readouterr()
        return Outcome(code, said.out, said.err)

    return runner
