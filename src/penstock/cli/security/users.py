"""`penstock user`: who may log in, and with which keys.

A password is never taken from the command line, and a key is shown once, when it is made.
"""

from __future__ import annotations

import argparse
import getpass
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from penstock.broker.access import key_id_of
from penstock.cli.mqtt.options import read_password
from penstock.cli.output import show_facts, show_json, show_table
from penstock.cli.remote import add_remote, running_broker
from penstock.cli.security.accounts import (
    Accounts,
    BrokerAccounts,
    DirectoryAccounts,
    User,
    add_config,
    closed_directory,
    no_such_key,
)
from penstock.core.access import ADMIN, OPERATOR, check_user, no_such_user
from penstock.model.errors import RefusedError
from penstock.model.limits import PASSWORD_BYTES_MAX
from penstock.model.record import DEFAULT_TENANT


def add_commands(commands: Any) -> None:
    parser = commands.add_parser("user")
    actions = parser.add_subparsers(title="actions", metavar="ACTION")

    # No abbreviations: what somebody takes for --password would be one of --password-file.
    add = actions.add_parser(
        "add",
        help="add a user; once a user exists, every client must log in",
        allow_abbrev=False,
    )
    add.set_defaults(run=add_user)
    passwd = actions.add_parser("passwd", help="change the password of a user", allow_abbrev=False)
    passwd.set_defaults(run=set_password)
    passwd.add_argument(
        "--keep-keys",
        action="store_true",
        help="keep the keys of the user; otherwise they are revoked with the old password",
    )
    role = actions.add_parser("role", help="give a user exactly these roles")
    role.set_defaults(run=set_roles)
    remove = actions.add_parser("remove", help="remove a user")
    remove.set_defaults(run=remove_user)
    listing = actions.add_parser("list", help="list all users")
    listing.set_defaults(run=list_users)
    show = actions.add_parser("show", help="show a user with roles and keys")
    show.set_defaults(run=show_user)

    key = actions.add_parser("key", help="create a key with which programs log in over HTTP")
    key.set_defaults(run=make_key)
    keys = actions.add_parser("keys", help="list the ids of all keys")
    keys.set_defaults(run=list_keys)
    revoke = actions.add_parser("revoke", help="revoke a key")
    add_key_id(revoke)
    revoke.set_defaults(run=revoke_key)

    for action in (add, passwd, role, remove, show):
        _add_user(action)
    add_key_arguments(key)
    add.add_argument(
        "--role",
        metavar="ROLE",
        action="append",
        help="give the user this role; may be repeated (default: admin for the first user, client "
        "for others)",
    )
    role.add_argument("roles", metavar="ROLE", nargs="*", help="name of a role")
    for action in (add, passwd):
        action.add_argument(
            "--password-file",
            metavar="FILE",
            help="read the password from the first line of FILE; - is standard input, which is "
            "also the default if it is not a terminal",
        )
    for action in (add, passwd, role, remove, listing, show, key, keys, revoke):
        add_remote(action)
        add_config(action)


def add_key_arguments(parser: argparse.ArgumentParser) -> None:
    _add_user(parser)
    parser.add_argument(
        "--role",
        metavar="ROLE",
        action="append",
        help="give the key only this role of the user; may be repeated (default: all roles of the "
        "user)",
    )


def add_key_id(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("key_id", help="id of the key, as in `penstock key list`")


def _add_user(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("user", help="name of the user (case-sensitive)")


def add_user(options: argparse.Namespace) -> None:
    user = check_user(options.user)
    password = _password(options)
    accounts, is_running = _accounts(options, create=True)
    is_first = not accounts.users()
    added = accounts.add(user, password, options.role or ())
    if options.json:
        show_json({"added": user, "roles": list(added.roles)})
        return
    print(f"added user {user} with {_shown_roles(added.roles)}")
    tenant = options.of_tenant
    if tenant and tenant != DEFAULT_TENANT:
        print(f"{user} logs in as {tenant}/{user}")
    if not is_first:
        return
    if added.roles == (ADMIN,):
        print(f"{user} is the first user and therefore an administrator")
    start = "now" if is_running else "the next start"
    print(f"from {start} on, every client must log in")


def set_roles(options: argparse.Namespace) -> None:
    accounts, _ = _accounts(options)
    others = [one for one in accounts.users() if one.user != options.user]
    changed = accounts.set_roles(options.user, options.roles)
    if options.json:
        show_json({"changed": options.user, "roles": list(changed.roles)})
    else:
        print(f"user {options.user} has {_shown_roles(changed.roles)}")
        _warn_without_admin([*others, changed])


def _shown_roles(roles: tuple[str, ...]) -> str:
    if not roles:
        return "no roles"
    return f"the role{'s' if len(roles) > 1 else ''} {', '.join(roles)}"


def set_password(options: argparse.Namespace) -> None:
    accounts, _ = _accounts(options)
    accounts.set_password(options.user, _password(options), keep_keys=options.keep_keys)
    if options.json:
        show_json({"changed": options.user})
    else:
        print(f"changed the password of user {options.user}")


def remove_user(options: argparse.Namespace) -> None:
    accounts, _ = _accounts(options)
    others = [one for one in accounts.users() if one.user != options.user]
    accounts.remove(options.user)
    if options.json:
        show_json({"removed": options.user})
        return
    print(f"removed user {options.user}")
    if not others and not accounts.has_users():
        print("no users are left: clients on this machine need no login")
    _warn_without_admin(others)


def _warn_without_admin(users: list[User]) -> None:
    """Say so if a tenant has users, and none of them can change users any more."""
    if users and not any({ADMIN, OPERATOR} & set(one.roles) for one in users):
        print(
            "no administrator is left: only commands on the data directory (--at DIR) can change "
            "users now"
        )


def list_users(options: argparse.Namespace) -> None:
    accounts, _ = _accounts(options)
    rows = [
        (one.user, ", ".join(one.roles), _time(one.created_at), _time(one.changed_at))
        for one in accounts.users()
    ]
    _show(
        options,
        ("user", "roles", "created", "password_set"),
        rows,
        "no users yet: add one with `penstock user add NAME`",
    )


def show_user(options: argparse.Namespace) -> None:
    accounts, _ = _accounts(options)
    found = [one for one in accounts.users() if one.user == options.user]
    if not found:
        raise no_such_user(options.user)
    (one,) = found
    keys = [key.key_id for key in accounts.access_keys() if key.user == one.user]
    created, changed = _time(one.created_at), _time(one.changed_at)
    if options.json:
        times = {"created": created, "password_set": changed}
        show_json({"user": one.user, "roles": list(one.roles), **times, "keys": keys})
        return
    show_facts([("user", one.user), ("roles", ", ".join(one.roles) or "none")])
    show_facts([("created", created), ("password", f"set {changed}")])
    show_facts([("keys", ", ".join(keys) or "none")])


def make_key(options: argparse.Namespace) -> None:
    accounts, _ = _accounts(options)
    made = accounts.make_key(options.user, options.role or ())
    if options.json:
        show_json({"user": options.user, "key": made, "key_id": key_id_of(made)})
    else:
        print(made)


def list_keys(options: argparse.Namespace) -> None:
    accounts, _ = _accounts(options)
    keys = accounts.access_keys()
    rows = [(one.key_id, one.user, ", ".join(one.roles), _time(one.created_at)) for one in keys]
    _show(
        options,
        ("key_id", "user", "roles", "created"),
        rows,
        "no keys yet: create one with `penstock key add NAME`",
    )


def show_key(options: argparse.Namespace) -> None:
    accounts, _ = _accounts(options)
    found = [one for one in accounts.access_keys() if one.key_id == options.key_id]
    if not found:
        raise no_such_key(options.key_id)
    (one,) = found
    if options.json:
        facts = {"key_id": one.key_id, "user": one.user, "roles": list(one.roles)}
        show_json({**facts, "created": _time(one.created_at)})
        return
    roles = ", ".join(one.roles) or f"those of {one.user}"
    show_facts([("key", one.key_id), ("user", one.user), ("roles", roles)])
    show_facts([("created", _time(one.created_at))])


def revoke_key(options: argparse.Namespace) -> None:
    accounts, _ = _accounts(options)
    accounts.revoke(options.key_id)
    if options.json:
        show_json({"revoked": options.key_id})
    else:
        print(f"revoked key {options.key_id}")


def _show(
    options: argparse.Namespace,
    headings: tuple[str, ...],
    rows: Sequence[tuple[str, ...]],
    advice: str,
) -> None:
    if options.json:
        show_json([dict(zip(headings, row, strict=True)) for row in rows])
    elif rows:
        show_table([heading.replace("_", " ") for heading in headings], rows)
    else:
        print(advice)


def _accounts(options: argparse.Namespace, *, create: bool = False) -> tuple[Accounts, bool]:
    """The users that are meant, and whether a running broker has them."""
    broker = running_broker(options)
    if broker is not None:
        return BrokerAccounts(broker), True
    return DirectoryAccounts(closed_directory(options, create=create)), False


def _time(timestamp_us: int) -> str:
    moment = datetime.fromtimestamp(timestamp_us // 1_000_000, UTC)
    return moment.isoformat().replace("+00:00", "Z")


def _password(options: argparse.Namespace) -> bytes:
    """From the file, from standard input, or asked for twice at the terminal."""
    password = _given_password(options)
    if not 1 <= len(password) <= PASSWORD_BYTES_MAX:
        raise RefusedError(
            f"the password has {len(password):,} bytes: use 1 to {PASSWORD_BYTES_MAX:,} bytes"
        )
    return password


def _given_password(options: argparse.Namespace) -> bytes:
    if options.password_file not in (None, "-"):
        return read_password(options.password_file)
    if options.password_file == "-" or not sys.stdin.isatty():
        return sys.stdin.buffer.readline().removesuffix(b"\n").removesuffix(b"\r")
    password = getpass.getpass(f"password of {options.user}: ")
    if getpass.getpass("repeat the password: ") != password:
        raise RefusedError("the two passwords are different: nothing was changed")
    return password.encode()
