"""`penstock migrate`: from one machine to Kafka and PostgreSQL."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from penstock.app.storage import backends
from penstock.broker.settings import make_settings
from penstock.cli.target import add_target
from penstock.config import load, server_settings
from penstock.log.interface import FSYNC, REPLICATED


def add_commands(commands: Any) -> None:
    parser = commands.add_parser(
        "migrate",
        description="Move a data directory that no broker has open into Kafka and PostgreSQL: "
        "topics with all records at the same offsets, sessions, positions, retained messages, "
        "users and rules. The data directory stays as it is. If the command is interrupted, run "
        "it again: it goes on where it was. At the end it compares every record and every row.",
    )
    parser.add_argument(
        "--to",
        metavar="CONFIG",
        required=True,
        help="settings file of the broker to come, with [log] backend, [kafka] and [catalog] url",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="say what will happen and about how long it takes, and change nothing",
    )
    parser.add_argument(
        "--durability",
        choices=[FSYNC, REPLICATED],
        default="",
        help="durability of all topics there (default: fsync stays fsync, os becomes replicated)",
    )
    parser.add_argument(
        "--without-history",
        action="store_true",
        help="leave records behind that are only in the history of a topic",
    )
    add_target(parser, has_tenant=False)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    settings = server_settings(load(Path(options.to)))
    chosen = make_settings(settings.broker)
    backends(chosen)  # says which packages are missing, before they are imported
    from penstock.cli.data.migrating import migrate_directory

    return migrate_directory(options, chosen, settings.data)
