"""`penstock node`: the nodes that share one Kafka and one PostgreSQL."""

from __future__ import annotations

import argparse
from typing import Any
from urllib.parse import quote

from penstock.cli.output import printable, show_json, show_table
from penstock.cli.remote import add_remote, ask


def add_commands(commands: Any) -> None:
    parser = commands.add_parser("node")
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    listing = actions.add_parser("list", help="list the nodes, their state and their clients")
    listing.set_defaults(run=list_nodes)
    add_remote(listing, has_tenant=False)
    show = actions.add_parser("show", help="show one node")
    show.add_argument("node", metavar="NODE", help="name or incarnation of the node")
    show.set_defaults(run=show_node)
    add_remote(show, has_tenant=False)
    drain = actions.add_parser("drain", help="send the clients of a node to the other nodes")
    drain.add_argument("node", metavar="NODE", help="name or incarnation of the node")
    drain.add_argument("--undo", action="store_true", help="let the node take clients again")
    drain.set_defaults(run=drain_node)
    add_remote(drain, has_tenant=False)


def list_nodes(options: argparse.Namespace) -> None:
    nodes: list[dict[str, Any]] = ask(options, "GET", "/v1/nodes")["nodes"]
    if options.json:
        show_json(nodes)
    elif nodes:
        headings = ["node", "incarnation", "state", "clients", "sessions", "version", "address"]
        show_table(headings, [_row(one) for one in nodes])
    else:
        print("no nodes: this broker shares its catalog with no others ([log] backend 'kafka' and")
        print("[catalog] url 'postgresql://...' make a server a node)")


def show_node(options: argparse.Namespace) -> None:
    _show(options, ask(options, "GET", _path(options)))


def drain_node(options: argparse.Namespace) -> None:
    _show(options, ask(options, "POST", f"{_path(options)}/drain", {"drain": not options.undo}))


def _path(options: argparse.Namespace) -> str:
    return f"/v1/nodes/{quote(options.node, safe='')}"


def _show(options: argparse.Namespace, node: dict[str, Any]) -> None:
    if options.json:
        show_json(node)
        return
    for key, value in node.items():
        print(f"{key}: {printable(str(value))}")


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    name = f"{one['name']} (this one)" if one["is_self"] else one["name"]
    counts = (f"{one[key]:,}" for key in ("clients", "sessions"))
    return (
        printable(name),
        str(one["incarnation"]),
        one["state"],
        *counts,
        one["version"],
        one["address"],
    )
