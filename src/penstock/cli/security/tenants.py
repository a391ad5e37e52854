"""`penstock tenant`: tenants share a broker, and nothing of one is visible to another."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from penstock.cli.output import show_facts, show_json, show_table, shown_time
from penstock.cli.remote import add_remote, ask_at, read_key, served_at
from penstock.cli.target import filled_path, target_path
from penstock.config import storage_settings
from penstock.model.errors import RefusedError

Tenant = dict[str, Any]
_HEADINGS: Final = ("tenant", "first name", "last name", "email", "created")


def add_commands(commands: Any) -> None:
    parser = commands.add_parser("tenant")
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    add = actions.add_parser("add", help="add a tenant")
    add.add_argument("--first-name", default="", metavar="TEXT", help="first name of its owner")
    add.add_argument("--last-name", default="", metavar="TEXT", help="last name of its owner")
    add.add_argument("--email", default="", metavar="TEXT", help="e-mail address of its owner")
    add.set_defaults(run=add_tenant)
    listing = actions.add_parser("list", help="list all tenants")
    listing.set_defaults(run=list_tenants)
    show = actions.add_parser("show", help="show a tenant")
    show.set_defaults(run=show_tenant)
    remove = actions.add_parser("remove", help="remove a tenant that has no data")
    remove.add_argument(
        "--purge",
        action="store_true",
        help="delete the tenant with its topics, sessions, users and everything else",
    )
    remove.set_defaults(run=remove_tenant)
    for action in (add, show, remove):
        action.add_argument("tenant", help="name of the tenant: a-z, 0-9, '-' and '_'")
    for action in (add, listing, show, remove):
        add_remote(action, has_tenant=False)


def add_tenant(options: argparse.Namespace) -> None:
    fields = {name: getattr(options, name) for name in ("first_name", "last_name", "email")}
    url = served_at(options.at)
    if url is not None:
        _ask(options, url, "PUT", _path(options.tenant), fields)
    else:
        _in_directory(target_path(options), "add", options.tenant, **fields)
    if options.json:
        show_json({"added": options.tenant})
    else:
        print(f"added tenant {options.tenant}")


def list_tenants(options: argparse.Namespace) -> None:
    found = _all(options)
    if options.json:
        show_json(found)
        return
    show_table(_HEADINGS, [tuple(_shown(one).values()) for one in found])


def show_tenant(options: argparse.Namespace) -> None:
    for one in _all(options):
        if one["tenant"] == options.tenant:
            if options.json:
                show_json(one)
            else:
                headed = zip(_HEADINGS, _shown(one).values(), strict=True)
                show_facts((heading, value or "-") for heading, value in headed)
            return
    raise RefusedError(f"there is no tenant {options.tenant!r}: see `penstock tenant list`")


def remove_tenant(options: argparse.Namespace) -> None:
    url = served_at(options.at)
    if url is not None:
        query = "?purge=true" if options.purge else ""
        _ask(options, url, "DELETE", _path(options.tenant) + query)
    else:
        _in_directory(filled_path(options), "remove", options.tenant, purge=options.purge)
    if options.json:
        show_json({"removed": options.tenant})
    else:
        print(f"removed tenant {options.tenant}")


def _all(options: argparse.Namespace) -> list[Tenant]:
    url = served_at(options.at)
    if url is not None:
        found: list[Tenant] = _ask(options, url, "GET", "/v1/tenants")["tenants"]
        return found
    return _in_directory(filled_path(options))


def _shown(tenant: Tenant) -> dict[str, str]:
    return tenant | {"created_at": shown_time(tenant["created_at"])}


def _ask(options: argparse.Namespace, url: str, method: str, path: str, body: Any = None) -> Any:
    return ask_at(url, read_key(options, url), method, path, body)


def _path(tenant: str) -> str:
    return f"/v1/tenants/{quote(tenant, safe='')}"


def _in_directory(path: Path, change: str = "", *args: Any, **fields: Any) -> list[Tenant]:
    """Change the tenants of a directory that no broker has open; all of them then."""
    from penstock.app.aio import AsyncBroker

    async def run() -> list[Tenant]:
        async with AsyncBroker(path, **storage_settings()) as broker:
            if change:
                await getattr(broker.tenants, change)(*args, **fields)
            names = ("tenant", "first_name", "last_name", "email", "created_at")
            return [{name: getattr(row, name) for name in names} for row in broker.tenants.all()]

    return asyncio.run(run())
