"""Does systemd hear that the server is ready, alive and stopping?"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from penstock.app.systemd import ServiceManager
from tests.doors.served import Served


def listening(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind(str(path))
    listener.settimeout(20)
    return listener


def test_a_server_says_that_it_is_ready_alive_and_stopping(tmp_path: Path) -> None:
    with listening(tmp_path / "notify") as systemd:
        variables = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "100000"}
        with Served(tmp_path / "data", env=os.environ | variables):
            heard = [systemd.recv(1000) for _ in range(20)]
            assert heard.count(b"READY=1") == 1
            assert heard.count(b"WATCHDOG=1") == 19
        while (said := systemd.recv(1000)) == b"WATCHDOG=1":
            pass
        assert said == b"STOPPING=1"


def test_without_systemd_and_with_the_watchdog_of_another_process_nothing_is_said(
    tmp_path: Path,
) -> None:
    ServiceManager({}).tell("READY=1")
    ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")}).tell("READY=1")
    here = {"NOTIFY_SOCKET": str(tmp_path / "gone"), "WATCHDOG_USEC": "100000"}
    assert ServiceManager(here).watchdog_s == 0.1
    assert ServiceManager(here | {"WATCHDOG_PID": str(os.getpid())}).watchdog_s == 0.1
    assert ServiceManager(here | {"WATCHDOG_PID": "1"}).watchdog_s == 0
    assert ServiceManager({"WATCHDOG_USEC": "100000"}).watchdog_s == 0


def test_an_abstract_socket_is_reached() -> None:
    name = f"penstock-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"\0{name}")
        systemd.settimeout(20)
        ServiceManager({"NOTIFY_SOCKET": f"@{name}"}).tell("READY=1", "STATUS=fine")
        assert systemd.recv(1000) == b"READY=1\nSTATUS=fine"
