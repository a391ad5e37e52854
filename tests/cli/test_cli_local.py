"""Commands on the directory of a running broker: who can open its socket needs no password."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock.log.files.directory import SOCKET_NAME, read_holder
from penstock.model.unix_socket import ADDRESS_BYTES_MAX, url_of
from tests.cli.conftest import Command
from tests.doors.served import Served
from tests.http.asking import Asking


def test_whoever_adds_a_user_is_not_locked_out(data: Path, run: Command) -> None:
    with Served(data) as broker:
        assert run("user", "add", "alice", stdin="wonder\n").code == 0
        with Asking(broker.http_port) as stranger:
            assert stranger.ask("GET", "/v1/users").status == 401
        assert [one["user"] for one in run("user", "list", "--json").json] == ["alice"]
        for arguments in (
            ("user", "add", "bob"),
            ("user", "passwd", "bob"),
            ("user", "key", "bob"),
            ("user", "remove", "bob"),
            ("topic", "create", "t"),
            ("topic", "list"),
            ("publish", "t", "hello"),
            ("session", "list"),
            ("group", "list", "t"),
        ):
            done = run(*arguments, stdin="secret\n")
            assert (done.code, done.err) == (0, ""), arguments
        assert run("consume", "t", "--consumer", "me").out == "hello\n"


@pytest.mark.parametrize("key", ["psk_of_nobody", ""])
def test_the_key_of_another_broker_in_the_environment_does_no_harm(
    data: Path, run: Command, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("PENSTOCK_KEY", key)
    with Served(data):
        run("user", "add", "alice", stdin="wonder\n")
        assert run("topic", "list").code == 0


def test_a_command_that_logs_in_is_who_it_says(data: Path, run: Command, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("psk_of_nobody")
    with Served(data):
        run("user", "add", "alice", stdin="wonder\n")
        refused = run("topic", "list", "--key-file", str(tmp_path / "key"))
        assert refused.code == 1 and "unknown or revoked key" in refused.err


def test_only_the_owner_can_open_the_socket_and_it_goes_with_the_broker(data: Path) -> None:
    path = data / SOCKET_NAME
    with Served(data) as broker:
        mode = path.stat().st_mode
        assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600
        assert (read_holder(data) or {})["socket"] == SOCKET_NAME
        broker.kill()
        assert path.exists()
        broker.start()  # in place of what was left behind
        assert path.exists()
    assert not path.exists()


def test_a_path_that_is_too_long_for_a_socket_will_do(tmp_path: Path, run: Command) -> None:
    data = tmp_path / ("d" * 120) / ("e" * 120)
    assert len(os.fsencode(data)) > ADDRESS_BYTES_MAX
    data.mkdir(parents=True)
    with Served(data, "--http", "off"):
        assert run("user", "add", "alice", "--at", str(data), stdin="wonder\n").code == 0
        assert run("topic", "create", "t", "--at", str(data)).code == 0
        with penstock.connect(url_of(data / SOCKET_NAME)) as client:
            assert client.publish("x", "t") == 0
            assert [one.topic for one in client.topics()] == ["t"]


def test_without_any_other_door_commands_still_reach_the_broker(
    data: Path, run: Command, tmp_path: Path
) -> None:
    bus = ("--bus", str(tmp_path / "bus"))
    command = [sys.executable, "-m", "penstock.cli.main", "serve", "--data", str(data)]
    command += ["--mqtt", "off", "--http", "off", *bus]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as served:
        assert served.stdout is not None
        assert any(line.startswith("ready") for line in served.stdout)
        try:
            assert run("topic", "create", "t").code == 0
            assert run("session", "list").code == 0
        finally:
            served.terminate()


def test_another_file_in_the_sockets_place_is_left_alone(data: Path) -> None:
    data.mkdir()
    (data / SOCKET_NAME).write_text("mine")
    command = [sys.executable, "-m", "penstock.cli.main", "serve", "--data", str(data)]
    command += ["--mqtt", "127.0.0.1:0", "--http", "off"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 3 and "commands cannot be taken at" in ended.stderr
    assert (data / SOCKET_NAME).read_text() == "mine"


def test_commands_that_come_and_go_leave_nothing_behind(data: Path) -> None:
    with Served(data) as broker:
        before = len(os.listdir(f"/proc/{broker.pid}/fd"))
        for _ in range(300):
            with socket.socket(socket.AF_UNIX) as one:
                one.connect(str(data / SOCKET_NAME))
                with Asking(0, one) as asking:
                    assert asking.ask("GET", "/v1/topics").status == 200
        with socket.socket(socket.AF_UNIX) as one:
            one.connect(str(data / SOCKET_NAME))
            assert Asking(0, one).ask("GET", "/v1/topics").status == 200
            assert len(os.listdir(f"/proc/{broker.pid}/fd")) <= before + 5
