"""Is every code block of the documentation run by a test, or is there a reason why not?"""

from __future__ import annotations

import re
import shlex
import tomllib
from argparse import _SubParsersAction
from pathlib import Path

import pytest

from penstock.cli.main import COMMANDS, make_parser
from penstock.config.reading import load
from penstock.core.access.rules import parse_rule
from tests.docs.shown import PAGES, ROOT, Block, all_blocks, find
from tests.docs.test_sessions import COMMAND_BLOCKS, HTTP_SESSION
from tests.each import each

# Page and language, or page and first line: the test that runs the block.
RUN_BY = {
    ("README.md", "python"): "tests/docs/test_readme.py",
    ("README.md", "text"): "tests/docs/test_readme.py",
    ("README.md", "sh"): "tests/docs/test_readme.py",
    ("PYTHON.md", "python"): "tests/docs/test_readme.py",
    ("CLI.md", "console"): "tests/docs/test_readme.py",
    ("QUICKSTART.md", "console"): "tests/docs/test_site.py",
    ("PIPELINES.md", "python"): "tests/pipeline/test_guide.py",
    ("PIPELINES.md", "console"): "tests/pipeline/test_guide.py",
    ("PIPELINES.md", "# means.toml"): "tests/pipeline/test_guide.py",
    ("PIPELINES.md", "[spark]"): "tests/pipeline/schedule/test_schedule.py",
    ("MQTT.md", "[[bridges]]"): "tests/bridges/test_bridge_settings.py",
    ("OPERATIONS.md", "penstock backup "): "tests/docs/test_site.py",
    ("FORMATS.md", "example"): "tests/log/format/test_format_golden.py",
    ("HTTP.md", "console"): "tests/docs/test_sessions.py",
    ("CLI.md", "penstock context add prod"): "tests/docs/test_sessions.py",
    ("MQTT.md", "penstock serve &"): "tests/docs/test_sessions.py",
    ("MQTT.md", "penstock sub -t '$SYS"): "tests/docs/test_sessions.py",
    ("MQTT.md", "penstock sub -t 'sensors/#' --from"): "tests/docs/test_sessions.py",
    ("CLI.md", "$ penstock session list"): "tests/docs/test_sessions.py",
    ("CLI.md", "$ penstock client list"): "tests/docs/test_sessions.py",
    ("OPERATIONS.md", "penstock sub -t 'plant"): "tests/docs/test_sessions.py",
    ("PYTHON.md", "key = None"): "tests/docs/test_sessions.py",
    ("PYTHON.md", "work = client"): "tests/docs/test_sessions.py",
    ("PYTHON.md", "broker = Broker("): "tests/docs/test_sessions.py",
    ("PYTHON.md", "@client.handler("): "tests/docs/test_sessions.py",
}
# Blocks of commands that are only read by the parser of the command line, and why.
ONLY_PARSED = {
    ("OPERATIONS.md", "penstock history list"): "tests/cli/mqtt/test_cli_history.py runs them",
    ("OPERATIONS.md", "penstock history import"): "tests/cli/mqtt/test_cli_history.py runs them",
    ("OPERATIONS.md", "penstock migrate"): "tests/cluster/test_migrate.py runs it",
    (
        "PIPELINES.md",
        "penstock pipeline run archive",
    ): "endless; tests/pipeline/jobs/test_spark_archive.py",
    (
        "PIPELINES.md",
        "penstock pipeline run replay",
    ): "takes its time; tests/pipeline/jobs/test_spark_replay.py",
    (
        "MQTT.md",
        "penstock sub -t '$share",
    ): "endless; tests/doors/deliver/test_mqtt_shared.py",
}
NOT_RUN = {
    ("OPERATIONS.md", "penstock: topic orders"): "the output of penstock migrate",
    ("SCALE.md", "  clients      clients"): "a picture",
    ("OPERATIONS.md", "podman build"): "needs a registry of containers; hadolint reads the file",
    (
        "OPERATIONS.md",
        "2026-01-31T12:00:00",
    ): "a log line; tests/cli/server/test_log_output.py",
    (
        "OPERATIONS.md",
        "$ penstock trace",
    ): "needs clients; tests/cli/data/test_cli_trace.py",
    ("OPERATIONS.md", '{"who": "alice"'): "records of $audit; tests/access/test_audit.py",
    (
        "MQTT.md",
        "connection plant",
    ): "tests/peers/mosquitto/test_mosquitto_bridge.py",
    ("HACKING.md", "make setup"): "makes this checkout, in which the tests run",
    ("HACKING.md", "git worktree"): "compiles another commit",
    ("HACKING.md", ".venv/bin/python tools/engine.py"): "compiles, or removes what is compiled",
    ("ARCHITECTURE.md", ""): "drawings and names of functions",
    ("FORMATS.md", ""): "layouts; tests/log/format/test_format_golden.py reads the tables",
}
IN_A_SENTENCE = re.compile(r"`penstock ([^`]+)`")
PIP = re.compile(r"pip install '?penstock\[([\w,]+)\]'?")


def listed(block: Block, table: dict[tuple[str, str], str]) -> list[str]:
    """What a table says about a block."""
    return [
        said
        for (page, key), said in table.items()
        if page == block.page and (key == block.language or (key and block.first.startswith(key)))
    ]


def settings_blocks() -> list[Block]:
    mine = [block for block in all_blocks() if block.language == "toml"]
    return [block for block in mine if not listed(block, RUN_BY)]


@each("block", all_blocks(), ids=lambda block: f"{block.page}: {block.first}")
def test_every_block_is_run_or_has_a_reason(block: Block) -> None:
    told = listed(block, RUN_BY) + listed(block, ONLY_PARSED) + listed(block, NOT_RUN)
    told += listed(block, dict.fromkeys(COMMAND_BLOCKS, "tests/docs/test_sessions.py"))
    if block.language == "toml" and block in settings_blocks():
        told.append("below")
    if block.first.startswith("pip install"):
        told.append("below")
    if (block.page, block.first) == ("SECURITY.md", "allow publish sensors/%u/#"):
        told.append("below")
    assert len(told) == 1, f"add it to RUN_BY, COMMAND_BLOCKS or NOT_RUN: {told}"
    for file in re.findall(r"tests/[\w/]+\.py", told[0]):
        assert (ROOT / file).is_file(), file


def test_no_table_names_a_block_that_does_not_exist() -> None:
    for table in (RUN_BY, ONLY_PARSED, NOT_RUN, dict.fromkeys(COMMAND_BLOCKS, "")):
        for key in table:
            assert any(listed(block, {key: "x"}) for block in all_blocks()), key
    assert all(block.page == "HTTP.md" for block in HTTP_SESSION)


@each("block", settings_blocks(), ids=lambda one: f"{one.page}: {one.first}")
def test_every_settings_file_that_is_shown_is_valid(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(block.text)
    tomllib.loads(block.text)
    load(file, {})


def test_every_extra_that_is_shown_exists() -> None:
    shown = [name for block in all_blocks() for name in PIP.findall(block.text)]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert len(shown) >= 4
    for names in shown:
        assert set(names.split(",")) <= extras["optional-dependencies"].keys()


def test_every_rule_that_is_shown_is_valid() -> None:
    lines = find("SECURITY.md", "allow publish sensors/%u/#").lines
    rules = [parse_rule(line) for line in lines]
    assert {rule.allows for rule in rules} == {True, False}, "it shows what is allowed and denied"


@pytest.mark.parametrize(("page", "first"), ONLY_PARSED, ids=lambda text: text)
def test_commands_that_are_not_run_have_the_shown_options(page: str, first: str) -> None:
    for line in find(page, first).lines:
        words = shlex.split(line.removesuffix("&"), comments=True)
        assert words[0] == "penstock"
        parser = make_parser(COMMANDS.keys() & {words[1]})
        _, unknown = parser.parse_known_args(words[1:])
        assert unknown == []


@each("page", PAGES, ids=lambda path: path.name)
def test_every_command_in_a_sentence_exists_with_its_options(page: Path) -> None:
    wrong = []
    for shown in IN_A_SENTENCE.findall(page.read_text()):
        words = shlex.split(shown.replace("\\|", "|").partition(" | ")[0].partition(" -- ")[0])
        if words[0] == "COMMAND":
            continue
        parser = make_parser(COMMANDS.keys() & {words[0]})
        for name in words:
            below = [one for one in parser._actions if isinstance(one, _SubParsersAction)]
            if not below or name.startswith("-"):
                break
            names = [one for one in name.split("|") if not one.isupper()]
            if not all(below[0].choices.get(one) for one in names):
                wrong.append(shown)
                break
            parser = below[0].choices[names[0]]
        options = [word for word in words if re.match("--?[a-zA-Z]", word)]
        wrong += [shown for word in options if word not in parser._option_string_actions]
    assert wrong == []
