"""`penstock serve`: a broker that runs until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

from penstock.app.aio import DEFAULT_PATH
from penstock.app.engine_kind import engine_kind
from penstock.app.server import Server, ServerSettings, make_loop
from penstock.cli.output import human_bytes, human_duration
from penstock.doors.selector import DoorSelector


def add_commands(commands: Any) -> None:
    parser = commands.add_parser(
        "serve",
        help="run a broker",
        description="Open a data directory, listen for clients, and keep the directory in order: "
        "retention, sealing, recovery.",
    )
    parser.add_argument(
        "--data", metavar="DIR", default=DEFAULT_PATH, help="data directory (./penstock_data)"
    )
    parser.add_argument(
        "--mqtt",
        metavar="HOST:PORT",
        default="127.0.0.1:1883",
        help="where MQTT clients connect, or off (127.0.0.1:1883)",
    )
    parser.add_argument(
        "--allow-anonymous",
        action="store_true",
        help="let anybody in from any address; without it only this machine may connect",
    )
    parser.set_defaults(run=serve)


def serve(options: argparse.Namespace) -> None:
    selector = DoorSelector()
    settings = ServerSettings(Path(options.data), options.mqtt, options.allow_anonymous)
    with asyncio.Runner(loop_factory=lambda: make_loop(selector)) as runner:
        runner.run(_serve(Server(settings, selector), settings))


async def _serve(server: Server, settings: ServerSettings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await server.open()
    try:
        await _greet(server, settings)
        await stop.wait()
        print("stopping: positions are saved, files are closed", flush=True)
    finally:
        await server.close()


async def _greet(server: Server, settings: ServerSettings) -> None:
    defaults = server.broker.engine.settings
    topics = await server.broker.topics()
    for note in server.broker.notes:
        print(f"recovered: {note}", file=sys.stderr)
    print(f"data        {settings.data} ({len(topics)} topics)")
    for address in server.addresses:
        print(f"listening   {address}")
    print(f"durability  {defaults.durability}")
    print(
        f"retention   {human_duration(defaults.retention_age)}, "
        f"{human_bytes(defaults.retention_bytes)}"
    )
    print(f"engine      {engine_kind()}")
    print("ready; stop with Ctrl-C", flush=True)
