"""`penstock publish`, `consume` and `consumer …`."""

from __future__ import annotations

import os
import pty
import sys
from pathlib import Path

import pytest

from penstock import Broker
from penstock.cli.main import main
from tests.cli.conftest import Command


@pytest.fixture
def filled(run: Command) -> Command:
    run("topic", "create", "t")
    run("publish", "t", "--lines", stdin="a\nb\nc\nd\n")
    return run


def test_publish_one_message_and_see_where_it_went(run: Command) -> None:
    run("topic", "create", "t")
    assert run("publish", "t", "hello").out == "stored at offset 0\n"
    done = run(
        "publish",
        "t",
        "21.5",
        "--name",
        "t/1",
        "--header",
        "unit=C",
        "--header",
        "unit==",
        "--json",
    )
    assert done.json == {"first_offset": 1, "count": 1}
    (shown,) = run("consume", "t", "--from", "1", "--json").json_lines
    assert (shown["name"], shown["payload"], shown["headers"]) == (
        "t/1",
        "21.5",
        [["unit", "C"], ["unit", "="]],
    )
    assert shown["offset"] == 1 and shown["topic"] == "t" and shown["time"].endswith("Z")


def test_who_publishes_from_a_terminal_is_told_what_to_type(
    run: Command, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run("topic", "create", "t")
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "wb", buffering=0) as keys, os.fdopen(theirs) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        keys.write(b"hello\n\x04")
        assert main(["publish", "t"]) == 0
    said = capfd.readouterr()
    assert said.out == "stored at offset 0\n"
    assert "type the message and end with Ctrl-D" in said.err


def test_publish_standard_input_whole_or_line_by_line(run: Command, data: Path) -> None:
    run("topic", "create", "t")
    assert run("publish", "t", stdin="two\nlines\n").out == "stored at offset 0\n"
    done = run("publish", "t", "--lines", stdin=b"x\n\n\xff\xfe\r\nlast")
    assert done.out == "stored 4 messages at offsets 1 to 4\n"
    assert run("publish", "t", "--lines").out == "nothing to store\n"
    with Broker(data) as broker:
        assert [r.value for r in broker.read("t")] == [
            "two\nlines\n",
            "x",
            "",
            b"\xff\xfe\r",
            "last",
        ]


def test_publish_a_message_that_begins_with_a_dash(filled: Command) -> None:
    assert filled("publish", "t", "--", "-x").code == 0
    assert filled("publish", "t", "-5").code == 0
    assert filled("consume", "t", "--from", "4").out == "-x\n-5\n"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["nosuch", "x"], 1, "'nosuch' is not declared"),
        (["t", "x", "--name", "a/#"], 1, "wildcards belong in filters"),
        (["t", "x", "--header", "novalue"], 2, "write --header KEY=VALUE"),
        (["t", "x", "--header", "=v"], 2, "write --header KEY=VALUE"),
        (["t", "x", "--lines"], 2, "not both"),
    ],
)
def test_publish_says_what_is_wrong(
    filled: Command, arguments: list[str], code: int, says: str
) -> None:
    done = filled("publish", *arguments)
    assert done.code == code and says in done.err and done.out == ""


def test_consume_without_a_consumer_remembers_nothing(filled: Command) -> None:
    for _ in range(2):
        assert filled("consume", "t").out == "a\nb\nc\nd\n"
    assert filled("consume", "t", "--from", "2").out == "c\nd\n"
    assert filled("consume", "t", "--from", "latest").out == ""
    assert filled("consume", "t", "--from", "-1h", "--limit", "1").out == "a\n"
    assert filled("consume", "t", "--from=-1h").out == "a\nb\nc\nd\n"
    assert filled("consumer", "list", "t").out == "topic t has no consumers\n"


def test_consume_with_a_consumer_goes_on_where_it_was(filled: Command) -> None:
    assert filled("consume", "t", "--consumer", "me", "--limit", "2").out == "a\nb\n"
    assert filled("consume", "t", "--consumer", "me").out == "c\nd\n"
    assert filled("consume", "t", "--consumer", "me").out == ""
    assert filled("consume", "t", "--consumer", "me", "--from", "3").out == "d\n"
    assert filled("consume", "t", "--consumer", "new", "--from", "latest").out == ""


def test_consume_no_commit_shows_the_same_again(filled: Command) -> None:
    for _ in range(2):
        assert filled("consume", "t", "--consumer", "me", "--no-commit").out == "a\nb\nc\nd\n"


def test_consume_filters(filled: Command) -> None:
    filled("publish", "t", '{"n": 1}', "--name", "t/x")
    assert filled("consume", "t", "--where", "payload.n = 1").out == '{"n": 1}\n'
    assert filled("consume", "t", "--names", "t/+").out == '{"n": 1}\n'
    assert filled("consume", "t", "--consumer", "me", "--where", "payload = 'c'").out == "c\n"
    assert filled("consumer", "list", "t", "--json").json == [
        {"consumer": "me", "next_offset": 5, "waiting": 0}
    ]


def test_consume_shows_more_when_asked(filled: Command) -> None:
    filled("publish", "t", "x", "--name", "t/1", "--header", "k=v")
    line = filled("consume", "t", "--from", "4", "-v").out
    offset, stamp, rest = line.split("  ", 2)
    assert offset == "4" and stamp.endswith("Z") and rest == "t/1 k=v  x\n"


def test_a_terminal_obeys_neither_names_nor_headers(filled: Command, data: Path) -> None:
    with Broker(data) as broker:
        broker.publish("\x1b[1mbold", "t", name="t/\x1b[2J", headers={"k": "\x1b[0m"})
    shown = filled("consume", "t", "--from", "4", "-v").out
    assert shown.endswith("t/\\x1b[2J k=\\x1b[0m  \x1b[1mbold\n")


def test_consume_shows_json_values_text_and_bytes_as_what_they_are(
    run: Command, data: Path
) -> None:
    with Broker(data) as broker:
        broker.create_topic("t")
        broker.publish_many([{"a": [1, None]}, "text", b"\xff\x00", None], "t")
    shown = run("consume", "t", "--json").json_lines
    assert [one.get("payload", "-") for one in shown] == [{"a": [1, None]}, "text", "-", None]
    assert shown[2]["payload_base64"] == "/wA="
    assert run("consume", "t").out == '{"a":[1,null]}\ntext\n\\xff\x00\nnull\n'


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["nosuch"], 1, "'nosuch' is not declared"),
        (["t", "--from", "99"], 1, "from 0 to 4"),
        (["t", "--from", "noon"], 1, "is not a position"),
        (["t", "--from", "-5"], 1, "is negative"),
        (["t", "--where", "payload ="], 1, "column 10"),
        (["t", "--names", "a#"], 1, "a wildcard must be a whole level"),
        (["t", "--limit", "0"], 2, "'0' is not a whole number above 0"),
        (["t", "--limit", "-1"], 2, "not a whole number above 0"),
        (["t", "--consumer", ""], 1, "is empty"),
        (["t", "--consumer", "me", "--follow"], 2, "cannot be combined with --consumer"),
        (["t", "--colour"], 2, "unrecognized arguments: --colour"),
    ],
)
def test_consume_says_what_is_wrong(
    filled: Command, arguments: list[str], code: int, says: str
) -> None:
    done = filled("consume", *arguments)
    assert done.code == code and says in done.err and done.out == ""
    assert filled("consumer", "list", "t", "--json").json == []


def test_more_records_than_one_batch_come_in_order(run: Command) -> None:
    run("topic", "create", "t", "--durability", "os")
    lines = "".join(f"{i}\n" for i in range(25_000))
    run("publish", "t", "--lines", stdin=lines)
    assert run("consume", "t").out == lines
    assert run("consume", "t", "--consumer", "me", "--limit", "15000").out.endswith("\n14999\n")
    assert run("consume", "t", "--consumer", "me").out.startswith("15000\n")


def test_consumers_are_listed_moved_and_removed(filled: Command) -> None:
    filled("consume", "t", "--consumer", "me")
    assert filled("consumer", "list", "t").out.splitlines()[1].split() == ["me", "4", "0"]
    assert filled("consumer", "seek", "t", "me", "-1h").out == "consumer me continues at offset 0\n"
    moved = filled("consumer", "seek", "t", "me", "1", "--json")
    assert moved.json == {"consumer": "me", "next_offset": 1}
    assert filled("consume", "t", "--consumer", "me", "--limit", "1").out == "b\n"
    assert filled("consumer", "remove", "t", "me").out == "removed consumer me\n"
    gone = filled("consumer", "remove", "t", "me")
    assert gone.code == 1 and "does not read topic" in gone.err
    assert filled("consumer", "seek", "t", "me", "0").code == 1
    filled("consume", "t", "--consumer", "me")
    assert filled("consumer", "remove", "t", "me", "--json").json == {"removed": "me"}
