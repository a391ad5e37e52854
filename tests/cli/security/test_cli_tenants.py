"""Do all commands of an operator take --tenant, and mean it? And `penstock tenant` itself."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli.main import make_parser
from tests.cli.conftest import Command
from tests.doors.hosted import Hosted
from tests.doors.users import add_users

# Commands with --at that are about the whole broker.
OF_ALL = {
    "backup",
    "completion",
    "doctor",
    "migrate",
    "serve",
    *("history drop", "history import", "history list", "history show", "history verify"),
    *("node drain", "node list", "node show"),
    *("tenant add", "tenant list", "tenant remove", "tenant show"),
}
# What a command needs to be parsed, and how it refuses a tenant that does not exist.
ARGUMENTS = {
    "access check": ("bob", "read", "x"),
    "binding add": ("a/#", "t"),
    "binding list": (),
    "binding remove": ("a/#",),
    "bridge list": (),
    "client forget": ("c",),
    "client list": (),
    "client show": ("c",),
    "consume": ("t",),
    "consumer list": ("t",),
    "consumer remove": ("t", "c"),
    "consumer seek": ("t", "c", "earliest"),
    "group alter": ("t", "g", "--lease", "5"),
    "group create": ("t", "g"),
    "group list": ("t",),
    "group redrive": ("t", "g"),
    "group remove": ("t", "g"),
    "group show": ("t", "g"),
    "key add": ("bob",),
    "key list": (),
    "key remove": ("1",),
    "key revoke": ("1",),
    "key show": ("1",),
    "log dump": ("t",),
    "log export": ("--lines", "TMP/out"),
    "log import": ("--lines", "TMP/in"),
    "log verify": (),
    "publish": ("t", "x"),
    "reload": (),
    "role add": ("r",),
    "role list": (),
    "role remove": ("r",),
    "role show": ("r",),
    "rule add": ("deny read x",),
    "rule list": (),
    "rule remove": ("1",),
    "rule show": ("1",),
    "session kick": ("c",),
    "session list": (),
    "session remove": ("c",),
    "session show": ("c",),
    "topic create": ("t",),
    "topic delete": ("t", "--yes"),
    "topic erase": ("t", "--names", "t/#", "--yes"),
    "topic info": ("t",),
    "topic list": (),
    "status": (),
    "top": ("-n", "1"),
    "trace": ("t", "--seconds", "1"),
    "topic alter": ("t", "--retention-age", "1d"),
    "user add": ("bob",),
    "user key": ("bob",),
    "user keys": (),
    "user list": (),
    "user passwd": ("bob",),
    "user remove": ("bob",),
    "user revoke": ("1",),
    "user role": ("bob", "client"),
    "user show": ("bob",),
}
NEED_A_BROKER = {
    "bridge list",
    "reload",
    "session kick",
    "session list",
    "session remove",
    "session show",
    "status",
    "top",
    "trace",
}


def leaves(parser: argparse.ArgumentParser, path: str = "") -> Iterator[tuple[str, set[str]]]:
    """Every command with its options."""
    below = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    if not below:
        yield path, {name for action in parser._actions for name in action.option_strings}
    for action in below:
        for name, one in action.choices.items():
            yield from leaves(one, f"{path} {name}".strip())


COMMANDS = dict(leaves(make_parser()))
TAKING = sorted(
    name for name, options in COMMANDS.items() if "--tenant" in options and "--at" in options
)


def test_every_command_on_a_broker_or_a_directory_takes_a_tenant_unless_it_is_about_all() -> None:
    at = {name for name, options in COMMANDS.items() if "--at" in options}
    assert at - set(TAKING) == OF_ALL
    jobs = {name for name in TAKING if name.startswith(("pipeline", "bench"))}
    assert set(TAKING) - jobs == set(ARGUMENTS), "say above how the others are called"


@pytest.fixture(params=["closed", "served"])
def where(request: pytest.FixtureRequest, data: Path) -> Iterator[str]:
    add_users(data, ann="secret")
    if request.param == "closed":
        yield request.param
        return
    with Hosted(data):
        yield request.param


def test_no_command_works_on_a_tenant_that_does_not_exist(
    run: Command, where: str, tmp_path: Path
) -> None:
    (tmp_path / "in" / "t").mkdir(parents=True)
    (tmp_path / "in" / "t" / "messages.log").write_text("x\n")
    for name, given in ARGUMENTS.items():
        arguments = [one.replace("TMP", str(tmp_path)) for one in given]
        done = run(*name.split(), *arguments, "--tenant", "nobody", stdin="secret\n")
        if where == "closed" and name in NEED_A_BROKER:
            assert done.code == 3, (name, done)
            continue
        assert done.code == 1, (name, done)
        assert "'nobody'" in done.err, (name, done)
    assert "nobody" not in run("tenant", "list").out


def test_tenants_are_added_listed_shown_and_removed(run: Command, where: str) -> None:
    added = run(
        *("tenant", "add", "acme", "--first-name", "Wile E.", "--last-name", "Coyote"),
        *("--email", "c@acme.example"),
    )
    assert (added.code, added.out) == (0, "added tenant acme\n")
    again = run("tenant", "add", "acme")
    assert again.code == 1 and "tenant 'acme' already exists" in again.err
    wrong = run("tenant", "add", "Acme!")
    assert wrong.code == 1 and "'Acme!'" in wrong.err
    assert run("tenant", "add", "globex", "--json").json == {"added": "globex"}
    listed = [line.split() for line in run("tenant", "list").out.splitlines()]
    assert listed[0] == ["tenant", "first", "name", "last", "name", "email", "created"]
    assert [line[0] for line in listed[1:]] == ["default", "acme", "globex"]
    shown = run("tenant", "show", "acme").out.splitlines()
    assert shown[:4] == [
        "tenant      acme",
        "first name  Wile E.",
        "last name   Coyote",
        "email       c@acme.example",
    ]
    fields = {"tenant", "first_name", "last_name", "email", "created_at"}
    assert set(run("tenant", "show", "acme", "--json").json) == fields
    for name in ("show", "remove"):
        missing = run("tenant", name, "nobody")
        assert missing.code == 1 and "there is no tenant 'nobody'" in missing.err
    kept = run("tenant", "remove", "default")
    assert kept.code == 1 and "'default' cannot be removed" in kept.err
    added = run("user", "add", "eve", "--tenant", "globex", stdin="secret\n").out
    assert "eve logs in as globex/eve\n" in added
    refused = run("tenant", "remove", "globex")
    assert refused.code == 1 and "tenant 'globex' has 1 user: remove them first" in refused.err
    removed = run("user", "remove", "eve", "--tenant", "globex").out
    assert removed == "removed user eve\n", "other tenants have users"
    # What a running broker has recorded in $audit goes with the tenant.
    assert run("tenant", "remove", "globex").out == "removed tenant globex\n"


def test_a_tenant_with_data_is_removed_only_with_purge_and_leaves_nothing(
    run: Command, where: str, data: Path
) -> None:
    for tenant in ("default", "acme"):
        if tenant != "default":
            run("tenant", "add", tenant)
        run("topic", "create", "orders", "--tenant", tenant)
        run("publish", "orders", f"of {tenant}", "--tenant", tenant)
    verified = run("log", "verify").out
    assert "orders: " in verified and "orders of tenant acme: " in verified
    assert "of acme" in run("log", "dump", "orders", "--tenant", "acme").out
    assert "of acme" not in run("log", "dump", "orders").out
    only = run("log", "verify", "--tenant", "acme", "--json").json["logs"]
    found = {(one["tenant"], one["topic"]) for one in only} - {("acme", "$audit")}
    assert found == {("acme", "orders")}
    refused = run("tenant", "remove", "acme")
    assert refused.code == 1 and " topic" in refused.err and "--purge" in refused.err
    purged = run("tenant", "remove", "acme", "--purge", "--json")
    assert purged.json == {"removed": "acme"}
    assert not (data / "acme").exists()
    assert "acme" not in run("tenant", "list").out
    assert "of default" in run("consume", "orders").out
    run("tenant", "add", "acme")
    assert run("topic", "list", "--tenant", "acme", "--json").json == []
