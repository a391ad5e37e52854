"""`penstock serve`: a broker that runs until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from typing import Any

from penstock.app.aio import DEFAULT_PATH, AsyncBroker
from penstock.app.engine_kind import engine_kind
from penstock.cli.output import human_bytes, human_duration


def add_commands(commands: Any) -> None:
    parser = commands.add_parser(
        "serve",
        help="run a broker",
        description="Open a data directory and keep it: retention, sealing, recovery.",
    )
    parser.add_argument(
        "--data", metavar="DIR", default=DEFAULT_PATH, help="data directory (./penstock_data)"
    )
    parser.set_defaults(run=serve)


def serve(options: argparse.Namespace) -> None:
    asyncio.run(_serve(options))


async def _serve(options: argparse.Namespace) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with AsyncBroker(options.data) as broker:
        settings = broker.engine.settings
        topics = await broker.topics()
        for note in broker.notes:
            print(f"recovered: {note}", file=sys.stderr)
        print(f"data        {options.data} ({len(topics)} topics)")
        print(f"durability  {settings.durability}")
        print(
            f"retention   {human_duration(settings.retention_age)}, "
            f"{human_bytes(settings.retention_bytes)}"
        )
        print(f"engine      {engine_kind()}")
        print("ready; stop with Ctrl-C", flush=True)
        await stop.wait()
        print("stopping: positions are saved, files are closed", flush=True)
