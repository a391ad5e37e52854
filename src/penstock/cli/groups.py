"""`penstock group list|show|remove`: readers over HTTP that share one position."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from penstock.cli.output import show_facts, show_json, show_table
from penstock.cli.remote import AnyBroker, add_remote, reach_broker
from penstock.model.errors import NotSubscribed
from penstock.model.groups import GroupInfo
from penstock.model.record import shown_time


def add_commands(commands: Any) -> None:
    parser = commands.add_parser(
        "group",
        description="A group is several readers of a topic that share one position. It is made by "
        "the first fetch over HTTP; MQTT clients share with $share and have sessions instead.",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    listing = actions.add_parser("list", help="groups of a topic and what they have waiting")
    listing.set_defaults(run=list_groups)
    show = actions.add_parser("show", help="one group with every record that is not done")
    show.set_defaults(run=show_group)
    remove = actions.add_parser("remove", help="forget a group and its position")
    remove.set_defaults(run=remove_group)
    for action in (listing, show, remove):
        action.add_argument("topic", help="its name; letter case does not count")
    for action in (show, remove):
        action.add_argument("group", help="as `penstock group list` shows it; letter case counts")
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
            ("waiting", f"{found.lag} records that were never given out"),
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
        f"topic {options.topic!r} has no group {options.group!r} (letter case counts): "
        f"see `penstock group list {options.topic}`"
    )


def _row(one: GroupInfo) -> tuple[object, ...]:
    leased = sum(record.state == "leased" for record in one.pending)
    return (one.group, one.next_offset, one.lag, leased, len(one.pending) - leased)


def _until(expires_at: int) -> str:
    return shown_time(expires_at) if expires_at else "-"
