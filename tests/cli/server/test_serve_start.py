"""Starting a server: what it says, what it leaves behind when it is refused, signals."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import Broker, __version__
from tests.cli.test_cli_command import PATIENCE_S, run, start
from tests.doors.certificates import Authority
from tests.doors.users import add_users
from tests.doors.wire import Wire

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
    while "were read again" not in said:
        line = served.stderr.readline()
        assert line, served.communicate()
        said += line
    assert run("topic", "list", "--at", "data", cwd=tmp_path)[0] == 0
    assert run("reload", "--at", "data", cwd=tmp_path)[:2] == (0, "reloaded\n")
    served.send_signal(signal.SIGTERM)
    served.communicate(timeout=PATIENCE_S)
    assert served.returncode == 0


def test_a_server_whose_log_nobody_reads_serves_and_stops(tmp_path: Path) -> None:
    served = start("serve", "--data", "data", *FREE, cwd=tmp_path)
    port = int(read_fact(read_greeting(served), "listening").rsplit(":", 1)[1])
    for number in range(600):  # more lines than a pipe holds
        with Wire(port, f"client-{number}-{'x' * 100}") as wire:
            wire.connect()
            wire.disconnect()
    served.send_signal(signal.SIGTERM)
    assert served.wait(PATIENCE_S) == 0
    served.communicate()


# What it says


def read_fact(greeting: str, name: str) -> str:
    (fact,) = [line for line in greeting.splitlines() if line.startswith(f"{name}: ")]
    return fact.removeprefix(f"{name}: ")


def greeting_of(tmp_path: Path, *flags: str) -> str:
    served = start("serve", "--data", "data", *flags, cwd=tmp_path)
    greeting = read_greeting(served)
    served.send_signal(signal.SIGTERM)
    served.communicate(timeout=PATIENCE_S)
    return greeting


def test_the_first_start_says_that_anyone_on_this_machine_comes_in(tmp_path: Path) -> None:
    greeting = greeting_of(tmp_path, *FREE)
    assert greeting.splitlines()[0] == f"penstock {__version__}"
    assert greeting.splitlines()[-1] == "ready; stop with Ctrl-C"
    assert read_fact(greeting, "access") == "anyone on this machine, until `penstock user add`"
    assert read_fact(greeting, "durability") == "fsync, acknowledged messages are on disk"
    assert read_fact(greeting, "retention") == "7d, no size limit"


def test_the_address_of_the_console_is_one_that_a_browser_can_open(tmp_path: Path) -> None:
    flags = ("--mqtt", "off", "--http", "0.0.0.0:0", "--allow-anonymous")
    greeting = greeting_of(tmp_path, *flags)
    port = read_fact(greeting, "listening").rpartition(":")[2]
    assert read_fact(greeting, "console") == f"http://localhost:{port}/"
    assert "console: " not in greeting_of(tmp_path, *FREE)


def test_counts_of_one_are_not_plural(tmp_path: Path) -> None:
    add_users(tmp_path / "data", alice="secret")
    with Broker(tmp_path / "data") as broker:
        broker.create_topic("orders")
    greeting = greeting_of(tmp_path, *FREE)
    assert read_fact(greeting, "data") == "data (1 topic)"
    assert read_fact(greeting, "access") == "1 user, login required"


@pytest.mark.parametrize(
    ("flags", "access"),
    [
        (
            ("--mqtt", "off", "--tls-client-certificates", "required"),
            "on mqtts only with a client certificate, whose common name is the user",
        ),
        (
            ("--mqtt", "off"),
            "anyone on this machine, until `penstock user add`; on mqtts also with a client"
            " certificate, whose common name is the user",
        ),
        (
            ("--mqtt", "127.0.0.1:0", "--tls-client-certificates", "required"),
            "anyone on this machine, until `penstock user add`; on mqtts only with a client"
            " certificate, whose common name is the user",
        ),
        (
            ("--mqtt", "off", "--allow-anonymous", "--bus", "bus"),
            "anyone (--allow-anonymous), and 0 users; on mqtts also with a client certificate,"
            " whose common name is the user; on the bus only programs of this system user",
        ),
    ],
)
def test_the_access_line_tells_what_client_certificates_change(
    tmp_path: Path, flags: tuple[str, ...], access: str
) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.sign("server")
    tls = ("--mqtts", "127.0.0.1:0", "--tls-cert", str(cert), "--tls-key", str(key))
    ca = ("--tls-client-ca", str(authority.cert))
    greeting = greeting_of(tmp_path, "--http", "off", *tls, *ca, *flags)
    assert read_fact(greeting, "access") == access
