"""Starting a server: what it says, what it leaves behind when it is refused, signals."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_cli_command import PATIENCE_S, run, start
from tests.doors.users import add_users

FREE = ("--mqtt", "127.0.0.1:0", "--http", "off")


@pytest.fixture
def taken() -> Iterator[str]:
    """An address that somebody else listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def read_greeting(served: subprocess.Popen[str]) -> str:
    """What the server prints up to and with `ready`."""
    assert served.stdout is not None
    greeting = ""
    while "ready" not in greeting:
        line = served.stdout.readline()
        assert line, served.communicate()
        greeting += line
    return greeting


@pytest.mark.parametrize(
    "flags",
    [
        ("--mqtt", "127.0.0.1"),
        ("--mqtt", "192.0.2.1:1883", "--http", "off"),
        ("--mqtt", "0.0.0.0:0", "--http", "off"),
        (*FREE, "--mqtts", "127.0.0.1:0", "--tls-cert", "missing.pem"),
        (*FREE, "--bus", "missing/bus"),
        (*FREE, "--bus", "notes.txt"),
    ],
)
def test_a_refused_start_leaves_no_data_directory_behind(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    (tmp_path / "notes.txt").write_text("not a socket")
    code, out, err = run("serve", "--data", "new/data", *flags, cwd=tmp_path)
    assert code != 0 and err
    assert "ready" not in out
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_port_in_use_leaves_no_data_directory_behind(tmp_path: Path, taken: str) -> None:
    for flags in (("--mqtt", taken, "--http", "off"), ("--mqtt", "127.0.0.1:0", "--http", taken)):
        code, _, err = run("serve", "--data", "new/data", *flags, cwd=tmp_path)
        assert code == 3 and f"cannot listen on {taken}" in err
        assert list(tmp_path.iterdir()) == []


def test_a_refused_start_leaves_an_existing_directory_as_it_was(tmp_path: Path, taken: str) -> None:
    (tmp_path / "empty").mkdir()
    add_users(tmp_path / "full", alice="secret")
    for name in ("empty", "full"):
        assert run("serve", "--data", name, "--mqtt", taken, "--http", "off", cwd=tmp_path)[0] == 3
    assert (tmp_path / "empty").is_dir()
    code, out, _ = run("user", "list", "--at", "full", cwd=tmp_path)
    assert code == 0 and "alice" in out


def test_a_second_start_on_the_same_new_directory_leaves_the_first_alone(tmp_path: Path) -> None:
    first = start("serve", "--data", "data", *FREE, cwd=tmp_path)
    read_greeting(first)
    code, _, err = run("serve", "--data", "data", *FREE, cwd=tmp_path)
    assert code == 3 and str(first.pid) in err
    assert (tmp_path / "data" / "catalog.db").exists()
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=PATIENCE_S)
    assert first.returncode == 0


def test_sighup_does_not_end_the_server(tmp_path: Path) -> None:
    served = start("serve", "--data", "data", *FREE, cwd=tmp_path)
    read_greeting(served)
    served.send_signal(signal.SIGHUP)
    assert served.stderr is not None
    said = ""
    while "SIGHUP" not in said:
        line = served.stderr.readline()
        assert line, served.communicate()
        said += line
    assert run("topic", "list", "--at", "data", cwd=tmp_path)[0] == 1  # held by the server
    served.send_signal(signal.SIGTERM)
    served.communicate(timeout=PATIENCE_S)
    assert served.returncode == 0
