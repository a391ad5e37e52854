"""Does a terminal show that a long command goes on, and is the line gone when it has ended?"""

from __future__ import annotations

import os
import pty
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock import Broker
from penstock.cli import output
from penstock.cli.output import waiting
from tests.cli.conftest import Command

GONE = b"\r\x1b[K"


@contextmanager
def terminal(patch: pytest.MonkeyPatch, every_s: float) -> Iterator[int]:
    """Where to read what a terminal gets on standard error; every command is a long one."""
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    with patch.context() as here, os.fdopen(theirs, "w") as file:
        here.setattr(output, "PROGRESS_AFTER_S", 0.0)
        here.setattr(output, "PROGRESS_EVERY_S", every_s)
        here.setattr(sys, "stderr", file)
        yield ours
    os.close(ours)


def read_until(ours: int, ending: bytes) -> bytes:
    """What the terminal got, up to this ending: it may arrive in pieces."""
    shown = b""
    while not shown.endswith(ending) and select.select([ours], [], [], 30)[0]:
        shown += os.read(ours, 65536)
    return shown


def test_a_dump_into_a_file_shows_its_offset(
    run: Command, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Broker(data) as broker:
        broker.create_topic("t")
        for _ in range(3):
            broker.publish("x", "t")
    with terminal(monkeypatch, 0.0) as ours:
        assert run("log", "dump", "t", "--limit", "2").code == 0
        shown = read_until(ours, b"dumping: offset 1" + GONE)
    assert b"dumping: offset 0" in shown and shown.endswith(b"dumping: offset 1" + GONE)


def test_what_cannot_say_how_far_it_is_shows_for_how_long_it_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with terminal(monkeypatch, 0.01) as ours:
        with waiting("putting back dead letters"):
            select.select([ours], [], [], 30)
            assert b"putting back dead letters: 0 s" in os.read(ours, 65536)
        assert read_until(ours, GONE).endswith(GONE)


def test_a_measurement_shows_for_how_long_it_runs(
    run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    with terminal(monkeypatch, 0.05) as ours:
        assert run("bench", "--seconds", "0.2").code == 0
        assert b"measuring: 0 s" in read_until(ours, GONE)


def test_nothing_is_shown_where_no_terminal_is(capfd: pytest.CaptureFixture[str]) -> None:
    with waiting("putting back dead letters"):
        pass
    assert capfd.readouterr().err == ""
