"""`penstock bridge list`: the bridges of a running broker to other MQTT brokers."""

from __future__ import annotations

import argparse
from typing import Any

from penstock.cli.output import printable, show_json, show_table
from penstock.cli.remote import add_remote, ask


def add_commands(commands: Any) -> None:
    parser = commands.add_parser("bridge")
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    listing = actions.add_parser(
        "list", help="list the bridges of a running broker, their state and their counts"
    )
    listing.set_defaults(run=list_bridges)
    add_remote(listing)


def list_bridges(options: argparse.Namespace) -> None:
    bridges: list[dict[str, Any]] = ask(options, "GET", "/v1/bridges")["bridges"]
    if options.json:
        show_json(bridges)
    elif bridges:
        headings = ["bridge", "address", "state", "forwarded", "received", "refused", "behind"]
        show_table(headings, [_row(one) for one in bridges])
        for one in bridges:
            if one["error"]:
                print(f"{one['name']}: {printable(one['error'])}")
    else:
        print("no bridges: declare them with [[bridges]] in the settings file")


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    counts = (f"{one[key]:,}" for key in ("forwarded", "received", "refused", "lag"))
    return (one["name"], one["address"], one["state"], *counts)
