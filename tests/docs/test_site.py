"""Do the pages of the site hold: the quick start step by step, and every message of the source?"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import markdown
import pytest

from tests.doors.served import Served
from tools import site, stranger

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
GAP = "…"


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


@pytest.mark.slow
def test_every_step_of_the_quick_start_looks_as_shown(tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    environment.pop("PENSTOCK_AT", None)
    with Served(tmp_path / "penstock_data") as served:
        for number, session in enumerate(stranger.blocks(page("QUICKSTART.md"), "console")):
            if number == 5:
                served.kill()
                served.start()
            for part in re.split(r"^\$ ", session, flags=re.MULTILINE)[1:]:
                command, _, expected = part.partition("\n")
                command = stranger.at_ports(command, served.port, served.http_port)
                ended = subprocess.run(
                    ["sh", "-c", command],
                    cwd=tmp_path,
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=60,
                )
                pattern = "(?s:.+)".join(re.escape(one) for one in expected.strip().split(GAP))
                assert re.fullmatch(pattern, ended.stdout.strip()), (
                    f"{command}: {ended.stdout} {ended.stderr}"
                )
                assert ended.returncode == 0


@pytest.mark.slow
def test_the_lines_about_backups_work_as_shown(tmp_path: Path) -> None:
    section = page("OPERATIONS.md").partition("\n## Backup and restore\n")[2]
    lines = stranger.blocks(section, "")[0]
    data = tmp_path / "data"
    places = {"/backup/": f"{tmp_path}/backup/", "/var/lib/penstock-new": f"{tmp_path}/new"}
    for shown, real in (places | {"/var/lib/penstock": str(data)}).items():
        lines = lines.replace(shown, real)
    (tmp_path / "backup").mkdir()
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    with Served(data):
        ended = subprocess.run(
            ["sh", "-ec", lines], env=environment, capture_output=True, text=True, timeout=60
        )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "checked moment" in ended.stdout and (tmp_path / "new" / "catalog.db").exists()


def texts() -> list[str]:
    """Every string of the source, with a gap for each value in it."""
    found = []
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [one.value if isinstance(one, ast.Constant) else GAP for one in node.values]
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def test_every_message_of_the_troubleshooting_page_is_one_of_the_program() -> None:
    said = texts()
    rows = re.findall(r"^\| `(.+?)` \|", page("TROUBLESHOOTING.md"), re.MULTILINE)
    assert len(rows) > 12
    for message in rows:
        pieces = [piece for piece in message.split(GAP) if piece.strip(" :;()")]
        pattern = re.compile(".*".join(map(re.escape, pieces)), re.DOTALL)
        assert any(pattern.search(text) for text in said), message


def test_the_reference_names_every_setting_command_and_metric() -> None:
    settings, commands, metrics = site.settings(), site.commands(), site.metrics()
    assert "`PENSTOCK_MQTT__LISTEN`" in settings and "## `[access]`" in settings
    assert "## `penstock topic create`" in commands and "`--retention-age" in commands
    assert "`penstock_published_records_total`" in metrics


def test_a_bar_in_a_table_is_shown_without_a_backslash() -> None:
    """As GitHub shows it; the site has no other way to write one."""
    rows = site.on_page_markdown("| a | b |\n|---|---|\n| `x\\|y` | c\\|d |\n\n`x\\|y`")
    shown = markdown.markdown(rows, extensions=["tables"])
    assert "<td><code>x|y</code></td>" in shown and "<td>c|d</td>" in shown
    assert shown.endswith("<code>x\\|y</code></p>"), "only in tables"
    for page in (ROOT / "docs").glob("*.md"):
        built = markdown.markdown(site.on_page_markdown(page.read_text()), extensions=["tables"])
        assert not re.search(r"<td>[^\n]*<code>[^<]*\\\|", built), page.name


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    for file in (ROOT / "docs").glob("*.md"):
        assert f": {file.name}\n" in navigation, file.name
