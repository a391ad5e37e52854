"""The server log: is every event that the code logs explained to operators, and nothing else?"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import penstock

OPERATIONS = Path(__file__).parents[2] / "docs" / "OPERATIONS.md"
LEVELS = ("debug", "info", "warning", "error")


def events(tree: ast.AST) -> Iterator[str]:
    """As `LimitedLog` gets them, or in the values of a line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            first = node.args[0] if node.args else None
            if node.func.attr in LEVELS and len(node.args) == 3 and isinstance(first, ast.Constant):
                yield first.value
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                is_event = isinstance(key, ast.Constant) and key.value == "event"
                if is_event and isinstance(value, ast.Constant):
                    yield value.value


def test_every_event_of_the_server_log_is_explained_to_operators() -> None:
    sources = Path(penstock.__file__).parent.rglob("*.py")
    logged = {event for source in sources for event in events(ast.parse(source.read_text()))}
    assert len(logged) > 30
    section = OPERATIONS.read_text().partition("## Server log")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    explained = {event for row in rows for event in re.findall(r"`([^`]+)`", row)}
    assert logged - explained == set()
