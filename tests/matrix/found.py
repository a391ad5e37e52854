"""The ways to publish and to read that the code has.

They are routes of HTTP and the forms of their bodies, commands, methods, packets of MQTT, and the
functions that append to a log or follow one.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path

import penstock
from penstock.app.bus import RemoteBus
from penstock.cli.main import make_parser
from penstock.client.aio import AsyncClient
from penstock.client.groups import AsyncGroup
from penstock.client.sync import Client, Group
from penstock.doors.http.door import HttpDoor
from penstock.mqtt import packets

SOURCE = Path(penstock.__file__).parent
CLASSES = (
    *(penstock.Broker, penstock.AsyncBroker, penstock.Bus),
    *(AsyncClient, AsyncGroup, Client, Group, RemoteBus),
)
# Names by which records come into a log or leave it as they come, and the end of what has the name.
USES = {
    ("append", "log"),
    ("append_batch", "log"),
    ("append_durably", ""),
    ("publish", "engine"),
    ("publish", "publisher"),
    ("publish_mixed", "publisher"),
    ("publish_once", "publisher"),
    ("publish", "self"),
    ("submit", "submissions"),
    ("append", "followers"),
    ("stream", "engine"),
}


def routes(door: HttpDoor) -> Iterator[str]:
    for route in door.router:
        yield f"{route.method} {route.pattern}"
        if route.facts is not None:
            yield from (f"{route.pattern} takes {form}" for form in route.facts.also_takes)
            yield from (f"{route.pattern} gives {form}" for form in route.facts.also_gives)


def commands() -> Iterator[str]:
    yield from _commands(make_parser(), "penstock")


def _commands(parser: argparse.ArgumentParser, path: str) -> Iterator[str]:
    below = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    if not below:
        yield path
    for action in below:
        for name, command in action.choices.items():
            yield from _commands(command, f"{path} {name}")


def methods() -> Iterator[str]:
    for one in CLASSES:
        yield from (f"{one.__name__}.{name}" for name in dir(one) if not name.startswith("_"))


def packet_kinds() -> Iterator[str]:
    for name, one in vars(packets).items():
        if isinstance(one, type) and one.__module__ == packets.__name__:
            yield f"MQTT {name}"


def callers() -> Iterator[str]:
    """Which functions append to a log, or follow one: `Class.function`, or `file.function`."""
    for room in ("app", "broker", "doors", "log"):
        for path in sorted((SOURCE / room).rglob("*.py")):
            tree = ast.parse(path.read_text())
            yield from (f"{path.stem}.{name}" for name in _functions(tree.body))
            for one in tree.body:
                if isinstance(one, ast.ClassDef):
                    yield from (f"{one.name}.{name}" for name in _functions(one.body))


def _functions(body: list[ast.stmt]) -> Iterator[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    for function in body:
        if isinstance(function, kinds) and any(map(_is_use, ast.walk(function))):
            yield function.name


def _is_use(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return (node.id, "") in USES
    if not isinstance(node, ast.Attribute):
        return False
    of = ast.unparse(node.value)
    return any(node.attr == name and of.endswith(end) for name, end in USES)
