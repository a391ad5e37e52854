"""Pages of the documentation that are made from the code, as a hook of mkdocs: `make docs`.

Settings, commands, HTTP operations and metrics are asked from Penstock itself, so the reference
cannot say anything else than the program does.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from penstock.broker.figures.metrics import FAMILIES
from penstock.cli.main import COMMANDS, make_parser
from penstock.config import SETTINGS
from penstock.config.defaults import variable_of

ROOT: Final = Path(__file__).parent.parent
CODE: Final = re.compile(r"`[^`]+`")
MADE: Final = "Made from the code by `make docs`."


def on_files(files: Any, config: Any) -> Any:
    """Add what is made; called by mkdocs."""
    from mkdocs.structure.files import File

    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs, which shows `\\|` in code in a table as it is, and GitHub as a bar."""
    lines = markdown.split("\n")
    return "\n".join(_with_bars(line) if line.startswith("|") else line for line in lines)


def _with_bars(row: str) -> str:
    return CODE.sub(lambda code: code[0].replace("\\|", "|"), row)


def pages() -> dict[str, str]:
    """Path in the site -> Markdown."""
    changes = (ROOT / "CHANGELOG.md").read_text().replace("](docs/", "](")
    return {
        "CHANGELOG.md": changes,
        "reference/settings.md": settings(),
        "reference/commands.md": commands(),
        "reference/http.md": operations(openapi()),
        "reference/metrics.md": metrics(),
    }


def _cell(text: object) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ")


def _table(*rows: tuple[object, ...]) -> str:
    head, *rest = (f"| {' | '.join(map(_cell, row))} |" for row in rows)
    return "\n".join([head, "|" + "---|" * len(rows[0]), *rest, ""])


def settings() -> str:
    lines = [
        "# Settings",
        f"{MADE} `penstock config init` writes a file with all of them; "
        "[how they are given](../OPERATIONS.md#settings).",
    ]
    tables = dict.fromkeys(setting.table for setting in SETTINGS)
    for table in tables:
        lines.append(f"## `[{table}]`")
        rows: list[tuple[object, ...]] = [("key", "default", "meaning", "environment")]
        for one in SETTINGS:
            if one.table == table:
                default = "" if one.default in ("", None) else f"`{one.default}`"
                rows.append((f"`{one.key}`", default, one.says, f"`{variable_of(one.path)}`"))
        lines.append(_table(*rows))
    return "\n\n".join(lines)


def _leaves(
    parser: argparse.ArgumentParser, name: str
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    below = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    if not below:
        yield name, parser
    for action in below:
        for word, one in action.choices.items():
            yield from _leaves(one, f"{name} {word}")


def commands() -> str:
    lines = ["# Commands", f"{MADE} [An overview with a session](../CLI.md)."]
    for name, parser in _leaves(make_parser(COMMANDS), "penstock"):
        lines += [f"## `{name}`", parser.description or ""]
        rows: list[tuple[object, ...]] = [("argument", "meaning")]
        for one in parser._actions:
            if one.help is argparse.SUPPRESS or one.dest == "help":
                continue
            value = one.metavar or (one.choices and "|".join(map(str, one.choices))) or ""
            value = " ".join(value) if isinstance(value, tuple) else str(value)
            if not value and one.nargs != 0:
                value = one.dest.upper()
            shown = ", ".join(one.option_strings)
            rows.append((f"`{' '.join(filter(None, [shown, value]))}`", one.help or ""))
        if len(rows) > 1:
            lines.append(_table(*rows))
    return "\n\n".join(lines).replace("%%", "%")


def openapi() -> dict[str, Any]:
    """The document that a broker answers with."""
    with tempfile.TemporaryDirectory(prefix="penstock-docs-") as directory:
        command = [*(sys.executable, "-m", "penstock", "serve", "--data", directory)]
        command += ["--mqtt", "off", "--http", "127.0.0.1:0"]
        command += ["--log-level", "error"]
        broker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert broker.stdout is not None
        try:
            address = ""
            for line in broker.stdout:
                if line.startswith("listening: http://"):
                    address = line.removeprefix("listening: ").strip()
                if line.startswith("ready"):
                    break
            with urllib.request.urlopen(f"{address}/v1/openapi.json", timeout=30) as answer:
                document: dict[str, Any] = json.load(answer)
            return document
        finally:
            broker.terminate()
            broker.communicate()


def operations(document: dict[str, Any]) -> str:
    lines = [
        "# HTTP operations",
        f"{MADE} A broker answers `/v1/openapi.json` with the whole document, types included; "
        "[how they work together](../HTTP.md).",
    ]
    rows: list[tuple[object, ...]] = [("operation", "what it does", "answers")]
    for path, methods in document["paths"].items():
        for method, one in methods.items():
            answers = ", ".join(code for code in one["responses"] if code < "400")
            rows.append((f"`{method.upper()} {path}`", one.get("summary", ""), answers))
    lines.append(_table(*rows))
    return "\n\n".join(lines)


def metrics() -> str:
    lines = ["# Metrics", f"{MADE} `GET /metrics` has them; [more](../OPERATIONS.md#metrics)."]
    rows: list[tuple[object, ...]] = [("metric", "type", "meaning")]
    rows += [(f"`{name}`", kind, says) for name, (kind, says) in FAMILIES.items()]
    lines.append(_table(*rows))
    return "\n\n".join(lines)
