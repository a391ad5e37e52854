"""What `penstock serve` does: a broker that runs until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from penstock.app.heap import collect_less_often, keep_trimmed
from penstock.app.server import Server, tls_contexts
from penstock.app.storage import backends
from penstock.app.supervisor import serve_nodes
from penstock.app.systemd import READY, STOPPING, ServiceManager
from penstock.broker.access.tokens import Tokens
from penstock.broker.settings import make_settings, mask_password
from penstock.cli.output import (
    EXIT_DONE,
    EXIT_UNAVAILABLE,
    counted,
    human_bytes,
    human_duration,
)
from penstock.cli.server.log_output import LogOutput
from penstock.cli.server.settings import show_effective
from penstock.config import OFF, ServerSettings, environment, load, server_settings
from penstock.core.engine_kind import engine_kind
from penstock.doors.bridge.bridges import check_files
from penstock.doors.descriptors import raise_limit
from penstock.doors.loop import DoorLoop
from penstock.doors.selector import DoorSelector
from penstock.log.files.directory import FILES, KAFKA
from penstock.log.interface import FSYNC, OS, REPLICATED
from penstock.model.clock import SystemClock
from penstock.model.version import VERSION

_ACKNOWLEDGED: Final = {
    FSYNC: "acknowledged messages are on disk",
    OS: "acknowledged messages are handed to the operating system, not yet on disk",
    REPLICATED: "acknowledged messages are on all Kafka brokers in sync, not yet on their disks",
}


def run_server(options: argparse.Namespace, flags: dict[str, Any], repeated: list[str]) -> int:
    """`flags` are settings of the command line, `repeated` that line for each of several nodes."""
    file = Path(options.config) if options.config else None
    effective = load(file, flags)
    settings = server_settings(effective)
    if options.check:
        tls_contexts(settings)
        check_files(settings.bridges)
        backends(make_settings(settings.broker))
        if settings.tokens is not None:
            Tokens(settings.tokens, SystemClock())
        show_effective(effective, as_json=options.json)
        return EXIT_DONE
    if options.nodes:
        return serve_nodes(settings, options.nodes, repeated)
    raise_limit()
    selector = DoorSelector()
    with (
        LogOutput(settings.log_level, settings.log_format),
        asyncio.Runner(loop_factory=lambda: DoorLoop(selector)) as runner,
    ):
        server = Server(settings, selector, lambda: server_settings(load(file, flags)))
        runner.run(_serve(server, settings))
    return EXIT_DONE


async def _serve(server: Server, settings: ServerSettings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)  # until there is something to reload
    manager = ServiceManager(environment())
    feeding = asyncio.create_task(manager.feed_watchdog(), name="penstock-watchdog")
    server.on_ended.append(_end_node)
    await server.open()
    loop.add_signal_handler(signal.SIGHUP, server.reload_by_signal)
    collect_less_often()
    trimming = asyncio.create_task(keep_trimmed(), name="penstock-heap")
    try:
        await _greet(server, settings)
        manager.tell(READY)
        await stop.wait()
        manager.tell(STOPPING)
        server.leave()
        if settings.node is not None and settings.node.stop_delay_s:
            await _linger(settings.node.stop_delay_s, stop)
        print("stopping: saving positions and closing files", flush=True)
    finally:
        trimming.cancel()
        await server.close()
        feeding.cancel()


async def _linger(delay_s: int, stop: asyncio.Event) -> None:
    """Serve on until load balancers have noticed; a second signal ends that."""
    print(
        f"stopping in {delay_s} s: /readyz answers 503 meanwhile; send the signal again to stop "
        "at once",
        flush=True,
    )
    stop.clear()
    with suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), delay_s)


def _end_node(reason: str) -> None:
    """Other nodes take over what this one had: nothing may be answered from now on."""
    print(
        f"penstock: this node ends: {reason}; other nodes take over its clients; start it again",
        file=sys.stderr,
        flush=True,
    )
    os._exit(EXIT_UNAVAILABLE)


async def _greet(server: Server, settings: ServerSettings) -> None:
    """Say what holds, one fact per line; `ready` comes last."""
    engine = server.broker.engine
    defaults = engine.settings
    topics = await server.broker.topics()
    print(f"penstock {VERSION}")
    print(f"data: {settings.data} ({counted(len(topics), 'topic')})")
    for topic in topics:
        if not topic.is_available:
            print(f"unavailable: topic {topic.topic}, because files are damaged or missing")
    if defaults.catalog_url:
        where = mask_password(defaults.catalog_url)
        print(f"catalog: {where}, schema {defaults.catalog_schema}")
    if defaults.log_backend == KAFKA:
        print(
            f"topics: Kafka at {defaults.kafka_bootstrap}, prefix {defaults.kafka_prefix}, "
            f"replication {defaults.kafka_replication}"
        )
    elif defaults.log_backend != FILES:
        print("topics: tables in the catalog's database")
    node = engine.shared.node
    if node is not None:
        print(f"node: {node.name}, incarnation {node.inc}, lease {node.lease_s:g} s")
    for address in server.addresses:
        print(f"listening: {address}")
    for address in [one for one in server.addresses if one.startswith("http")][:1]:
        print(f"console: {_for_browsers(address)}")
    print(f"access: {_access(len(engine.access.users()), settings)}")
    print(f"durability: {defaults.durability}, {_ACKNOWLEDGED[defaults.durability]}")
    print(f"retention: {_retention(defaults.retention_age, defaults.retention_bytes)}")
    print(f"engine: {engine_kind()}")
    print("ready; stop with Ctrl-C", flush=True)


def _for_browsers(address: str) -> str:
    """Listening on all addresses is no address to open."""
    return re.sub(r"//(0\.0\.0\.0|\[::\]):", "//localhost:", address) + "/"


def _access(users: int, settings: ServerSettings) -> str:
    """Who may log in, and how."""
    tls = settings.tls
    takes_any = tls is not None and not tls.demands_client
    ways = []
    if takes_any or {settings.mqtt, settings.http, settings.https} != {OFF}:
        if settings.allow_anonymous:
            ways.append(f"anyone (--allow-anonymous), and {counted(users, 'user')}")
        elif users or settings.tokens is not None:
            ways.append(f"{counted(users, 'user')}, login required")
        else:
            ways.append("anyone on this machine, until `penstock user add`")
    if settings.tokens is not None:
        ways.append(f"bearers of tokens that {settings.tokens.issuer} signs")
    if tls is not None and tls.client_ca is not None:
        must = "only with" if tls.demands_client else "also with"
        ways.append(f"on mqtts {must} a client certificate, whose common name is the user")
    if settings.bus != OFF:
        ways.append("on the bus only programs of this system user")
    return "; ".join(ways)


def _retention(age: float | None, size: int | None) -> str:
    shown_age = "no age limit" if age is None else human_duration(age)
    shown_size = "no size limit" if size is None else f"{human_bytes(size)} per topic"
    return f"{shown_age}, {shown_size}"
