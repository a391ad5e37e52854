"""`penstock log verify|dump|export|import`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock import Broker
from tests.broker.trimmed import trim
from tests.cli.conftest import Command


@pytest.fixture
def filled(run: Command, data: Path) -> Command:
    with Broker(data) as broker:
        broker.create_topic("Orders")
        broker.publish_many([f"m{i}" for i in range(5)], "orders", headers={"k": "v"})
        broker.publish("m5", "orders", name="orders/x")
    return run


# verify


def test_verify_says_that_all_is_well(filled: Command) -> None:
    done = filled("log", "verify")
    assert done.code == 0
    assert done.out.startswith("Orders: offsets 0 to 5, 1 segment, ")
    assert done.out.endswith(": ok\nno damage found\n")
    told = filled("log", "verify", "ORDERS", "--json").json
    assert told["clean"] is True
    (log,) = told["logs"]
    assert (log["topic"], log["first_offset"], log["end_offset"]) == ("Orders", 0, 6)
    assert log["problems"] == []


def test_verify_needs_no_lock(filled: Command, data: Path) -> None:
    with Broker(data) as broker:
        broker.publish("while it is open", "orders")
        assert "offsets 0 to 6" in filled("log", "verify").out
        assert "while it is open" in filled("log", "dump", "orders").out


@pytest.mark.parametrize("place", [80, -20])
def test_verify_finds_one_flipped_bit_and_says_where(
    filled: Command, data: Path, place: int
) -> None:
    (segment,) = data.glob("default/orders-1/*.log")
    content = bytearray(segment.read_bytes())
    content[place] ^= 1
    segment.write_bytes(content)
    done = filled("log", "verify")
    assert done.code == 1
    assert "DAMAGED" in done.out and str(segment) in done.out
    assert done.out.endswith("damage found: see above\n")
    told = filled("log", "verify", "--json")
    assert told.code == 1 and told.json["clean"] is False
    assert str(segment) in told.json["logs"][0]["problems"][0]


@pytest.mark.parametrize(
    ("place", "says", "aside"),
    [(300, "from offset 5 on are damaged", ".cut-at-5"), (20, "the header of", ".damaged")],
)
def test_whoever_opens_a_damaged_log_is_told_what_recovery_did_and_where_the_rest_is(
    filled: Command, data: Path, place: int, says: str, aside: str
) -> None:
    (segment,) = data.glob("default/orders-1/*.log")
    with segment.open("r+b") as file:
        file.seek(place)
        file.write(b"XXXX")
    told = filled("consume", "orders")
    assert told.code == 0 and says in told.err and aside in told.err
    assert filled("consume", "orders").err == ""  # once
    kept = f"{segment}{aside}"
    verified = filled("log", "verify")
    assert verified.code == 0 and f"  {kept}: set aside by an earlier recovery" in verified.out
    assert filled("log", "verify", "--json").json["logs"][0]["set_aside"] == [kept]
    assert f"set aside   {kept}\n" in filled("topic", "info", "orders").out
    assert filled("topic", "info", "orders", "--json").json["set_aside"] == [kept]


def test_verify_with_nothing_to_verify(run: Command, data: Path) -> None:
    missing = run("log", "verify")
    assert missing.code == 1 and "data directory" in missing.err
    data.mkdir()
    assert run("log", "verify").out == "no topics yet\n"
    unknown = run("log", "verify", "nosuch")
    assert unknown.code == 1 and "has no topic 'nosuch'" in unknown.err


# dump


def test_dump_shows_batches_and_records(filled: Command) -> None:
    shown = filled("log", "dump", "orders").out
    assert shown.count("batch ") == 2
    assert "batch offsets 0 to 4  epoch 1  " in shown
    assert " Orders k=v  m4\n" in shown and " orders/x  m5\n" in shown
    assert filled("log", "dump", "orders", "--batches").out.count("\n") == 2
    limited = filled("log", "dump", "orders", "--from", "2", "--limit", "2").out
    assert "m2" in limited and "m3" in limited and "m1" not in limited and "m4" not in limited
    assert filled("log", "dump", "orders", "--from", "6").out == ""


def test_dump_in_json(filled: Command) -> None:
    records = filled("log", "dump", "orders", "--json").json_lines
    assert [one["offset"] for one in records] == list(range(6))
    batches = filled("log", "dump", "orders", "--batches", "--json").json_lines
    assert [(one["base_offset"], one["end_offset"]) for one in batches] == [(0, 5), (5, 6)]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["nosuch"], 1, "has no topic 'nosuch'"),
        (["orders", "--from", "-5"], 2, "is not an offset"),
        (["orders", "--from", "x"], 2, "is not an offset"),
        (["orders", "--limit", "0"], 2, "not a whole number above 0"),
        ([], 2, "required: topic"),
    ],
)
def test_dump_says_what_is_wrong(
    filled: Command, arguments: list[str], code: int, says: str
) -> None:
    done = filled("log", "dump", *arguments)
    assert done.code == code and says in done.err


# export and import


def test_export_writes_the_plain_layout(filled: Command, tmp_path: Path) -> None:
    filled("consume", "orders", "--consumer", "me", "--limit", "4")
    out = tmp_path / "out"
    done = filled("log", "export", "--lines", str(out))
    assert done.out == "exported Orders: 6 messages\n"
    assert (out / "Orders" / "messages.log").read_text() == "m0\nm1\nm2\nm3\nm4\nm5\n"
    assert (out / "Orders" / "subscriptions" / "me.offset").read_text() == "4\n"


def test_import_takes_the_plain_layout_in(run: Command, tmp_path: Path) -> None:
    folder = tmp_path / "pubsub_data" / "news"
    (folder / "subscriptions").mkdir(parents=True)
    (folder / "messages.log").write_bytes(b"one\n\n\xff\nlast")
    (folder / "subscriptions" / "me.offset").write_text("3\n")
    done = run("log", "import", "--lines", str(tmp_path / "pubsub_data"), "--json")
    assert done.json == [{"topic": "news", "messages": 4}]
    assert run("consume", "news").out == "one\n\n\\xff\nlast\n"
    assert run("consume", "news", "--consumer", "me").out == "last\n"


def test_anything_survives_export_and_import_with_escapes(
    run: Command, data: Path, tmp_path: Path
) -> None:
    topics = ["plain", "Ünï cødé", "-dash", "a.b"]
    messages = ["", "two\nlines\r\n", "back\\slash \\n \\x41", b"\xff\x00\\\n\xfe", "ü🚰", "\\"]
    consumers = ["me", "a/b", "..", ".", "100%", "%2F", "ü", "a b", "x" * 200]
    with Broker(data) as broker:
        for topic in topics:
            broker.create_topic(topic)
            broker.publish_many(messages, topic)
            for at, consumer in enumerate(consumers):
                broker.subscribe(consumer, topic, start=at % 7)
    out, copy = str(tmp_path / "out"), str(tmp_path / "copy")
    assert run("log", "export", "--lines", "--escape", out, "--json").code == 0
    assert run("log", "import", "--lines", "--escape", out, "--at", copy).code == 0
    with Broker(data) as broker, Broker(copy) as copied:
        assert {one.topic for one in copied.topics()} == set(topics)
        for topic in topics:
            assert [r.value for r in copied.read(topic)] == messages
            assert copied.consumers(topic) == broker.consumers(topic)


def test_after_retention_lines_and_positions_count_from_the_first_kept(
    run: Command, data: Path, tmp_path: Path, runner: asyncio.Runner
) -> None:
    first, end = runner.run(trim(data))
    out = tmp_path / "out"
    assert run("log", "export", "--lines", "--escape", str(out)).code == 0
    lines = (out / "t" / "messages.log").read_bytes().count(b"\n")
    assert lines == end - first
    assert (out / "t" / "subscriptions" / "behind.offset").read_text() == "0\n"
    assert (out / "t" / "subscriptions" / "level.offset").read_text() == f"{lines}\n"


def test_export_that_fails_leaves_nothing_and_may_be_repeated(
    filled: Command, data: Path, tmp_path: Path
) -> None:
    with Broker(data) as broker:
        broker.create_topic("zz")
        broker.publish("two\nlines", "zz")
    out = tmp_path / "out"
    done = filled("log", "export", "--lines", str(out))
    assert done.code == 1 and "message 0 of zz contains a newline" in done.err
    assert "--escape" in done.err
    assert list(out.iterdir()) == []
    assert filled("log", "export", "--lines", "--escape", str(out)).code == 0
    again = filled("log", "export", "--lines", "--escape", str(out))
    assert again.code == 1 and "already exists: export to another" in again.err
    assert len(list(out.iterdir())) == 2


def test_export_to_where_nothing_can_be_written_names_the_place(
    filled: Command, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    done = filled("log", "export", "--lines", str(tmp_path / "file"))
    assert done.code == 1
    assert f"{tmp_path / 'file' / 'Orders'} cannot be written: Not a directory" in done.err


def test_export_of_one_topic(filled: Command, data: Path, tmp_path: Path) -> None:
    filled("topic", "create", "other")
    assert filled("log", "export", "--lines", str(tmp_path / "out"), "ORDERS").code == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["Orders"]
    unknown = filled("log", "export", "--lines", str(tmp_path / "out2"), "nosuch")
    assert unknown.code == 1 and "'nosuch' is not declared" in unknown.err


def test_export_refuses_a_consumer_whose_name_fits_no_file(
    filled: Command, data: Path, tmp_path: Path
) -> None:
    with Broker(data) as broker:
        broker.subscribe("ü" * 255, "orders")
    done = filled("log", "export", "--lines", str(tmp_path / "out"))
    assert done.code == 1 and "too long a name for a file" in done.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("offset", ["7", "-1", "x", "", "²", "1 2"])
def test_import_with_a_bad_position_takes_nothing_in(
    run: Command, tmp_path: Path, offset: str
) -> None:
    folder = tmp_path / "in" / "news"
    (folder / "subscriptions").mkdir(parents=True)
    (folder / "messages.log").write_text("one\n")
    path = folder / "subscriptions" / "me.offset"
    path.write_text(offset)
    done = run("log", "import", "--lines", str(tmp_path / "in"))
    assert done.code == 1 and "not a line number from 0 to 1" in done.err
    assert run("topic", "list", "--json").json == []
    path.write_text("1")
    assert run("log", "import", "--lines", str(tmp_path / "in")).code == 0


@pytest.mark.parametrize("line", ["\\q", "\\", "\\x4", "\\xzz", "\\x+1"])
def test_import_refuses_an_escape_it_does_not_know(run: Command, tmp_path: Path, line: str) -> None:
    (tmp_path / "in" / "news").mkdir(parents=True)
    (tmp_path / "in" / "news" / "messages.log").write_text(f"fine\n{line}\n")
    done = run("log", "import", "--lines", "--escape", str(tmp_path / "in"))
    assert done.code == 1 and "unknown escape" in done.err
    assert run("log", "import", "--lines", str(tmp_path / "in")).code == 0  # as they are


def test_import_from_nowhere_or_over_a_topic_is_refused(filled: Command, tmp_path: Path) -> None:
    done = filled("log", "import", "--lines", str(tmp_path / "nowhere"))
    assert done.code == 1 and "contains no <topic>/messages.log" in done.err
    filled("log", "export", "--lines", str(tmp_path / "out"))
    done = filled("log", "import", "--lines", str(tmp_path / "out"))
    assert (
        done.code == 1 and "'Orders' already exists" in done.err and "delete it first" in done.err
    )
    assert "offsets 0 to 5" in filled("log", "verify").out


@pytest.mark.parametrize("action", ["export", "import"])
def test_the_layout_is_named_on_the_command_line(run: Command, tmp_path: Path, action: str) -> None:
    done = run("log", action, str(tmp_path))
    assert done.code == 2 and "--lines" in done.err
