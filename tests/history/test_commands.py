"""`penstock history …` and `penstock log verify --history` on tables in a directory."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from penstock.cli.main import main
from tests.doors.served import Served
from tests.history.world import TOPIC, TieringWorld, history, keep


@pytest.fixture
async def filled(world: TieringWorld) -> TieringWorld:
    async with world.broker() as broker:
        await world.create(broker)
        await world.publish(broker)
        await keep(broker)
        assert (await history(broker)).files == 1
    yield world


def run(world: TieringWorld, *arguments: str) -> int:
    return main([*arguments, "--at", str(world.data)])


def test_tables_and_their_files_are_shown(
    filled: TieringWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(filled, "history", "list", "--json") == 0
    (table,) = json.loads(capsys.readouterr().out)
    assert (table["table"], table["topic"], table["files"]) == ("default/orders-1", TOPIC, 1)
    assert run(filled, "history", "show", "default/orders-1", "--json") == 0
    (file,) = json.loads(capsys.readouterr().out)["files"]
    assert (file["first_offset"], file["end_offset"]) == (0, table["end_offset"])
    assert run(filled, "history", "list") == run(filled, "history", "show", "default/orders-1") == 0
    assert run(filled, "history", "show", "default/other-2") == 1
    assert "has no table 'default/other-2'" in capsys.readouterr().err


def test_verify_finds_damage_in_a_history(
    filled: TieringWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(filled, "history", "verify") == run(filled, "log", "verify", "--history") == 0
    assert "history default/orders-1: offsets 0 to" in capsys.readouterr().out
    (path,) = filled.table.glob("*.parquet")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert run(filled, "history", "verify") == run(filled, "log", "verify", "--history") == 1
    assert f"{path.name}: " in capsys.readouterr().out


def test_a_table_that_cannot_be_opened_is_named_and_the_others_are_shown(
    filled: TieringWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(filled.table, filled.table.parent / "aside-2")
    *_, newest = sorted((filled.table / "_delta_log").glob("*.json"))
    newest.write_bytes(newest.read_bytes()[:20])
    for action in ("list", "verify"):
        assert run(filled, "history", action) == 1
        text = capsys.readouterr().out
        assert "default/aside-2" in text and "default/orders-1" in text
        assert "unreadable" in text and str(filled.table) in text
        assert "<unknown>" not in text, "where the library found it is of no use"
    assert run(filled, "history", "list", "--json") == 1
    aside, broken = json.loads(capsys.readouterr().out)
    assert (aside["topic"], "problems" in aside) == (TOPIC, False)
    assert broken["table"] == "default/orders-1" and len(broken["problems"]) == 1


async def test_verify_finds_records_that_are_in_neither_part(
    filled: TieringWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    async with filled.broker() as broker:
        await filled.publish(broker)
    segments = sorted(filled.log.glob("*.log"))
    for segment in segments[:-1]:
        segment.unlink()
    assert run(filled, "log", "verify", "--history") == 1
    assert "the history ends before the log begins" in capsys.readouterr().out


async def test_a_dropped_history_begins_anew(filled: TieringWorld) -> None:
    async with filled.broker():
        assert run(filled, "history", "drop", "default/orders-1", "--yes") == 1
    assert run(filled, "history", "drop", "default/orders-1", "--yes") == 0
    assert filled.cold() == []
    async with filled.broker() as broker:
        await filled.publish(broker)
        await keep(broker)
        told = await history(broker)
        assert told.trouble == "" and told.files == 1 and told.first_offset > 0


def test_whoever_deletes_a_topic_is_told_that_its_history_stays(
    filled: TieringWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    with Served(filled.data, env={**os.environ, "PENSTOCK_HISTORY__URL": filled.url}):
        assert run(filled, "topic", "delete", TOPIC, "--yes") == 0
    assert f"its history stays in {filled.table}" in capsys.readouterr().out
    assert filled.cold()


async def test_a_table_that_is_lost_is_forgotten_and_a_new_one_begins(
    filled: TieringWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(filled.table)
    async with filled.broker() as broker:
        await keep(broker)
        assert "forget it with `penstock history drop`" in (await history(broker)).trouble
    assert run(filled, "history", "drop", "default/orders-1", "--yes") == 0
    assert run(filled, "history", "drop", "default/orders-1", "--yes") == 1
    assert "has no table 'default/orders-1'" in capsys.readouterr().err
    async with filled.broker() as broker:
        await filled.publish(broker)
        await keep(broker)
        told = await history(broker)
        assert told.trouble == "" and told.files == 1 and told.first_offset > 0
