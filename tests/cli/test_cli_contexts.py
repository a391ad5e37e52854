"""Contexts: does a name stand for a broker in every command, and does nobody see its secrets?"""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.doors.hosted import Hosted
from tests.doors.users import add_users


@pytest.fixture(autouse=True)
def home(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person without contexts, in a directory without data."""
    monkeypatch.delenv("PENSTOCK_AT")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_context_is_used_by_name_by_environment_and_by_choice(
    run: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "no contexts yet" in run("context", "list").out
    for name in ("here", "there"):
        assert run("context", "add", name, name).out == f"added context {name}: {home / name}\n"
        assert run("topic", "create", f"in-{name}", "--context", name).code == 0
    assert run("topic", "list").code == 1  # no context was chosen, and there is no ./penstock_data
    assert run("context", "use", "there").out == f"commands use context there: {home / 'there'}\n"
    assert run("topic", "list", "--json").json[0]["topic"] == "in-there"
    monkeypatch.setenv("PENSTOCK_CONTEXT", "here")
    assert run("topic", "list", "--json").json[0]["topic"] == "in-here"
    assert run("topic", "list", "--json", "--data", "there").json[0]["topic"] == "in-there"
    monkeypatch.setenv("PENSTOCK_AT", str(home / "there"))
    assert run("topic", "list", "--json").json[0]["topic"] == "in-there"
    assert run("topic", "list", "--json", "--context", "here").json[0]["topic"] == "in-here"
    both = run("topic", "list", "--context", "here", "--at", "there")
    assert both.code == 2 and "not both" in both.err


def test_a_context_that_is_removed_is_not_used_any_more(run: Command, home: Path) -> None:
    run("context", "add", "here", "here", "--use")
    assert run("topic", "create", "t").code == 0
    rows = [line.split() for line in run("context", "list").out.splitlines()]
    assert rows[1] == ["here", "yes", str(home / "here"), "-", "-", "-"]
    assert run("context", "remove", "here").out == "removed context here\n"
    assert run("topic", "list").code == 1
    for arguments in (("use", "here"), ("remove", "here")):
        gone = run("context", *arguments)
        assert gone.code == 1 and "there is no context 'here'" in gone.err
        assert "(known contexts: none yet)" in gone.err
    assert run("context", "use").code == 2
    assert run("context", "use", "--none").code == 0


def test_a_context_logs_in_with_its_key_and_works_on_its_tenant(run: Command, home: Path) -> None:
    data = home / "served"
    add_users(data, ann="secret")
    key = run("key", "add", "ann", "--json", "--at", str(data)).json["key"]
    Path("ann.key").write_text(key)
    with Hosted(data) as broker:
        url = f"http://127.0.0.1:{broker.ports['http']}"
        run("context", "add", "served", url, "--key-file", "ann.key", "--use")
        assert run("topic", "create", "t").code == 0
        run("context", "add", "other", url, "--key-file", "ann.key", "--tenant", "nosuch")
        refused = run("topic", "list", "--context", "other")
        assert refused.code == 1 and "only an operator may ask for another tenant" in refused.err
        assert run("context", "add", "x", url, "--key-file", "missing.key").code == 1


def test_a_password_is_stored_for_its_owner_only_and_never_shown(run: Command, home: Path) -> None:
    url = "http://ann:hunter2@127.0.0.1:9"
    shown = [run("context", "add", "prod", url), run("context", "use", "prod")]
    shown += [run("context", "list"), run("context", "list", "--json"), run("topic", "list")]
    assert all("hunter2" not in one.out + one.err for one in shown)
    assert shown[-1].code == 3
    file = home / "config" / "penstock" / "contexts.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and "hunter2" in file.read_text()


@pytest.mark.parametrize("name", ["", "a b", "-x", "a/b", "x" * 65])
def test_a_name_that_could_be_mistaken_is_refused(run: Command, name: str) -> None:
    assert run("context", "add", "--", name, "here").code == 1


@pytest.mark.parametrize("text", ["", "[]", '{"current": ""}', '{"current":"","contexts":{"a":1}}'])
def test_a_file_that_is_not_understood_is_named(run: Command, home: Path, text: str) -> None:
    file = home / "config" / "penstock" / "contexts.json"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    refused = run("topic", "list")
    assert refused.code == 1 and "contexts.json' is not a file of contexts" in refused.err
    assert run("topic", "create", "t", "--at", "here").code == 0


def published(run: Command, *options: str) -> str:
    """What comes back from the broker that pub and sub mean; else what the error was."""
    sent = run("pub", "-t", "state", "-m", "on", "-r", "-q", "1", *options)
    if sent.code:
        return sent.err
    found = run("sub", "-t", "state", "-C", "1", "-W", "30", "-v", *options)
    return found.out or found.err


def test_pub_and_sub_reach_the_broker_of_a_context_with_its_login(run: Command, home: Path) -> None:
    data = home / "served"
    add_users(data, ann="secret")
    Path("ann.key").write_text(run("key", "add", "ann", "--json", "--at", str(data)).json["key"])
    with Hosted(data) as broker:
        url = f"http://127.0.0.1:{broker.ports['http']}"
        mqtt = f"mqtt://ann:secret@127.0.0.1:{broker.port}"
        run("context", "add", "by-key", url, "--key-file", "ann.key")
        run("context", "add", "by-password", url.replace("//", "//ann:secret@"))
        run("context", "add", "by-mqtt", "http://127.0.0.1:9", "--mqtt", mqtt)
        run("context", "add", "by-directory", str(data), "--key-file", "ann.key", "--use")
        for name in ("by-key", "by-password", "by-mqtt", "by-directory"):
            assert published(run, "--context", name) == "state on\n", name
        assert published(run) == "state on\n"
        told = ("-u", "ann", "-P", "secret")
        assert published(run, "-h", "127.0.0.1", "-p", str(broker.port), *told) == "state on\n"
        assert "wrong" in published(run, "-u", "ann", "-P", "guessed")


def test_pub_says_why_a_context_is_of_no_use_to_it(run: Command, home: Path) -> None:
    run("context", "add", "closed", "closed", "--use")
    refused = run("pub", "-t", "t", "-m", "x")
    assert refused.code == 1 and "start `penstock serve` there" in refused.err
    both = run("pub", "-t", "t", "-m", "x", "--context", "closed", "-h", "localhost")
    assert both.code == 2 and "not both" in both.err
    with Hosted(home / "other", mqtt__listen="off") as broker:
        run("context", "add", "deaf", f"http://127.0.0.1:{broker.ports['http']}")
        deaf = run("sub", "-t", "t", "--context", "deaf")
        assert deaf.code == 1 and "does not listen for mqtt or mqtts" in deaf.err
    assert run("context", "add", "x", "x", "--mqtt", "http://localhost").code == 2
    assert run("pub", "-t", "t", "-m", "x", "--context", "missing").code == 1
