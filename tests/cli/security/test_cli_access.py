"""`penstock role`, `rule`, `access` and `key`: on a directory, through its socket, and by URL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.doors.hosted import Hosted
from tests.doors.users import add_users

SENSOR = "allow publish sensors/%u/#"
COMMANDS = "allow subscribe,receive commands/%u/#"


@pytest.fixture(params=["closed", "socket", "url"])
def at(
    request: pytest.FixtureRequest, data: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Users alice (admin) and bob (client); commands know where."""
    add_users(data, alice="wonder", bob="builder")
    if request.param == "closed":
        yield
        return
    with Hosted(data) as broker:
        if request.param == "url":
            where = f"http://alice:wonder@127.0.0.1:{broker.ports['http']}"
            monkeypatch.setenv("PENSTOCK_AT", where)
        yield


@pytest.mark.usefixtures("at")
def test_a_role_is_added_given_shown_and_removed(run: Command) -> None:
    assert run("role", "add", "sensor", SENSOR, COMMANDS).out == "added role sensor\n"
    assert run("user", "role", "bob", "sensor").code == 0
    shown = run("role", "show", "sensor").out.splitlines()
    assert [line.split(None, 1) for line in shown] == [
        ["role", "sensor"],
        ["kind", "added"],
        ["rule", SENSOR],
        ["rule", COMMANDS],
    ]
    listed = [line.split() for line in run("role", "list").out.splitlines()]
    assert listed[0] == ["role", "kind", "rules"] and listed[-1] == ["sensor", "added", "2"]
    again = run("role", "add", "sensor")
    assert again.code == 1 and "'sensor' already exists" in again.err
    asked = ("access", "check", "bob", "publish", "sensors/bob/temp")
    allowed = run(*asked)
    assert (allowed.code, allowed.out) == (0, f"allowed by role sensor: {SENSOR}\n")
    assert run("role", "remove", "sensor").out == "removed role sensor\n"
    denied = run(*asked)
    assert (denied.code, denied.out) == (1, "denied: no rule allows it\n")


@pytest.mark.usefixtures("at")
def test_rules_are_for_a_role_a_user_or_everybody(run: Command) -> None:
    assert run("rule", "list").out.startswith("no rules yet")
    run("role", "add", "sensor", SENSOR)
    added = run("rule", "add", "deny read hr/#", "--user", "bob")
    assert added.out == "added rule 2 for user bob: deny read hr/#\n"
    assert run("rule", "add", COMMANDS, "--role", "sensor").code == 0
    assert run("rule", "add", "deny publish x", "deny publish y").code == 0
    listed = [line.split(None, 1) for line in run("rule", "list").out.splitlines()]
    assert [number for number, _ in listed] == ["id", "1", "2", "3", "4", "5"]
    assert ["2", "user bob     deny read hr/#"] in listed
    assert run("rule", "list", "--json").json[1] == {
        "id": 2,
        "rule": "deny read hr/#",
        "role": "",
        "user": "bob",
    }
    shown = [line.split(None, 1) for line in run("rule", "show", "2").out.splitlines()]
    assert shown == [["id", "2"], ["for", "user bob"], ["rule", "deny read hr/#"]]
    missing = run("rule", "show", "77")
    assert missing.code == 1 and "there is no rule" in missing.err
    denied = run("access", "check", "bob", "read", "hr/pay", "--json")
    assert denied.code == 1
    assert denied.json == {"allowed": False, "rule": "deny read hr/#", "source": "user bob"}
    assert run("rule", "remove", "2").out == "removed rule 2\n"
    assert run("access", "check", "bob", "read", "hr/pay").code == 0


@pytest.mark.usefixtures("at")
def test_the_number_of_a_rule_is_never_given_to_another_one(run: Command) -> None:
    run("rule", "add", "deny read a", "deny read b")
    run("rule", "remove", "2")
    assert run("rule", "add", "deny read c").out.startswith("added rule 3 ")
    run("role", "add", "sensor", SENSOR)
    run("role", "remove", "sensor")
    assert run("rule", "add", "deny read d").out.startswith("added rule 5 ")
    gone = run("rule", "remove", "2")
    assert gone.code == 1 and "there is no rule" in gone.err


def test_a_closed_directory_with_its_settings_file_is_as_its_broker(
    run: Command, data: Path, tmp_path: Path
) -> None:
    file = tmp_path / "p.toml"
    file.write_text(
        f"[[roles]]\nname = 'sensor'\nrules = ['{SENSOR}']\n"
        "[[rules]]\nrule = 'deny read hr/#'\nuser = 'bob'\n"
    )
    add_users(data, alice="wonder", bob="builder")
    unknown = run("user", "role", "bob", "sensor")
    assert unknown.code == 1 and "there is no role 'sensor'" in unknown.err

    def answers(*where: str) -> list[object]:
        commands = (
            ("role", "list", "--json"),
            ("role", "show", "sensor", "--json"),
            ("rule", "list", "--json"),
            ("role", "add", "sensor", SENSOR),
            ("user", "role", "bob", "sensor"),
            ("key", "add", "bob", "--role", "nobody"),
            ("access", "check", "bob", "publish", "sensors/bob/x"),
            ("access", "check", "bob", "read", "hr/pay"),
            ("access", "check", "bob", "read", "other"),
        )
        return [run(*command, *where) for command in commands]

    closed = answers("--config", str(file))
    with Hosted(data, config=file):
        assert answers() == closed
    bad = run("role", "list", "--config", str(tmp_path / "none.toml"))
    assert bad.code == 1 and "none.toml" in bad.err


@pytest.mark.usefixtures("at")
def test_a_key_has_all_roles_of_its_user_or_those_that_were_given(run: Command) -> None:
    assert run("key", "add", "alice").out.startswith("psk_")
    made = run("key", "add", "alice", "--role", "reader", "--json").json
    rows = {one["key_id"]: one["roles"] for one in run("key", "list", "--json").json}
    assert len(rows) == 2 and rows[made["key_id"]] == "reader"
    of_client = run("key", "add", "bob", "--role", "reader", "--json").json
    assert run("key", "revoke", of_client["key_id"]).code == 0
    refused = run("user", "key", "bob", "--role", "admin")
    assert refused.code == 1 and "'bob' does not have the role 'admin'" in refused.err
    shown = run("key", "show", made["key_id"])
    assert shown.code == 0 and made["key"] not in shown.out
    assert run("key", "show", made["key_id"], "--json").json["user"] == made["user"]
    missing = run("key", "show", "nothing")
    assert missing.code == 1 and "there is no key 'nothing': see `penstock key list`" in missing.err
    assert run("key", "revoke", made["key_id"]).out == f"revoked key {made['key_id']}\n"
    assert len(run("key", "list", "--json").json) == 1


@pytest.mark.usefixtures("at")
def test_a_user_is_shown_with_roles_and_keys_and_no_secret(run: Command) -> None:
    made = run("key", "add", "alice", "--json").json
    shown = run("user", "show", "alice", "--json").json
    assert set(shown) == {"user", "roles", "created", "password_set", "keys"}
    assert (shown["roles"], shown["keys"]) == (["admin"], [made["key_id"]])
    told = run("user", "show", "alice").out
    assert made["key_id"] in told and made["key"] not in told


@pytest.mark.usefixtures("at")
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("role", "add", "a b"), "role name 'a b' is invalid"),
        (("role", "add", "a", "allow"), "rule 'allow' is incomplete"),
        (("role", "add", "admin"), "'admin' is built in"),
        (("role", "remove", "client"), "'client' is built in"),
        (("role", "remove", "x"), "there is no role 'x'"),
        (("role", "show", "x"), "there is no role 'x'"),
        (("rule", "add", "deny read #", "--role", "x"), "there is no role 'x'"),
        (("rule", "add", "deny read #", "--user", "x"), "there is no user 'x'"),
        (("rule", "remove", "9"), "there is no rule"),
        (("access", "check", "x", "read", "a"), "there is no user 'x'"),
        (("access", "check", "bob", "read", "#"), "'#'"),
        (("access", "check", "acme/ann", "read", "a"), "'ann', and the tenant as --tenant acme"),
        (("access", "check", "bob", "subscribe", "$share/a"), "'$share/workers/jobs/#'"),
        (("user", "show", "x"), "there is no user 'x'"),
        (("key", "add", "bob", "--role", "x"), "there is no role 'x'"),
    ],
)
def test_what_is_refused_says_why(run: Command, arguments: tuple[str, ...], complaint: str) -> None:
    answer = run(*arguments)
    assert answer.code == 1 and complaint in answer.err


def test_a_check_knows_the_topic_that_stores_a_name(data: Path, run: Command) -> None:
    add_users(data, alice="wonder", bob="builder")
    run("topic", "create", "hr")
    run("rule", "add", "deny read topic:hr")
    assert run("access", "check", "bob", "read", "hr/pay").code == 1
    assert run("access", "check", "bob", "read", "pay").code == 0
    assert run("access", "check", "bob", "read", "pay", "--topic", "HR").code == 1
    run("rule", "add", "allow manage own/%c")
    assert run("access", "check", "bob", "manage", "own/a", "--client", "a").code == 0
    assert run("access", "check", "bob", "manage", "own/a", "--client", "b").code == 1
    assert run("access", "check", "", "read", "a").code == 1


@pytest.mark.usefixtures("at")
def test_a_check_of_a_share_asks_for_its_filter(run: Command) -> None:
    assert run("access", "check", "bob", "subscribe", "$share/workers/jobs/#").code == 0
    run("rule", "add", "deny subscribe jobs/#", "--user", "bob")
    told = run("access", "check", "bob", "subscribe", "$share/workers/jobs/#")
    assert told.out == "denied by user bob: deny subscribe jobs/#\n"


def test_a_declared_role_is_listed_and_cannot_be_changed(
    tmp_path: Path, data: Path, run: Command
) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(f'[[roles]]\nname = "sensor"\nrules = ["{SENSOR}"]\n')
    add_users(data, alice="wonder")
    with Hosted(data, config=file):
        assert run("role", "show", "sensor", "--json").json == {
            "role": "sensor",
            "kind": "declared",
            "rules": [SENSOR],
        }
        assert "in settings  role sensor" in run("rule", "list").out
        for arguments in (
            ("role", "remove", "sensor"),
            ("rule", "add", "--role", "sensor", SENSOR),
        ):
            refused = run(*arguments)
            assert refused.code == 1 and "declared in the settings file" in refused.err


def test_an_operator_works_on_a_tenant(data: Path, run: Command) -> None:
    add_users(data, alice="wonder")
    assert run("tenant", "add", "acme").code == 0
    assert run("role", "add", "sensor", SENSOR, "--tenant", "acme").code == 0
    assert run("role", "show", "sensor").code == 1
    assert run("role", "show", "sensor", "--tenant", "acme").code == 0
    with Hosted(data):
        assert run("role", "show", "sensor").code == 1
        assert run("role", "show", "sensor", "--tenant", "acme").code == 0
