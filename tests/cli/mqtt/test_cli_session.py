"""`penstock session`: the clients of a running broker, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.doors.served import Served
from tests.doors.users import add_users
from tests.doors.wire import Wire
from tests.http.asking import Asking


def test_sessions_are_listed_shown_and_kicked(data: Path, run: Command) -> None:
    with Served(data) as broker:
        assert (
            run("session", "list").out == "no clients are connected, and no sessions are stored\n"
        )
        with Wire(broker.port, "away") as wire:
            wire.connect(clean=False)
            wire.subscribe("jobs/#", qos=1)
            wire.disconnect()
        with Wire(broker.port, "here") as wire:
            wire.connect()
            wire.publish("jobs/1", b"x", 1)
            listed = run("session", "list")
            rows = [line.split() for line in listed.out.splitlines()]
            assert rows[0] == [
                "client",
                "user",
                "connected",
                "filters",
                "unacked",
                "waiting",
                "expiry",
            ]
            assert rows[1] == ["away", "-", "no", "1", "0", "1", "90d"]
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
        assert refused.code == 1 and "use --forget to delete its session" in refused.err
        assert run("session", "kick", "away", "--forget").out == "deleted the session of away\n"
        with Wire(broker.port, "again") as wire:
            wire.connect(clean=False)
            removed = run("session", "remove", "again")
            assert removed.out == "deleted the session of again\n" and wire.is_closed()
        missing = run("session", "remove", "again")
        assert missing.code == 1 and "no client 'again'" in missing.err
        gone = run("session", "show", "away")
        assert gone.code == 1 and "no client 'away'" in gone.err


def test_a_terminal_obeys_no_client_id(data: Path, run: Command) -> None:
    client_id = "\x1b[31mred\x1b[2J\x9b0m"
    shown = r"\x1b[31mred\x1b[2J\x9b0m"
    with Served(data) as broker, Wire(broker.port, client_id) as wire:
        wire.connect()
        wire.subscribe("a/\x1b[1m")
        assert shown in run("session", "list").out
        one = run("session", "show", client_id).out
        assert f"client      {shown}\n" in one and r"filter      a/\x1b[1m (QoS 0)" in one
        (listed,) = run("session", "list", "--json").out.splitlines()
        assert r"\u001b[31mred\u001b[2J\u009b0m" in listed
        assert json.loads(listed)[0]["client_id"] == client_id
        assert run("session", "kick", client_id).out == f"closed the connection of {shown}\n"
        assert "\x1b" not in run("session", "kick", client_id).err
        wire.is_closed()


@pytest.mark.parametrize("action", ["show", "kick"])
def test_an_empty_client_id_is_named(data: Path, run: Command, action: str) -> None:
    done = run("session", action, "")
    assert done.code == 1 and "the client id is empty: `penstock session list`" in done.err


def test_without_a_broker_it_says_so_with_code_3(data: Path, run: Command) -> None:
    missing = run("session", "list")
    assert missing.code == 3 and "no broker has" in missing.err
    unreachable = run("session", "list", "--at", "http://127.0.0.1:1")
    assert unreachable.code == 3 and "127.0.0.1:1" in unreachable.err


def test_a_guarded_broker_is_asked_with_a_password_or_a_key(
    data: Path, tmp_path: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_users(data, alice="wonder")
    key = run("user", "key", "alice").out.strip()
    (tmp_path / "key").write_text(key + "\n")
    with Served(data) as broker:
        url = f"http://127.0.0.1:{broker.http_port}"
        assert run("session", "list", "--at", url).code == 1
        at = f"http://alice:wonder@127.0.0.1:{broker.http_port}"
        assert run("session", "list", "--at", at).code == 0
        keyed = ("--key-file", str(tmp_path / "key"))
        assert run("session", "list", "--at", url, *keyed).code == 0
        monkeypatch.setenv("PENSTOCK_KEY", key)
        assert run("session", "list", "--at", url).code == 0
        with Asking(broker.http_port) as client:
            assert client.ask("GET", "/v1/sessions").status == 401
