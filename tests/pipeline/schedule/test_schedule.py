"""What may stand in `[spark.schedule]`, and what is said about the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock import InvalidSetting
from penstock.cli.main import main
from penstock.cli.server.settings import template
from penstock.config import load, server_settings
from penstock.pipeline.jobs import JOBS
from penstock.pipeline.schedule import ENTRIES_MAX, Scheduled, read_schedule
from tests.docs.test_readme import blocks

CLEAN = {"every": "1d", "run": "clean './my archive' --older-than 30d"}


def test_an_entry_is_a_job_with_its_arguments_and_how_often() -> None:
    assert read_schedule({"tidy": CLEAN}, "file") == (
        Scheduled("tidy", "clean", ("./my archive", "--older-than", "30d"), 86_400.0, 6 * 3_600.0),
    )
    (one,) = read_schedule({"x": {"every": "90s", "run": "stats", "at_most": "5m"}}, "file")
    assert (one.every_s, one.at_most_s, one.arguments) == (90.0, 300.0, ())


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("clean", r"x: 'clean' is not \{ every = "),
        ({"every": "1d"}, "x: give both 'every', the interval, and 'run'"),
        ({**CLEAN, "evry": 1}, "x: 'evry' is unknown: did you mean 'every'"),
        ({**CLEAN, "every": "often"}, "every 'often' is not a duration above 0: write"),
        ({**CLEAN, "every": "500ms"}, "every '500ms' is too short: use at least 1s"),
        ({**CLEAN, "at_most": "0s"}, "at_most '0s' is not a duration above 0"),
        ({**CLEAN, "run": ""}, "run '' is not a job and its arguments"),
        ({**CLEAN, "run": ["clean"]}, "is not a job and its arguments in quotes"),
        ({**CLEAN, "run": "clean 'x"}, "No closing quotation"),
        ({**CLEAN, "run": "cleen x"}, "job 'cleen' is unknown: did you mean 'clean'"),
        ({**CLEAN, "run": "zzz"}, f"jobs are {', '.join(JOBS)}"),
        ({**CLEAN, "run": "clean"}, "clean: the following arguments are required: TABLE"),
        ({**CLEAN, "run": "clean x --yonger 3"}, "clean: unrecognized arguments: --yonger"),
        ({**CLEAN, "run": "archive t --to x --follow"}, "a scheduled job must end: omit --follow"),
        ({**CLEAN, "run": "clean x --older-than banana"}, "--older-than: 'banana' is not a dur"),
        ({**CLEAN, "run": "clean x --older-than 30"}, "such as '30s', '30h' or '30d'"),
        ({**CLEAN, "run": "clean x --vacuum 1x"}, "--vacuum: '1x' is not a duration above 0"),
        ({**CLEAN, "run": "sql nowhere.toml"}, "sql: nowhere.toml"),
    ],
)
def test_an_entry_that_is_wrong_says_what_and_where(entry: Any, message: str) -> None:
    with pytest.raises(InvalidSetting, match=message) as refused:
        read_schedule({"x": entry}, "file.toml")
    assert str(refused.value).startswith("file.toml: [spark.schedule] x: ")


def test_a_schedule_is_a_table_of_so_many_entries() -> None:
    with pytest.raises(InvalidSetting, match="is not a table: write \\[spark.schedule\\]"):
        read_schedule([CLEAN], "file")
    with pytest.raises(InvalidSetting, match=f"has {ENTRIES_MAX + 1} entries: at most"):
        read_schedule({str(number): CLEAN for number in range(ENTRIES_MAX + 1)}, "file")


def test_the_settings_file_brings_it_and_check_shows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.toml"
    file.write_text(
        "[spark]\njobs_max = 3\n[spark.schedule]\n"
        'tidy = { every = "1h", run = "clean ./archive" }\n'
    )
    settings = server_settings(load(file, {}, {}))
    assert [one.name for one in settings.schedule] == ["tidy"]
    assert settings.jobs_max == 3
    main(["serve", "--check", "--config", str(file)])
    shown = capsys.readouterr().out
    assert "jobs_max = 3" in shown
    entry = '"tidy" = { every = "3600s", run = "clean ./archive", at_most = "21600s" }'
    assert f"[spark.schedule]\n{entry}" in shown
    again = tmp_path / "again.toml"
    again.write_text(shown)
    assert load(again, {}, {}).schedule == settings.schedule
    main(["serve", "--check", "--json", "--config", str(file)])
    assert '"schedule": {"tidy": {"every": "3600s"' in capsys.readouterr().out


def test_the_schedule_of_the_guide_is_one(tmp_path: Path) -> None:
    (example,) = [one for one in blocks("docs/PIPELINES.md", "toml") if "[spark.schedule]" in one]
    (tmp_path / "p.toml").write_text(example)
    settings = server_settings(load(tmp_path / "p.toml", {}, {}))
    assert [one.job for one in settings.schedule] == ["archive", "clean"]


def test_the_schedule_in_the_template_is_one(tmp_path: Path) -> None:
    _, _, entries = template().rpartition("# [spark.schedule]\n")
    (tmp_path / "p.toml").write_text(f"[spark.schedule]\n{entries.replace('# ', '')}")
    assert [one.name for one in load(tmp_path / "p.toml", {}, {}).schedule] == ["clean"]
