"""`penstock group list|show|remove`: readers over HTTP that share one position."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from penstock.cli.output import counted, show_facts, show_json, show_table
from penstock.cli.remote import AnyBroker, add_remote, reach_broker
from penstock.model.errors import NotSubscribed
from penstock.model.groups import GroupInfo
from penstock.model.record import shown_time


def add_commands(commands: Any) -> None:
    parser = commands.add_parser(
        "group",
        description="List, show and remove groups. A group is several readers of a topic that "
        "share one position. The first fetch over HTTP creates it. For MQTT clients with $share "
        "see `penstock session`.",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    listing = actions.add_parser(
        "list", help="list the groups of a topic and their waiting records"
    )
    listing.set_defaults(run=list_groups)
    show = actions.add_parser("show", help="show a group and its unacknowledged records")
    show.set_defaults(run=show_group)
    remove = actions.add_parser("remove", help="remove a group and its position")
    remove.set_defaults(run=remove_group)
    for action in (listing, show, remove):
        action.add_argument("topic", help="name of the topic (not case-sensitive)")
    for action in (show, remove):
        action.add_argument("group", help="name of the group (case-sensitive)")
    for action in (listing, show, remove):
        add_remote(action)


def list_groups(options: argparse.Namespace) -> None:
    with reach_broker(options) as broker:
        groups = broker.groups(options.topic)
    if options.json:
        show_json([asdict(one) for one in groups])
    elif groups:
        headings = ["group", "next", "waiting", "leased", "to repeat"]
        show_table(headings, [_row(one) for one in groups])
    else:
        print(f"topic {options.topic} has no groups")


def show_group(options: argparse.Namespace) -> None:
    with reach_broker(options) as broker:
        found = _find(broker, options)
    if options.json:
        show_json(asdict(found))
        return
    show_facts(
        [
            ("group", found.group),
            ("next", found.next_offset),
            ("waiting", f"{counted(found.lag, 'record')} not yet delivered"),
        ]
    )
    if found.pending:
        print()
        show_table(
            ["offset", "deliveries", "state", "until"],
            [
                [one.offset, one.deliveries, one.state, _until(one.expires_at)]
                for one in found.pending
            ],
        )


def remove_group(options: argparse.Namespace) -> None:
    with reach_broker(options) as broker:
        broker.remove_group(options.group, options.topic)
    if options.json:
        show_json({"removed": options.group})
    else:
        print(f"removed group {options.group}")


def _find(broker: AnyBroker, options: argparse.Namespace) -> GroupInfo:
    for one in broker.groups(options.topic):
        if one.group == options.group:
            return one
    raise NotSubscribed(
        f"topic {options.topic!r} has no group {options.group!r} (names are case-sensitive): "
        f"see `penstock group list {options.topic}`"
    )


def _row(one: GroupInfo) -> tuple[object, ...]:
    leased = sum(record.state == "leased" for record in one.pending)
    return (one.group, one.next_offset, one.lag, leased, len(one.pending) - leased)


def _until(expires_at: int) -> str:
    return shown_time(expires_at) if expires_at else "-"
