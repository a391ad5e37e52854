"""`penstock session`: the clients of a running broker, from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.doors.served import Served
from tests.doors.users import add_users
from tests.doors.wire import Wire
from tests.http.asking import Asking


def test_sessions_are_listed_shown_and_kicked(data: Path, run: Command) -> None:
    with Served(data) as broker:
        assert run("session", "list").out == "no client is connected or has a session\n"
        with Wire(broker.port, "away") as wire:
            wire.connect(clean=False)
            wire.subscribe("jobs/#", qos=1)
            wire.disconnect()
        with Wire(broker.port, "here") as wire:
            wire.connect()
            wire.publish("jobs/1", b"x", 1)
            listed = run("session", "list")
            rows = [line.split() for line in listed.out.splitlines()]
            assert rows[0] == ["client", "user", "connected", "filters", "out", "waiting", "stays"]
            assert rows[1] == ["away", "-", "no", "1", "0", "1", "for", "ever"]
            assert rows[2] == ["here", "-", "yes", "0", "0", "0", "-"]
            assert [one["client_id"] for one in run("session", "list", "--json").json] == [
                "away",
                "here",
            ]
            shown = run("session", "show", "away").out
            assert "waiting     1 messages" in shown and "filter      jobs/# (QoS 1)" in shown
            at = f"http://127.0.0.1:{broker.http_port}"
            kicked = run("session", "kick", "here", "--at", at)
            assert kicked.out == "closed the connection of here\n"
            assert wire.is_closed()
        refused = run("session", "kick", "away")
        assert refused.code == 1 and "--forget drops its session" in refused.err
        assert run("session", "kick", "away", "--forget").out == "forgot the session of away\n"
        gone = run("session", "show", "away")
        assert gone.code == 1 and "no client 'away'" in gone.err


def test_without_a_broker_it_says_so_with_code_3(data: Path, run: Command) -> None:
    missing = run("session", "list")
    assert missing.code == 3 and "no broker has" in missing.err
    unreachable = run("session", "list", "--at", "http://127.0.0.1:1")
    assert unreachable.code == 3 and "127.0.0.1:1" in unreachable.err
    with Served(data, "--http", "off"):
        closed = run("session", "list")
        assert closed.code == 1 and "listens on no HTTP address" in closed.err


def test_a_guarded_broker_is_asked_with_a_password_or_a_key(
    data: Path, tmp_path: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_users(data, alice="wonder")
    key = run("user", "key", "alice").out.strip()
    (tmp_path / "key").write_text(key + "\n")
    with Served(data) as broker:
        assert run("session", "list").code == 1
        at = f"http://alice:wonder@127.0.0.1:{broker.http_port}"
        assert run("session", "list", "--at", at).code == 0
        assert run("session", "list", "--key-file", str(tmp_path / "key")).code == 0
        monkeypatch.setenv("PENSTOCK_KEY", key)
        assert run("session", "list").code == 0
        with Asking(broker.http_port) as client:
            assert client.ask("GET", "/v1/sessions").status == 401
