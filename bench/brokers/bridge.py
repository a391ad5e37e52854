"""Bridges: messages of QoS 1 published here, acknowledged there, by the bridge of each broker.

The other side is a Mosquitto of its own for each.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Final

from bench.engines import Engine
from bench.measure import Row
from bench.mqtt.flows import acknowledged
from bench.mqtt.rows import compare
from bench.mqtt.servers import HOST, MOSQUITTO_NAME, SERVE, Server, free_port, start_mosquitto
from bench.mqtt.wire import NAME, subscribe
from bench.run import Bench

WINDOWS: Final = (1, 100)
MOSQUITTO_BRIDGE: Final = """\
connection there
address 127.0.0.1:{port}
topic bench/# out 1
cleansession false
"""
PENSTOCK_BRIDGE: Final = """\
[[bridges]]
name = "there"
address = "mqtt://127.0.0.1:{port}"

[[bridges.topics]]
filter = "bench/#"
direction = "out"
qos = 1
"""


def bridge_rows(bench: Bench) -> Iterator[Row]:
    """Published on one side, counted when a subscriber of the other side has it."""
    bench = replace(bench, engines=bench.fastest)
    for window in WINDOWS:
        with bench.scratch() as directory, ExitStack() as stack:
            yield _bridge_row(bench, directory, stack, window)


def _bridge_row(bench: Bench, directory: Path, stack: ExitStack, window: int) -> Row:
    running: dict[str, Server] = {}
    names = (MOSQUITTO_NAME, *(one.name for one in bench.engines))
    there = {name: _run(stack, start_mosquitto(directory)) for name in names}
    for engine in bench.engines:
        server = start_bridging(engine, directory / engine.name, there[engine.name].port)
        running[engine.name] = _run(stack, server)
    bridge = MOSQUITTO_BRIDGE.format(port=there[MOSQUITTO_NAME].port)
    running[MOSQUITTO_NAME] = _run(stack, start_mosquitto(directory, more=bridge))

    def turn(server: Server) -> float:
        with subscribe(there[server.name], "bench/#", 1) as reader:
            return acknowledged(server, NAME, 1, window, [reader])(bench.turn_s)

    return compare(bench, f"bridge, QoS 1, {window} in flight", running, turn, None)


def _run(stack: ExitStack, server: Server) -> Server:
    stack.callback(server.stop)
    server.wait_ready()
    return server


def start_bridging(engine: Engine, directory: Path, port: int) -> Server:
    """A Penstock that hands on what it stores."""
    own = free_port()
    settings = directory.with_suffix(".toml")
    settings.write_text(PENSTOCK_BRIDGE.format(port=port))
    command = [sys.executable, "-c", SERVE, "serve", "--data", str(directory)]
    command += ["--config", str(settings), "--mqtt", f"{HOST}:{own}", "--http", "off"]
    child = Popen([*command, *engine.quiet], env=engine.environment, stdout=DEVNULL)
    return Server(engine.name, own, child)
