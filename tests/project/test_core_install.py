"""Does everything but Spark work with the core dependencies, and load nothing else?"""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import __version__
from penstock.cli.main import COMMANDS
from tests.doors.served import Served
from tests.project.core_install import OPTIONAL, run_core

pytestmark = pytest.mark.slow  # each test starts processes

# What takes a while to import, and only a broker or a stream of requests needs.
HEAVY = {"argon2", "asyncio", "concurrent.futures", "crc32c", "http.client", "logging", "ssl"}
HEAVY |= {"websockets", "penstock.app.aio", "penstock.broker.engine", "penstock.client.aio"}
HEAVY |= {"penstock.config.known", "penstock.core.where", "penstock.doors", "penstock.mqtt"}
HEAVY |= {"penstock.pipeline", *OPTIONAL}

API = """
from penstock import Broker

with Broker("data") as broker:
    broker.create_topic("t")
    broker.publish_many([{"celsius": c} for c in (19, 35)], "t")
    broker.subscribe("me", "t")
    print([record.value for record in broker.consume("me", "t", where="payload.celsius > 30")])
"""
SERVED = """
import asyncio
from pathlib import Path
from penstock import connect
from penstock.aio import connect as connect_async
from penstock.app.server import Server
from penstock.config import load, server_settings
from penstock.doors.loop import DoorLoop
from penstock.doors.selector import DoorSelector

async def serve(selector):
    flags = {"server.data": "data", "mqtt.listen": "off", "http.listen": "127.0.0.1:0"}
    server = Server(server_settings(load(None, flags)), selector)
    await server.open()
    try:
        url = next(one for one in server.addresses if one.startswith("http"))
        print(await asyncio.to_thread(talk, url))
        async with connect_async(url) as client:
            print([one.topic for one in await client.topics()])
    finally:
        await server.close()

def talk(url):
    with connect(url) as client:
        client.create_topic("t")
        return client.publish("x", "t")

selector = DoorSelector()
with asyncio.Runner(loop_factory=lambda: DoorLoop(selector)) as runner:
    runner.run(serve(selector))
"""


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(tmp_path: Path, command: str) -> None:
    ended = run_core("penstock", command, "--help", cwd=tmp_path)
    assert ended.code == 0 and ended.out.startswith(f"usage: penstock {command}"), ended.err
    assert not OPTIONAL & ended.imported


def test_the_command_line_loads_only_the_chosen_command(tmp_path: Path) -> None:
    parts = {"penstock", "penstock.cli", "penstock.cli.main", "penstock.cli.output"}
    parts |= {"penstock.model", "penstock.model.errors", "penstock.model.version"}
    version = run_core("penstock", "--version", cwd=tmp_path)
    assert version.out == f"penstock {__version__}\n" and version.of_penstock() == parts
    explained = run_core("penstock", "--help", cwd=tmp_path)
    assert explained.code == 0 and explained.of_penstock() == parts
    listed = [line.split()[0] for line in explained.out.splitlines() if line.startswith("    ")]
    assert [name for name in listed if name in COMMANDS] == list(COMMANDS)
    for help_first in (["--help", "consume"], ["-h", "topic", "list"]):
        assert run_core("penstock", *help_first, cwd=tmp_path).out == explained.out
    assert run_core("penstock", "nonsense", cwd=tmp_path).code == 2


def test_a_list_of_topics_loads_neither_a_broker_nor_an_event_loop(tmp_path: Path) -> None:
    assert run_core("penstock", "topic", "create", "t", cwd=tmp_path).code == 0
    listed = run_core("penstock", "topic", "list", cwd=tmp_path)
    assert listed.code == 0 and "\nt " in listed.out
    assert not listed.imported & (HEAVY | {"httptools"})
    with Served(tmp_path / "penstock_data") as served:
        for at in ("penstock_data", f"http://127.0.0.1:{served.http_port}"):
            asked = run_core("penstock", "topic", "list", "--at", at, cwd=tmp_path)
            assert (asked.code, asked.out) == (0, listed.out)
            assert not asked.imported & (HEAVY | {"lz4", "sqlite3"})


def test_a_server_loads_neither_pipelines_nor_websockets_before_they_are_needed(
    tmp_path: Path,
) -> None:
    checked = run_core("penstock", "serve", "--check", cwd=tmp_path)
    assert checked.code == 0 and "penstock.app.server" in checked.imported
    unused = {"crc32c", "http.client", "penstock.client", "penstock.pipeline", "websockets"}
    assert not checked.imported & unused


def test_a_broker_runs_in_the_program(tmp_path: Path) -> None:
    ended = run_core("-c", API, cwd=tmp_path)
    assert (ended.code, ended.out, ended.err) == (0, "[{'celsius': 35}]\n", "")
    assert not OPTIONAL & ended.imported


def test_the_server_and_its_clients_talk_to_each_other(tmp_path: Path) -> None:
    ended = run_core("-c", SERVED, cwd=tmp_path)
    assert (ended.code, ended.out) == (0, "0\n['t']\n"), ended.err
    assert not OPTIONAL & ended.imported


@pytest.mark.parametrize(
    "arguments",
    [
        "run archive t --to x",
        "run clean x",
        "run dispatch",
        "run replay t --into u --checkpoint c",
        "run sql means.toml",
        "run stats",
        "check means.toml",
    ],
)
def test_a_command_that_needs_spark_says_what_to_install(tmp_path: Path, arguments: str) -> None:
    ended = run_core("penstock", "pipeline", *arguments.split(), cwd=tmp_path)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == (
        "penstock: jobs and pipelines run on Spark, which needs packages that are not installed "
        "(pyspark, pandas, pyarrow, deltalake, matplotlib): pip install 'penstock[spark]'\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "call",
    [
        "archive('t', 'x')",
        "check('x.toml')",
        "clean('x')",
        "dispatch()",
        "replay('t', 'u', checkpoint='c')",
        "session()",
        "sql('x.toml')",
        "stats()",
    ],
)
def test_a_function_that_needs_spark_says_what_to_install(tmp_path: Path, call: str) -> None:
    name = call.partition("(")[0]
    ended = run_core("-c", f"from penstock.pipeline import {name}; {call}", cwd=tmp_path)
    assert "RefusedError: " in ended.err and "pip install 'penstock[spark]'" in ended.err
    assert list(tmp_path.iterdir()) == []


def test_spark_without_the_extra_is_told_what_the_format_needs(tmp_path: Path) -> None:
    ended = run_core("-c", "import pyspark_penstock", cwd=tmp_path)
    assert "ImportError: " in ended.err and "pip install 'penstock[spark]'" in ended.err


def test_jobs_that_have_run_are_listed_without_spark(tmp_path: Path) -> None:
    assert run_core("penstock", "topic", "create", "t", cwd=tmp_path).code == 0
    ended = run_core("penstock", "pipeline", "list", cwd=tmp_path)
    assert ended.out == "no runs yet: start one with `penstock pipeline run JOB`\n"
    assert not OPTIONAL & ended.imported


def test_topics_in_kafka_without_the_extra_are_told_what_to_install(tmp_path: Path) -> None:
    chosen = "log_backend='kafka', kafka_bootstrap='127.0.0.1:1'"
    ended = run_core("-c", f"from penstock import Broker; Broker('data', {chosen})", cwd=tmp_path)
    assert "needs" not in ended.out and "pip install 'penstock[kafka]'" in ended.err
