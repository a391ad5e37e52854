"""`penstock serve`: its options. What runs is in running.py, loaded once they are right."""

from __future__ import annotations

import argparse
from typing import Any, Final

from penstock.cli.arguments import whole_number
from penstock.cli.output import UsageError
from penstock.config import OPTIONAL, REQUIRED, load
from penstock.model.errors import InvalidSetting

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
    from penstock.cli.server.running import run_server  # a wrong option need not wait for it

    return run_server(options, flags, _repeated(options))


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
