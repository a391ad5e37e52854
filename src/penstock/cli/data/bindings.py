"""`penstock binding add|list|remove`: which topic holds which names."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from penstock.cli.output import show_json, show_table
from penstock.cli.remote import add_remote, reach_broker


def add_commands(commands: Any) -> None:
    parser = commands.add_parser(
        "binding",
        description="Add, list and remove bindings. A binding says which topic holds the names "
        "that match a filter, where only the name is given, as over MQTT; the first one that "
        "matches decides.",
        epilog="example: penstock binding add 'sensors/+/temp' temperatures",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    add = actions.add_parser("add", help="store messages with matching names in this topic")
    add.add_argument("filter", help="filter over names, such as 'sensors/+/temp'")
    add.add_argument("topic", help="name of the topic (not case-sensitive)")
    add.set_defaults(run=add_binding)
    listing = actions.add_parser("list", help="list bindings in the order in which they apply")
    listing.set_defaults(run=list_bindings)
    remove = actions.add_parser("remove", help="remove a binding; stored records stay")
    remove.add_argument("filter", help="filter of the binding")
    remove.set_defaults(run=remove_binding)
    for action in (add, listing, remove):
        add_remote(action)


def add_binding(options: argparse.Namespace) -> None:
    with reach_broker(options) as broker:
        broker.bind(options.filter, options.topic)
    if options.json:
        show_json({"filter": options.filter, "topic": options.topic})
    else:
        print(f"names that match {options.filter} go to topic {options.topic} from now on")


def list_bindings(options: argparse.Namespace) -> None:
    with reach_broker(options) as broker:
        bindings = broker.bindings()
    if options.json:
        show_json([asdict(one) for one in bindings])
    elif bindings:
        show_table(["filter", "topic"], [(one.filter, one.topic) for one in bindings])
    else:
        print("no bindings: a name goes to the topic named like its first level, else to `default`")


def remove_binding(options: argparse.Namespace) -> None:
    with reach_broker(options) as broker:
        broker.unbind(options.filter)
    if options.json:
        show_json({"removed": options.filter})
    else:
        print(f"removed the binding of {options.filter}")
