"""`penstock serve`: a broker that runs until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any, Final

from penstock.app.heap import keep_trimmed
from penstock.app.server import Server, tls_contexts
from penstock.app.storage import backends
from penstock.app.supervisor import serve_nodes
from penstock.app.systemd import READY, STOPPING, ServiceManager
from penstock.broker.access.tokens import Tokens
from penstock.broker.settings import make_settings, mask_password
from penstock.cli.arguments import whole_number
from penstock.cli.output import (
    EXIT_DONE,
    EXIT_UNAVAILABLE,
    UsageError,
    counted,
    human_bytes,
    human_duration,
)
from penstock.cli.server.log_output import LogOutput
from penstock.cli.server.settings import show_effective
from penstock.config import (
    OFF,
    OPTIONAL,
    REQUIRED,
    ServerSettings,
    environment,
    load,
    server_settings,
)
from penstock.core.engine_kind import engine_kind
from penstock.doors.bridge.bridges import check_files
from penstock.doors.descriptors import raise_limit
from penstock.doors.loop import DoorLoop
from penstock.doors.selector import DoorSelector
from penstock.log.files.directory import FILES, KAFKA
from penstock.log.interface import FSYNC, OS, REPLICATED
from penstock.model.clock import SystemClock
from penstock.model.errors import InvalidSetting
from penstock.model.version import VERSION

_ACKNOWLEDGED: Final = {
    FSYNC: "acknowledged messages are on disk",
    OS: "acknowledged messages are handed to the operating system, not yet on disk",
    REPLICATED: "acknowledged messages are on all Kafka brokers in sync, not yet on their disks",
}
# flag's name in the options: path of the setting it sets
FLAGS: Final = {
    "data": "server.data",
    "mqtt": "mqtt.listen",
    "mqtts": "mqtt.tls_listen",
    "http": "http.listen",
    "https": "http.tls_listen",
    "bus": "bus.path",
    "tls_cert": "mqtt.tls_cert",
    "tls_key": "mqtt.tls_key",
    "tls_client_ca": "mqtt.tls_client_ca",
    "tls_client_certificates": "mqtt.tls_client_certificates",
    "allow_anonymous": "access.allow_anonymous",
    "log_level": "log_output.level",
    "log_format": "log_output.format",
}


def add_commands(commands: Any) -> None:
    parser = commands.add_parser(
        "serve",
        description="Open a data directory, listen for clients, and maintain the directory: "
        "retention, sealing, recovery. A flag overrides PENSTOCK_TABLE__KEY in the environment, "
        "which overrides the settings file, which overrides the default.",
    )
    parser.add_argument("--config", metavar="FILE", help="settings file (penstock config init)")
    parser.add_argument(
        "--check", action="store_true", help="check and print the effective settings, then exit"
    )
    parser.add_argument("--json", action="store_true", help="with --check: print JSON")
    parser.add_argument(
        "--nodes",
        type=whole_number,
        default=0,
        metavar="N",
        help="run N nodes on the same ports, each a process of its own; needs topics in Kafka and "
        "the catalog in PostgreSQL",
    )
    parser.add_argument(
        "--data", "--at", metavar="DIR", help="data directory (default: ./penstock_data)"
    )
    _add_listeners(parser)
    _add_tls(parser)
    parser.add_argument(
        "--allow-anonymous",
        action="store_true",
        default=None,
        help="accept clients without a login, from every address",
    )
    parser.add_argument(
        "--log-level",
        choices=["debug", "info", "warning", "error"],
        help="lowest level of the log on standard error (info)",
    )
    parser.add_argument(
        "--log-format", choices=["text", "json"], help="format of the log on standard error (text)"
    )
    parser.set_defaults(run=serve)


def _add_listeners(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--mqtt",
        metavar="HOST:PORT",
        help="listen for MQTT clients, or off (127.0.0.1:1883)",
    )
    parser.add_argument(
        "--mqtts",
        metavar="HOST:PORT",
        help="listen for MQTT clients with TLS, or off (off); usual port 8883",
    )
    parser.add_argument(
        "--http",
        metavar="HOST:PORT",
        help="listen for HTTP clients, or off (127.0.0.1:8090)",
    )
    parser.add_argument(
        "--https",
        metavar="HOST:PORT",
        help="listen for HTTP clients with TLS, or off (off); usual port 8443",
    )
    parser.add_argument(
        "--bus", metavar="PATH", help="socket of the local bus for programs on this machine (off)"
    )


def _add_tls(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tls-cert", metavar="FILE", help="certificate chain of the server, PEM")
    parser.add_argument(
        "--tls-key", metavar="FILE", help="key of the server, PEM, if it is not in --tls-cert"
    )
    parser.add_argument(
        "--tls-client-ca",
        metavar="FILE",
        help="accept client certificates signed by this CA; the common name is the user",
    )
    parser.add_argument(
        "--tls-client-certificates",
        choices=[OPTIONAL, REQUIRED],
        help="optional: clients without a certificate log in with a password (optional)",
    )


def serve(options: argparse.Namespace) -> int:
    given = {path: getattr(options, flag) for flag, path in FLAGS.items()}
    flags = {path: value for path, value in given.items() if value is not None}
    try:
        load(None, flags, {})
    except InvalidSetting as wrong:
        raise UsageError(str(wrong)) from None
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
        return serve_nodes(settings, options.nodes, _repeated(options))
    raise_limit()
    selector = DoorSelector()
    with (
        LogOutput(settings.log_level, settings.log_format),
        asyncio.Runner(loop_factory=lambda: DoorLoop(selector)) as runner,
    ):
        server = Server(settings, selector, lambda: server_settings(load(file, flags)))
        runner.run(_serve(server, settings))
    return EXIT_DONE


def _repeated(options: argparse.Namespace) -> list[str]:
    """What was given on the command line, for each of several nodes."""
    given = [f"--config={options.config}"] if options.config else []
    for flag in FLAGS:
        value = getattr(options, flag)
        if value is True:
            given.append(f"--{flag.replace('_', '-')}")
        elif value is not None:
            given.append(f"--{flag.replace('_', '-')}={value}")
    return given


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
    trimming = asyncio.create_task(keep_trimmed(), name="penstock-heap")
    try:
        await _greet(server, settings)
        manager.tell(READY)
        await stop.wait()
        manager.tell(STOPPING)
        print("stopping: saving positions and closing files", flush=True)
    finally:
        trimming.cancel()
        await server.close()
        feeding.cancel()


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
    print(f"access: {_access(len(engine.access.users()), settings)}")
    print(f"durability: {defaults.durability}, {_ACKNOWLEDGED[defaults.durability]}")
    print(f"retention: {_retention(defaults.retention_age, defaults.retention_bytes)}")
    print(f"engine: {engine_kind()}")
    print("ready; stop with Ctrl-C", flush=True)


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
