"""`penstock group list|show|create|alter|redrive|remove`: readers that share one position."""

from __future__ import annotations

import argparse
from typing import Any

import msgspec

from penstock.cli.arguments import whole_number
from penstock.cli.output import (
    UsageError,
    counted,
    show_facts,
    show_json,
    show_table,
    shown_offsets,
    waiting,
)
from penstock.cli.remote import AnyBroker, add_remote, reach_broker
from penstock.cli.target import allow_negative_positions
from penstock.model.errors import NotSubscribed
from penstock.model.groups import GroupInfo
from penstock.model.record import shown_time


def add_commands(commands: Any) -> None:
    parser = commands.add_parser(
        "group",
        description="List, show, create, alter and remove groups, and redrive their dead letters. "
        "A group is several readers of a topic that share one position. The first fetch creates "
        "it. For MQTT clients with $share see `penstock session`.",
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
    create = actions.add_parser(
        "create",
        help="create a group at a position",
        description="Create a group. If it exists, its position stays and its settings change.",
    )
    allow_negative_positions(create)
    create.add_argument(
        "--from",
        dest="start",
        metavar="POSITION",
        default="earliest",
        help="where to start: earliest, latest, an offset, a time or a duration back such as -24h "
        "(default: earliest)",
    )
    create.set_defaults(run=create_group)
    alter = actions.add_parser("alter", help="change the settings of a group")
    alter.set_defaults(run=alter_group)
    redrive = actions.add_parser(
        "redrive",
        help="put dead letters of a group back into their topic",
        description="Put dead letters of a group back into their topic, under their original "
        "names. Each is put back once, also if the broker crashes meanwhile. They stay in the "
        "dead-letter topic until retention removes them.",
        epilog="example: penstock group redrive orders packers --dry-run --where "
        "\"headers['penstock.dead.reason'] = 'no boxes'\"",
    )
    redrive.set_defaults(run=redrive_group)
    actions_of_a_group = (show, create, alter, redrive, remove)
    for action in (listing, *actions_of_a_group):
        action.add_argument("topic", help="name of the topic (not case-sensitive)")
    for action in actions_of_a_group:
        action.add_argument("group", help="name of the group (case-sensitive)")
    for action in (create, alter):
        _add_settings(action)
    redrive.add_argument(
        "--limit", type=whole_number, metavar="N", help="put back at most N (default: all)"
    )
    redrive.add_argument(
        "--where", metavar="EXPRESSION", help="put back only those that match the expression"
    )
    redrive.add_argument("--dry-run", action="store_true", help="count them, and change nothing")
    for action in (listing, *actions_of_a_group):
        add_remote(action)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--lease",
        dest="lease_s",
        metavar="SECONDS",
        type=float,
        help="seconds after which an unacknowledged record goes to another reader (default: 30)",
    )
    parser.add_argument(
        "--deliveries",
        dest="deliveries_max",
        metavar="N",
        type=int,
        help="deliveries of a record before it becomes a dead letter; 0: no limit (default: 5)",
    )


def list_groups(options: argparse.Namespace) -> None:
    with reach_broker(options) as broker:
        groups = broker.groups(options.topic)
    if options.json:
        show_json(msgspec.to_builtins(groups))
    elif groups:
        headings = ["group", "next", "waiting", "leased", "to repeat"]
        show_table(headings, [_row(one) for one in groups])
    else:
        print(f"topic {options.topic} has no groups")


def show_group(options: argparse.Namespace) -> None:
    with reach_broker(options) as broker:
        found = _find(broker, options)
    if options.json:
        show_json(msgspec.to_builtins(found))
        return
    show_facts(
        [
            ("group", found.group),
            ("next", shown_offsets(found.next_offset)),
            ("waiting", f"{counted(found.lag, 'record')} not yet delivered"),
            ("lease", f"{found.lease_s:g} s"),
            (
                "deliveries",
                f"at most {found.deliveries_max}" if found.deliveries_max else "no limit",
            ),
        ]
    )
    if found.pending:
        print()
        has_partitions = isinstance(found.next_offset, dict)
        show_table(
            [*(["partition"] if has_partitions else []), "offset", "deliveries", "state", "until"],
            [
                [
                    *([one.partition] if has_partitions else []),
                    one.offset,
                    one.deliveries,
                    one.state,
                    _until(one.expires_at),
                ]
                for one in found.pending
            ],
        )


def create_group(options: argparse.Namespace) -> None:
    with reach_broker(options) as broker:
        broker.create_group(
            options.group,
            options.topic,
            start=options.start,
            lease_s=options.lease_s,
            deliveries_max=options.deliveries_max,
        )
        _answer(options, _find(broker, options), "created")


def alter_group(options: argparse.Namespace) -> None:
    if options.lease_s is None and options.deliveries_max is None:
        raise UsageError("nothing to alter: give --lease or --deliveries")
    with reach_broker(options) as broker:
        broker.alter_group(
            options.group,
            options.topic,
            lease_s=options.lease_s,
            deliveries_max=options.deliveries_max,
        )
        _answer(options, _find(broker, options), "altered")


def _answer(options: argparse.Namespace, found: GroupInfo, what: str) -> None:
    if options.json:
        show_json(msgspec.to_builtins(found))
        return
    most = f"at most {found.deliveries_max} deliveries" if found.deliveries_max else "no limit"
    place = shown_offsets(found.next_offset)
    print(f"{what} group {found.group}: next {place}, lease {found.lease_s:g} s, {most}")


def redrive_group(options: argparse.Namespace) -> None:
    what = "counting" if options.dry_run else "putting back"
    with reach_broker(options) as broker, waiting(f"{what} dead letters"):
        count = broker.redrive(
            options.group,
            options.topic,
            limit=options.limit,
            where=options.where,
            dry_run=options.dry_run,
        )
        if not count:
            _find(broker, options)  # a wrong name is no success
    if options.json:
        show_json({"records": count, "dry_run": options.dry_run})
    elif options.dry_run:
        print(f"would put back {counted(count, 'dead letter')} into topic {options.topic}")
    elif not count:
        print(f"group {options.group} of topic {options.topic} has no dead letters to put back")
    else:
        print(f"put back {counted(count, 'dead letter')} into topic {options.topic}")


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
    return (one.group, shown_offsets(one.next_offset), one.lag, leased, len(one.pending) - leased)


def _until(expires_at: int) -> str:
    return shown_time(expires_at) if expires_at else "-"
