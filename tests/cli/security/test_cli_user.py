"""`penstock user`: who can log in afterwards, and where does a password never appear?"""

from __future__ import annotations

import os
import pty
import sys
from pathlib import Path

import pytest

from penstock import Broker
from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Connack, Connect, Disconnect
from penstock.mqtt.reasons import Reason
from tests.cli.conftest import Command
from tests.doors.served import Served
from tests.doors.wire import Wire
from tests.http.asking import Asking


def reason_for(port: int, name: str, password: bytes) -> Reason:
    with Wire(port, "", MQTT_5) as wire:
        wire.send(Connect("", username=name, password=password))
        return wire.expect(Connack).reason


def test_a_user_that_was_added_logs_in_and_a_removed_one_does_not(data: Path, run: Command) -> None:
    added = run("user", "add", "alice", stdin="wonder land\n")
    assert added.code == 0
    assert "added user alice" in added.out and "every client must log in" in added.out
    second = run("user", "add", "bob", stdin="builder")
    assert "nobody comes in" not in second.out
    with Served(data) as broker:
        assert reason_for(broker.port, "alice", b"wonder land") == Reason.SUCCESS
        assert reason_for(broker.port, "bob", b"builder") == Reason.SUCCESS
    assert run("user", "passwd", "alice", stdin="changed\n").code == 0
    removed = run("user", "remove", "bob")
    assert removed.code == 0 and "no users are left" not in removed.out
    with Served(data) as broker:
        assert reason_for(broker.port, "alice", b"changed") == Reason.SUCCESS
        assert reason_for(broker.port, "alice", b"wonder land") != Reason.SUCCESS
        assert reason_for(broker.port, "bob", b"builder") != Reason.SUCCESS
    assert "no users are left" in run("user", "remove", "alice").out


def test_passwords_come_from_files_too_and_their_line_end_does_not_count(
    tmp_path: Path, data: Path, run: Command
) -> None:
    for number, content in enumerate([b"secret", b"secret\n", b"secret\r\n", b"secret\nmore\n"]):
        file = tmp_path / f"password{number}"
        file.write_bytes(content)
        added = run("user", "add", f"user{number}", "--password-file", str(file))
        assert added.code == 0
    with Served(data) as broker:
        for number in range(4):
            assert reason_for(broker.port, f"user{number}", b"secret") == Reason.SUCCESS


@pytest.mark.parametrize("second", ["wonder", "wander"])
def test_at_a_terminal_the_password_is_asked_for_twice_and_not_shown(
    data: Path, second: str
) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        command = [sys.executable, "-m", "penstock.cli.main", "user", "add", "alice"]
        os.execv(sys.executable, [*command, "--at", str(data)])
    shown = b""
    for answer in ("wonder", second):
        while b": " not in shown.rpartition(b"\n")[2]:
            shown += os.read(terminal, 1024)
        shown += b"\n"
        os.write(terminal, f"{answer}\n".encode())
    try:
        while more := os.read(terminal, 1024):
            shown += more
    except OSError:  # how a terminal says that the other side is gone
        pass
    os.close(terminal)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert b"wonder" not in shown and b"wander" not in shown
    if second == "wonder":
        assert code == 0 and b"added user alice" in shown
    else:
        assert code == 1 and b"the two passwords are different" in shown


def test_the_list_shows_names_and_times_and_nothing_of_passwords(data: Path, run: Command) -> None:
    for name in ("bob", "alice"):
        run("user", "add", name, stdin="secret")
    listed = run("user", "list")
    assert [line.split()[0] for line in listed.out.splitlines()] == ["user", "alice", "bob"]
    answer = run("user", "list", "--json").json
    assert [one["user"] for one in answer] == ["alice", "bob"]
    assert set(answer[0]) == {"user", "roles", "created", "password_set"}
    assert "argon2" not in listed.out


def test_answers_in_json(data: Path, run: Command) -> None:
    for arguments, answer in (
        (("add", "alice"), {"added": "alice", "roles": ["admin"]}),
        (("role", "alice", "reader"), {"changed": "alice", "roles": ["reader"]}),
        (("passwd", "alice"), {"changed": "alice"}),
        (("remove", "alice"), {"removed": "alice"}),
        (("list",), []),
    ):
        assert run("user", *arguments, "--json", stdin="secret").json == answer


@pytest.mark.parametrize(
    ("arguments", "stdin", "complaint"),
    [
        (("add", "alice"), "x", "user 'alice' already exists"),
        (("passwd", "bob"), "x", "there is no user 'bob'"),
        (("remove", "bob"), "", "there is no user 'bob'"),
        (("add", "bob"), "", "the password has 0 bytes: use 1 to"),
        (("add", "bob"), "x" * 1025, "the password has 1,025 bytes"),
        (("add", "b:b"), "x", "contains ':'"),
        (("add", "bob", "--password-file", "/nonexistent"), "", "No such file"),
    ],
)
def test_what_is_refused_says_why(
    run: Command, arguments: tuple[str, ...], stdin: str, complaint: str
) -> None:
    run("user", "add", "alice", stdin="secret")
    answer = run("user", *arguments, stdin=stdin)
    assert answer.code == 1 and complaint in answer.err
    assert [one["user"] for one in run("user", "list", "--json").json] == ["alice"]


def test_there_is_no_way_to_put_a_password_on_the_command_line(data: Path, run: Command) -> None:
    for flags in (["--password", "x"], ["x"]):
        assert run("user", "add", "alice", *flags).code == 2


@pytest.mark.parametrize("action", ["add", "passwd", "remove", "list"])
def test_while_somebody_without_http_has_the_directory_the_command_says_what_to_do(
    data: Path, run: Command, action: str
) -> None:
    with Broker(data):
        names = [] if action == "list" else ["alice"]
        answer = run("user", action, *names, stdin="secret")
        assert answer.code == 3
        assert f"process {os.getpid()}" in answer.err
        assert "stop that broker, run this command, and start it again" in answer.err


def test_users_and_keys_of_a_running_broker_change_at_once(
    data: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Served(data) as broker:
        at = f"http://127.0.0.1:{broker.http_port}"
        assert (
            run("user", "list", "--at", at).out
            == "no users yet: add one with `penstock user add NAME`\n"
        )
        added = run("user", "add", "alice", "--at", at, stdin="wonder\n")
        assert added.out == (
            "added user alice with the role admin\n"
            "alice is the first user and therefore an administrator\n"
            "from now on, every client must log in\n"
        )
        assert reason_for(broker.port, "alice", b"wonder") == Reason.SUCCESS
        refused = run("user", "list", "--at", at)
        assert refused.code == 1 and "--key-file or PENSTOCK_KEY" in refused.err
        with_password = ("--at", f"http://alice:wonder@127.0.0.1:{broker.http_port}")
        key = run("user", "key", "alice", *with_password).out.strip()
        monkeypatch.setenv("PENSTOCK_KEY", key)
        monkeypatch.setenv("PENSTOCK_AT", at)
        second = run("user", "add", "bob", stdin="builder")
        assert second.out == "added user bob with the role client\n"
        changed = run("user", "role", "bob", "reader", "client")
        assert changed.out == "user bob has the roles client, reader\n"
        lonely = run("user", "role", "alice", "client").out.splitlines()
        assert lonely[0] == "user alice has the role client"
        assert lonely[1].startswith("no administrator is left: only commands on the data directory")
        restored = run("user", "role", "alice", "admin", "--at", str(data))
        assert restored.out == "user alice has the role admin\n"
        unknown = run("user", "role", "bob", "nurse")
        assert unknown.code == 1 and "no role 'nurse'" in unknown.err
        again = run("user", "add", "bob", stdin="builder")
        assert again.code == 1 and "'bob' already exists" in again.err
        assert run("user", "passwd", "bob", stdin="changed").code == 0
        assert reason_for(broker.port, "bob", b"changed") == Reason.SUCCESS
        unknown = run("user", "passwd", "carol", stdin="x")
        assert unknown.code == 1 and "no user 'carol'" in unknown.err
        (listed,) = run("user", "keys", "--json").json
        assert listed["user"] == "alice"
        with Wire(broker.port, "", MQTT_5) as wire:
            wire.send(Connect("", username="bob", password=b"changed"))
            assert wire.expect(Connack).reason == Reason.SUCCESS
            assert run("user", "remove", "bob").out == "removed user bob\n"
            assert wire.expect(Disconnect).reason == Reason.NOT_AUTHORIZED
        last = run("user", "remove", "alice")
        assert last.code == 1 and "is the last one" in last.err
        refused = run("user", "revoke", "zzz")
        assert refused.code == 1 and "no key 'zzz': see `penstock key list`" in refused.err
        assert run("user", "revoke", listed["key_id"]).code == 0
        assert run("user", "list").code == 1
    monkeypatch.delenv("PENSTOCK_KEY")
    monkeypatch.setenv("PENSTOCK_AT", str(data))
    assert [one["user"] for one in run("user", "list", "--json").json] == ["alice"]


def test_a_user_has_the_roles_that_were_given(data: Path, run: Command) -> None:
    assert run("user", "add", "alice", stdin="x").code == 0
    added = run("user", "add", "bob", "--role", "reader", "--role", "client", stdin="x")
    assert added.out == "added user bob with the roles client, reader\n"
    assert run("user", "role", "bob").out == "user bob has no roles\n"
    assert run("user", "role", "bob", "admin").out == "user bob has the role admin\n"
    assert [one["roles"] for one in run("user", "list", "--json").json] == ["admin", "admin"]
    refused = run("user", "role", "carol", "admin")
    assert refused.code == 1 and "no user 'carol'" in refused.err


def test_only_add_makes_the_directory(data: Path, run: Command) -> None:
    for arguments in (("list",), ("remove", "a"), ("passwd", "a")):
        answer = run("user", *arguments, stdin="x")
        assert answer.code == 1 and "data directory" in answer.err
    assert not data.exists()
    assert run("user", "add", "a", stdin="x").code == 0


def test_a_key_is_shown_once_and_works_over_http_until_it_is_revoked(
    data: Path, run: Command
) -> None:
    run("user", "add", "alice", stdin="wonder\n")
    key = run("user", "key", "alice").out.strip()
    assert key.startswith("psk_")
    made = run("user", "key", "alice", "--json").json
    assert made["user"] == "alice"
    listed = run("user", "keys", "--json").json
    assert made["key_id"] in [row["key_id"] for row in listed]
    assert [row["user"] for row in listed] == ["alice", "alice"] and key not in str(listed)

    def status() -> int:
        with Served(data) as broker, Asking(broker.http_port) as client:
            return client.ask("GET", "/v1/topics", Authorization=f"Bearer {key}").status

    assert status() == 200
    for row in listed:
        assert "revoked" in run("user", "revoke", row["key_id"]).out
    assert status() == 401
    assert run("user", "keys").out == "no keys yet: create one with `penstock key add NAME`\n"
    refused = run("user", "revoke", "unknown")
    assert refused.code == 1 and "there is no key 'unknown'" in refused.err
    assert run("user", "key", "nobody").code == 1
