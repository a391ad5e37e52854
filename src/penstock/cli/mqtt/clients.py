"""`penstock client list|show|forget`: the MQTT clients that a broker remembers.

They are those of a running broker, or of a data directory that no broker has open.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import quote

from penstock.catalog.access.clients import ClientCatalog, KnownClient
from penstock.cli.output import printable, show_facts, show_json, show_table, shown_time
from penstock.cli.remote import add_remote, ask, served_at
from penstock.cli.target import filled_path
from penstock.config import storage_settings
from penstock.core.naming.names import quoted
from penstock.model.errors import RefusedError
from penstock.model.record import DEFAULT_TENANT

T = TypeVar("T")
Client = dict[str, Any]
PAGE_CLIENTS = 1_000


def add_commands(commands: Any) -> None:
    parser = commands.add_parser("client")
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    listing = actions.add_parser("list", help="list the MQTT clients that connected at any time")
    listing.set_defaults(run=list_clients)
    show = actions.add_parser("show", help="show a client: its user, credential and last address")
    show.set_defaults(run=show_client)
    forget = actions.add_parser(
        "forget", help="forget a client that is not connected and has no session"
    )
    forget.set_defaults(run=forget_client)
    for action in (show, forget):
        action.add_argument(
            "client_id", help="client id, as in `penstock client list` (case-sensitive)"
        )
    for action in (listing, show, forget):
        add_remote(action)


def list_clients(options: argparse.Namespace) -> None:
    found = _all(options)
    if options.json:
        show_json(found)
    elif found:
        headings = ["client", "user", "credential", "connected", "last seen", "address"]
        show_table(headings, [_row(one) for one in found])
    else:
        print("no clients are known")


def _row(one: Client) -> tuple[str, ...]:
    return (
        one["client_id"],
        one["owner"] or "-",
        one["credential_type"],
        _yes(one["is_connected"]),
        shown_time(one["last_seen"]),
        one["last_address"] or "-",
    )


def show_client(options: argparse.Namespace) -> None:
    one = _one(options)
    if options.json:
        show_json(one)
        return
    show_facts(
        [
            ("client", one["client_id"]),
            ("user", one["owner"] or "-"),
            ("credential", f"{one['credential_type']} {one['credential']}".rstrip()),
            ("certificate", one["certificate_name"] or "-"),
            ("connected", _yes(one["is_connected"])),
            ("session", _yes(one["has_session"])),
            ("first seen", shown_time(one["first_seen"])),
            ("last seen", shown_time(one["last_seen"])),
            ("address", one["last_address"] or "-"),
        ]
    )


def forget_client(options: argparse.Namespace) -> None:
    client_id = _checked(options.client_id)
    if served_at(options.at) is not None:
        ask(options, "DELETE", _path(client_id))
    elif not _in_directory(options, lambda clients: clients.forget(client_id)):
        raise _unknown(client_id)
    if options.json:
        show_json({"forgotten": client_id})
    else:
        print(f"forgot client {printable(client_id)}")


def _all(options: argparse.Namespace) -> list[Client]:
    if served_at(options.at) is None:
        return _in_directory(options, _read_all)
    clients: list[Client] = []
    after: str | None = ""
    while after is not None:
        page = ask(
            options, "GET", f"/v1/clients?limit={PAGE_CLIENTS}&after={quote(after, safe='')}"
        )
        clients += page["clients"]
        after = page["after"]
    return clients


async def _read_all(catalog: ClientCatalog) -> list[Client]:
    found: list[Client] = []
    after = ""
    while page := await catalog.page(PAGE_CLIENTS, after):
        found += [_away(one) for one in page]
        after = page[-1].row.client_id
    return found


def _one(options: argparse.Namespace) -> Client:
    client_id = _checked(options.client_id)
    if served_at(options.at) is not None:
        answer: Client = ask(options, "GET", _path(client_id))
        return answer
    for known in _in_directory(options, lambda clients: clients.find(client_id)):
        return _away(known)
    raise _unknown(client_id)


def _in_directory(options: argparse.Namespace, work: Callable[[ClientCatalog], Awaitable[T]]) -> T:
    """Open a directory that no broker has open for one piece of work."""
    from penstock.app.aio import AsyncBroker

    path, tenant = filled_path(options), options.of_tenant or DEFAULT_TENANT

    async def run() -> T:
        async with AsyncBroker(path, tenant=tenant, **storage_settings()) as broker:
            return await work(broker.engine.session_catalog.clients)

    return asyncio.run(run())


def _away(known: KnownClient) -> Client:
    """As a running broker shows a client that is not connected."""
    return known.row._asdict() | {"is_connected": False, "has_session": known.has_session}


def _checked(client_id: str) -> str:
    if not client_id:
        raise RefusedError("the client id is empty: `penstock client list` lists all client ids")
    return client_id


def _path(client_id: str) -> str:
    return f"/v1/clients/{quote(client_id, safe='')}"


def _unknown(client_id: str) -> RefusedError:
    return RefusedError(
        f"client {quoted(client_id)} is not known (client ids are case-sensitive): "
        "`penstock client list` lists all clients"
    )


def _yes(answer: bool) -> str:
    return "yes" if answer else "no"
