"""`penstock session list|show|kick|remove`: the MQTT clients of a running broker."""

from __future__ import annotations

import argparse
from typing import Any
from urllib.parse import quote

from penstock.cli.output import human_duration, printable, show_facts, show_json, show_table
from penstock.cli.remote import add_remote, ask
from penstock.model.errors import RefusedError

NEVER_EXPIRES = 0xFFFF_FFFF


def add_commands(commands: Any) -> None:
    parser = commands.add_parser("session")
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    listing = actions.add_parser(
        "list", help="list connected clients and stored sessions, with their waiting messages"
    )
    listing.set_defaults(run=list_sessions)
    show = actions.add_parser("show", help="show a session with its filters")
    show.set_defaults(run=show_session)
    kick = actions.add_parser(
        "kick", help="close the connection of a client; the client may reconnect"
    )
    kick.add_argument(
        "--forget", action="store_true", help="also delete the session and its waiting messages"
    )
    kick.set_defaults(run=kick_client)
    remove = actions.add_parser(
        "remove", help="close the connection of a client and delete its session"
    )
    remove.set_defaults(run=remove_session)
    for action in (show, kick, remove):
        action.add_argument(
            "client_id", help="client id, as in `penstock session list` (case-sensitive)"
        )
    for action in (listing, show, kick, remove):
        add_remote(action)


def list_sessions(options: argparse.Namespace) -> None:
    sessions: list[dict[str, Any]] = []
    after: str | None = None
    while True:
        query = "" if after is None else f"?after={quote(after, safe='')}"
        page = ask(options, "GET", f"/v1/sessions{query}")
        sessions += page["sessions"]
        after = page["after"]
        if after is None:
            break
    if options.json:
        show_json(sessions)
    elif sessions:
        headings = ["client", "user", "connected", "filters", "unacked", "waiting", "expiry"]
        show_table(headings, [_row(one) for one in sessions])
    else:
        print("no clients are connected, and no sessions are stored")


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    return (
        one["client_id"],
        one["user"] or "-",
        "yes" if one["is_connected"] else "no",
        str(one["subscriptions"]),
        str(one["outstanding"]),
        _waiting(one),
        _stays(one["expiry_s"]),
    )


def _waiting(one: dict[str, Any]) -> str:
    return str(one["waiting"]) if one["is_exact"] else f"{one['waiting']}+"


def _stays(expiry_s: int) -> str:
    """How long the session outlives its connection."""
    if expiry_s == 0:
        return "-"
    return "never" if expiry_s == NEVER_EXPIRES else human_duration(float(expiry_s))


def show_session(options: argparse.Namespace) -> None:
    one = ask(options, "GET", _path(options.client_id))
    if options.json:
        show_json(one)
        return
    show_facts(
        [
            ("client", one["client_id"]),
            ("user", one["user"] or "-"),
            ("connected", "yes" if one["is_connected"] else "no"),
            ("expiry", _stays(one["expiry_s"])),
            ("unacked", f"{one['outstanding']} messages sent and not acknowledged"),
            ("waiting", f"{_waiting(one)} messages"),
            *(("filter", f"{each['filter']} (QoS {each['qos']})") for each in one["filters"]),
        ]
    )


def _path(client_id: str) -> str:
    if not client_id:
        raise RefusedError("the client id is empty: `penstock session list` lists all client ids")
    return f"/v1/sessions/{quote(client_id, safe='')}"


def remove_session(options: argparse.Namespace) -> None:
    ask(options, "DELETE", _path(options.client_id))
    if options.json:
        show_json({"removed": options.client_id})
    else:
        print(f"deleted the session of {printable(options.client_id)}")


def kick_client(options: argparse.Namespace) -> None:
    path = f"{_path(options.client_id)}/kick"
    done = ask(options, "POST", path, {"forget": options.forget})
    if options.json:
        show_json(done)
    elif done["forgotten"]:
        print(f"deleted the session of {printable(options.client_id)}")
    elif done["was_connected"]:
        print(f"closed the connection of {printable(options.client_id)}")
    else:
        raise RefusedError(
            f"client {options.client_id!r} is not connected: use --forget to delete its session"
        )
