"""`penstock key`: the keys with which programs log in, as in `penstock user key|keys|revoke`."""

from __future__ import annotations

from typing import Any

from penstock.cli.remote import add_remote
from penstock.cli.security.accounts import add_config
from penstock.cli.security.users import (
    add_key_arguments,
    add_key_id,
    list_keys,
    make_key,
    revoke_key,
    show_key,
)


def add_commands(commands: Any) -> None:
    parser = commands.add_parser("key")
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    add = actions.add_parser(
        "add",
        help="create a key of a user; it is shown once",
        description="Create a key of a user and print it; it cannot be shown again. Programs use "
        "it as `Authorization: Bearer KEY` over HTTP and as the password of the user `key` over "
        "MQTT.",
        epilog="example: penstock key add alice --role reader",
    )
    add.set_defaults(run=make_key)
    add_key_arguments(add)
    listing = actions.add_parser("list", help="list the ids of all keys")
    listing.set_defaults(run=list_keys)
    show = actions.add_parser("show", help="show whose a key is, its roles and its age")
    show.set_defaults(run=show_key)
    revoke = actions.add_parser("revoke", help="revoke a key")
    remove = actions.add_parser("remove", help="revoke a key, like `penstock key revoke`")
    for action in (revoke, remove):
        action.set_defaults(run=revoke_key)
    for action in (show, revoke, remove):
        add_key_id(action)
    for action in (add, listing, show, revoke, remove):
        add_remote(action)
        add_config(action)
