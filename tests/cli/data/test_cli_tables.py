"""Do records come back from NDJSON and Parquet with names, headers, values and times?"""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import Broker
from penstock.model.record import Record
from tests.cli.conftest import Command

MESSAGES = (
    ("t/1", {"celsius": 21.5}, {"unit": "C"}),
    ("t/1", {"celsius": 22}, {"unit": "C"}),
    ("t/2", "two\nlines", {}),
    ("t/2", b"\xff\x00", {"a": "b", "c": "d"}),
    ("t/1", [1, None, "ü"], {}),
)


@pytest.fixture
def stored(data: Path) -> list[Record]:
    with Broker(data) as broker:
        broker.create_topic("t")
        for name, message, headers in MESSAGES:
            broker.publish(message, topic="t", name=name, headers=headers)
        return broker.read("t")


@pytest.mark.parametrize("form", ["ndjson", "parquet"])
def test_records_come_back_with_all_that_they_have(
    run: Command, stored: list[Record], tmp_path: Path, form: str
) -> None:
    out, copy = str(tmp_path / "out"), str(tmp_path / "copy")
    assert run("log", "export", out, "--format", form).out == "exported t: 5 messages\n"
    again = run("log", "export", out, "--format", form)
    assert again.code == 1 and "already exists" in again.err
    told = run("log", "import", out, "--format", form, "--at", copy, "--keep-times")
    assert told.out == "imported t: 5 messages\n"
    with Broker(copy) as broker:
        found = broker.read("t")
    assert [one.name for one in found] == [one.name for one in stored]
    assert [one.value for one in found] == [one.value for one in stored]
    for one, original in zip(found, stored, strict=True):
        time = original.time.isoformat().replace("+00:00", "Z")
        assert [*one.headers] == [*original.headers, ("original-time", time)]


def test_without_keep_times_headers_are_as_they_were(
    run: Command, stored: list[Record], tmp_path: Path
) -> None:
    out, copy = str(tmp_path / "out"), str(tmp_path / "copy")
    run("log", "export", out, "t", "--format", "ndjson")
    assert run("log", "import", out, "--format", "ndjson", "--at", copy).code == 0
    with Broker(copy) as broker:
        assert [one.headers for one in broker.read("t")] == [one.headers for one in stored]


@pytest.mark.parametrize("form", ["ndjson", "parquet"])
def test_a_file_that_is_damaged_leaves_no_topic(run: Command, tmp_path: Path, form: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / f"t.{form}").write_text('{"name": "t", "payload": "a"}\n{"nam\n')
    ended = run("log", "import", str(tmp_path / "in"), "--format", form)
    assert ended.code == 1 and f"t.{form}" in ended.err
    assert run("topic", "list", "--json").json == []


def test_the_layout_has_to_be_chosen(run: Command, tmp_path: Path) -> None:
    assert run("log", "export", str(tmp_path / "out")).code == 2
    ended = run("log", "import", str(tmp_path), "--format", "ndjson")
    assert ended.code == 1 and "contains no <topic>.ndjson" in ended.err
