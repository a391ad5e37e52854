"""`penstock client`: the clients that a broker remembers, while it runs and afterwards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.doors.served import Served
from tests.doors.users import add_users
from tests.doors.wire import Wire


def test_clients_are_listed_shown_and_forgotten_while_a_broker_runs(
    data: Path, run: Command
) -> None:
    with Served(data) as broker:
        assert run("client", "list").out == "no clients are known\n"
        with Wire(broker.port, "away") as wire:
            wire.connect(clean=False)
            wire.disconnect()
        with Wire(broker.port, "here") as wire:
            wire.connect()
            at = f"http://127.0.0.1:{broker.http_port}"
            listed = run("client", "list", "--at", at)
            rows = [line.split() for line in listed.out.splitlines()]
            assert rows[0] == [
                "client",
                "user",
                "credential",
                "connected",
                "last",
                "seen",
                "address",
            ]
            assert [row[:4] + row[5:] for row in rows[1:]] == [
                ["away", "-", "none", "no", "127.0.0.1"],
                ["here", "-", "none", "yes", "127.0.0.1"],
            ]
            shown = run("client", "show", "here").out.splitlines()
            assert "connected   yes" in shown and "session     no" in shown
            assert "credential  none" in shown and "address     127.0.0.1" in shown
            refused = run("client", "forget", "here")
            assert refused.code == 1 and "client 'here' is connected" in refused.err
            wire.disconnect()
        refused = run("client", "forget", "away")
        assert refused.code == 1 and "client 'away' has a session" in refused.err
        assert run("session", "kick", "away", "--forget").code == 0
        assert run("client", "forget", "away").out == "forgot client away\n"
        gone = run("client", "show", "away")
        assert gone.code == 1 and "client 'away' is not known" in gone.err


def test_a_directory_that_no_broker_has_open_shows_the_same(data: Path, run: Command) -> None:
    with Served(data) as broker:
        for client_id, clean in (("kept", False), ("gone", True)):
            with Wire(broker.port, client_id) as wire:
                wire.connect(clean=clean)
                wire.disconnect()
        running = run("client", "list", "--json").json
        assert [(one["client_id"], one["has_session"]) for one in running] == [
            ("gone", False),
            ("kept", True),
        ]
    assert run("client", "list", "--json").json == running
    assert run("client", "show", "kept", "--json").json == running[1]
    refused = run("client", "forget", "kept")
    assert refused.code == 1 and "client 'kept' has a session" in refused.err
    assert run("client", "forget", "gone", "--json").json == {"forgotten": "gone"}
    for action in ("show", "forget"):
        unknown = run("client", action, "gone")
        assert unknown.code == 1 and "client 'gone' is not known" in unknown.err
    assert [one["client_id"] for one in run("client", "list", "--json").json] == ["kept"]


def test_every_page_is_listed(data: Path, run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.cli.mqtt.clients.PAGE_CLIENTS", 2)
    ids = [f"c{at}" for at in range(5)]
    with Served(data) as broker:
        for client_id in ids:
            with Wire(broker.port, client_id) as wire:
                wire.connect()
        assert [one["client_id"] for one in run("client", "list", "--json").json] == ids
    assert [one["client_id"] for one in run("client", "list", "--json").json] == ids


def test_a_terminal_obeys_no_client_id(data: Path, run: Command) -> None:
    client_id = "\x1b[31mred\x1b[2J\x9b0m"
    shown = r"\x1b[31mred\x1b[2J\x9b0m"
    with Served(data) as broker, Wire(broker.port, client_id) as wire:
        wire.connect()
        assert shown in run("client", "list").out
        assert f"client      {shown}\n" in run("client", "show", client_id).out
        assert "\x1b" not in run("client", "forget", client_id).err
    assert run("client", "forget", client_id).out == f"forgot client {shown}\n"
    assert "\x1b" not in run("client", "forget", client_id).err
    assert json.loads(run("client", "list", "--json").out) == []


@pytest.mark.parametrize("action", ["show", "forget"])
def test_an_empty_client_id_is_named(data: Path, run: Command, action: str) -> None:
    done = run("client", action, "")
    assert done.code == 1 and "the client id is empty: `penstock client list`" in done.err


def test_only_an_admin_sees_the_clients_of_a_guarded_broker(data: Path, run: Command) -> None:
    add_users(data, alice="wonder", bob="builder")
    with Served(data) as broker:
        at = f"127.0.0.1:{broker.http_port}"
        assert run("client", "list", "--at", f"http://{at}").code == 1
        refused = run("client", "list", "--at", f"http://bob:builder@{at}")
        assert refused.code == 1 and "it needs the role admin" in refused.err
        assert run("client", "list", "--at", f"http://alice:wonder@{at}").code == 0
        assert run("client", "list").code == 0  # whoever can open the directory
