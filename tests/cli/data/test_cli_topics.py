"""`penstock topic …`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Command


def test_create_makes_the_directory_and_says_what_the_topic_promises(
    run: Command, data: Path
) -> None:
    done = run("topic", "create", "Sensors")
    assert (done.code, done.err) == (0, "")
    assert done.out == (
        "created topic Sensors (id 1): durability fsync, retention 7d, no size limit\n"
    )
    assert data.is_dir()


def test_create_refuses_a_name_that_nobody_can_see(run: Command) -> None:
    done = run("topic", "create", "\u200b\u3164")
    assert (done.code, done.out) == (1, "")
    assert "at least one visible character" in done.err


def test_create_takes_settings(run: Command) -> None:
    done = run(
        "topic", "create", "t", "--retention-age", "12h", "--retention-bytes", "10 GiB",
        "--durability", "os", "--json",
    )  # fmt: skip
    assert done.json["retention_age"] == 43_200
    assert done.json["retention_bytes"] == 10 << 30
    assert done.json["durability"] == "os"
    assert done.json["topic"] == "t" and done.json["id"] == 1


def test_create_twice_is_refused_unless_it_may_exist(run: Command) -> None:
    run("topic", "create", "Sensors")
    again = run("topic", "create", "SENSORS")
    assert (again.code, again.out) == (1, "")
    assert again.err.startswith("penstock: topic 'Sensors' already exists")
    assert run("topic", "create", "SENSORS", "--exist-ok").code == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["a/b"], "contains '/'"),
        ([""], "is empty"),
        (["t", "--retention-age", "5x"], "not a duration"),
        (["t", "--retention-bytes", "-1"], "not a size"),
    ],
)
def test_create_says_what_is_wrong_and_creates_no_directory(
    run: Command, data: Path, arguments: list[str], says: str
) -> None:
    done = run("topic", "create", *arguments)
    assert done.code == 1 and says in done.err and done.out == ""
    assert not data.exists()


def test_list_shows_all_topics_as_a_table_or_json(run: Command) -> None:
    run("topic", "create", "b")
    run("topic", "create", "A", "--retention-age", "unlimited")
    run("publish", "b", "hello")
    shown = run("topic", "list")
    assert shown.out.splitlines()[0].split() == [
        "topic", "first", "end", "stored", "durability", "max", "age", "max", "size"
    ]  # fmt: skip
    assert [line.split()[:3] for line in shown.out.splitlines()[1:]] == [
        ["A", "0", "0"],
        ["b", "0", "1"],
    ]
    listed = run("topic", "list", "--json").json
    assert [(one["topic"], one["end_offset"], one["retention_age"]) for one in listed] == [
        ("A", 0, None),
        ("b", 1, 604_800),
    ]


def test_list_without_topics_says_how_to_begin(run: Command) -> None:
    run("topic", "create", "t")
    run("topic", "delete", "t", "--yes")
    assert (
        run("topic", "list").out == "no topics yet: create one with `penstock topic create NAME`\n"
    )
    assert run("topic", "list", "--json").json == []


def test_info_shows_settings_offsets_and_consumers(run: Command) -> None:
    run("topic", "create", "t")
    run("publish", "t", "--lines", stdin="a\nb\nc\n")
    run("consume", "t", "--consumer", "me", "--limit", "2")
    shown = run("topic", "info", "T").out
    assert "offsets     0 to 2\n" in shown
    assert shown.splitlines()[-1].split() == ["me", "2", "1"]
    told = run("topic", "info", "t", "--json").json
    assert told["end_offset"] == 3
    assert told["consumers"] == [{"consumer": "me", "next_offset": 2, "waiting": 1}]


def test_alter_changes_what_is_named(run: Command) -> None:
    run("topic", "create", "t", "--retention-age", "1h")
    done = run("topic", "alter", "t", "--durability", "os")
    assert done.out == "altered topic t (id 1): durability os, retention 1h, no size limit\n"
    nothing = run("topic", "alter", "t")
    assert nothing.code == 2 and "nothing to alter" in nothing.err


def test_a_number_without_a_unit_is_no_duration(run: Command) -> None:
    run("topic", "create", "t")
    done = run("topic", "alter", "t", "--retention-age", "5")
    assert done.code == 1 and "add a unit, such as '5s', '5h' or '5d'" in done.err


def test_delete_asks_first(run: Command) -> None:
    run("topic", "create", "t")
    run("publish", "t", "x")
    for answer in ("", "n\n", "\n", "what?\n"):
        done = run("topic", "delete", "t", stdin=answer)
        assert (done.code, done.out) == (1, "")
        assert "delete topic t and its 1 record?" in done.err
        assert "not deleted" in done.err
    assert run("topic", "delete", "T", stdin="y\n").out == "deleted topic t\n"
    assert run("topic", "delete", "t", "--yes").code == 1


def test_delete_in_json(run: Command) -> None:
    run("topic", "create", "t")
    assert run("topic", "delete", "t", "--yes", "--json").json == {"deleted": "t"}


@pytest.mark.parametrize("action", ["info", "alter --durability os", "delete --yes"])
def test_an_unknown_topic_is_refused(run: Command, action: str) -> None:
    run("topic", "create", "t")
    verb, *rest = action.split()
    done = run("topic", verb, "nosuch", *rest)
    assert done.code == 1
    assert (
        done.err == "penstock: topic 'nosuch' is not declared: check the name, or create it first\n"
    )


def test_a_topic_with_missing_files_is_shown_as_unavailable_and_can_be_deleted(
    run: Command, data: Path
) -> None:
    for topic in ("bad", "good"):
        run("topic", "create", topic)
        run("publish", topic, "hello")
    shutil.rmtree(data / "default" / "bad-1")
    shown = run("topic", "list")
    assert shown.code == 0
    rows = [line.split() for line in shown.out.splitlines()]
    assert (rows[1][0], rows[1][-1]) == ("bad", "unavailable")
    assert (rows[2][0], rows[2][-1]) == ("good", "ok")
    assert shown.err.count("default/bad-1 holds no segment") == 1
    assert "problem     topic 'bad' is unavailable" in run("topic", "info", "bad").out
    assert [one["is_available"] for one in run("topic", "list", "--json").json] == [False, True]
    refused = run("publish", "bad", "hello")
    assert refused.code == 3 and "penstock log verify" in refused.err
    assert run("consume", "good").out == "hello\n"
    assert run("topic", "delete", "bad", "--yes").code == 0
    assert "bad" not in run("topic", "list").out
