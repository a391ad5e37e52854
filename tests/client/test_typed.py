"""Does a type checker understand a program that uses the client and the broker?"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "src"
PROGRAM = """
import ssl

import penstock
from penstock import Broker, Record


async def ask(url: str) -> int:
    async with penstock.aio.connect(url, user="ann", password="secret", patience_s=1) as client:
        reveal_type(await client.publish({"n": 1}, "orders", retain=True))
        group = client.join_group("packers", "orders")
        for job in await group.fetch(10, lease_s=60):
            await group.extend([job])
        return await client.redrive("packers", "orders", dry_run=True)


def read(url: str) -> list[Record]:
    with penstock.connect(url, token="psk_1", tls=ssl.create_default_context()) as client:
        reveal_type(client)
        reveal_type(client.publish_many(["a"], "orders"))
        reveal_type(client.join_group("packers", "orders").fetch())
        client.publish("x", "orders", retain="yes")
        return client.read("orders")


with Broker.memory() as broker:
    reveal_type(broker.consume("me", "orders"))
penstock.connect("http://127.0.0.1:8090", pasword="secret")
penstock.aio.connect("http://127.0.0.1:8090", patience_s="9")
"""
SAYS = [
    'note: Revealed type is "int | tuple[int, int]"',
    'note: Revealed type is "penstock.client.sync.Client"',
    'note: Revealed type is "range | list[tuple[int, int]]"',
    'note: Revealed type is "list[penstock.client.groups.Delivery]"',
    'error: Argument "retain" to "publish" of "Client" has incompatible type "str"; '
    'expected "bool"',
    'note: Revealed type is "list[penstock.model.record.Record]"',
    'error: Unexpected keyword argument "pasword" for "connect"; did you mean "password"?',
    'error: Argument "patience_s" to "connect" has incompatible type "str"; expected "float"',
]


@pytest.mark.slow
def test_a_program_is_checked_by_its_types(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(program)],
        cwd=tmp_path,
        env=os.environ | {"MYPYPATH": str(SOURCES), "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line.partition("program.py:")[2] for line in done.stdout.splitlines()]
    said = [
        re.sub(r"^\d+: | +\[[a-z-]+\]$|builtins\.", "", line)
        for line in lines
        if line and "defined in" not in line
    ]
    assert said == SAYS, done.stdout + done.stderr
