"""Which broker a command speaks to: `--at DIR|URL`, `$PENSTOCK_AT`, a context, ./penstock_data.

A URL is a running broker. A data directory that a broker has open means that broker: over the
socket in the directory, where whoever can open it is an operator, else over HTTP. A directory that
nobody has open is opened here.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from urllib.parse import unquote, urlsplit, urlunsplit

import msgspec

from penstock.cli.output import naming
from penstock.cli.target import add_context_option, add_tenant, existing_path, open_broker
from penstock.client.target import Target
from penstock.config import default_key
from penstock.log.files.directory import has_topic_files, read_holder
from penstock.model import unix_socket
from penstock.model.errors import NotAuthorized, RefusedError, UnavailableError

if TYPE_CHECKING:
    from penstock.app.sync import Broker
    from penstock.client.sync import Client

AnyBroker: TypeAlias = "Broker | Client"


def add_remote(parser: argparse.ArgumentParser, *, has_tenant: bool = True) -> None:
    """`has_tenant`: what the command works on belongs to a tenant."""
    if has_tenant:
        add_tenant(parser)
    parser.add_argument(
        "--at",
        "--data",
        metavar="DIR|URL",
        help="data directory, also while a broker has it open, or URL of a broker: "
        "http://[USER:PASSWORD@]HOST:PORT (default: $PENSTOCK_AT, else the context, else "
        "./penstock_data)",
    )
    add_context_option(parser)
    add_key(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_key(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--key-file",
        metavar="FILE",
        help="log in to a running broker with the key in FILE (default: the key in $PENSTOCK_KEY)",
    )


def reach_broker(options: argparse.Namespace, *, create: bool = False) -> AnyBroker:
    """The broker that is meant: a running one, else the directory, opened here.

    Only commands that create may make the directory.
    """
    url = served_at(options.at)
    if url is None:
        return open_broker(options, create=create)
    from penstock.client.sync import connect

    try:
        return connect(url, token=read_key(options, url), tenant=options.of_tenant)
    except NotAuthorized as refused:
        raise explained(refused) from None


class RunningBroker(NamedTuple):
    """Where a command asks, as whom, and with which headers."""

    url: str
    key: str
    headers: dict[str, str]  # say which tenant is meant

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """Its answer; RefusedError and UnavailableError as it says."""
        return ask_at(
            self.url, self.key, method, path=path, body=body, headers=self.headers | headers
        )


def running_broker(options: argparse.Namespace) -> RunningBroker | None:
    """The broker that has the directory of the options open, or whose URL they give."""
    url = served_at(options.at)
    if url is None:
        return None
    return RunningBroker(url, read_key(options, url), tenant_header(options))


def ask(options: argparse.Namespace, method: str, path: str, body: Any = None) -> Any:
    """A running broker's answer; RefusedError and UnavailableError as it says."""
    broker = running_broker(options)
    if broker is None:
        raise UnavailableError(
            f"no broker has {options.at!r} open: start `penstock serve`, or give --at URL"
        )
    return broker.ask(method, path, body)


def tenant_header(options: argparse.Namespace) -> dict[str, str]:
    """Says in a request which tenant the command means."""
    tenant = getattr(options, "of_tenant", None)  # nodes, for example, belong to no tenant
    return {"Penstock-Tenant": tenant} if tenant else {}


def ask_at(
    url: str,
    key: str,
    method: str,
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
) -> Any:
    """One request; what the answer holds as JSON, or None if it is empty."""
    data = b"" if body is None else msgspec.json.encode(body)
    answer = fetch(url, key, method, path=path, body=data, headers=headers)
    return msgspec.json.decode(answer) if answer else None


def fetch(
    url: str,
    key: str,
    method: str,
    path: str,
    body: bytes = b"",
    headers: dict[str, str] | None = None,
) -> bytes:
    """As `ask_at`, in bytes."""
    from penstock.client.answer import check
    from penstock.client.once import ask_once

    try:
        return check(ask_once(Target(url, token=key), method, path, body, headers))
    except NotAuthorized as refused:
        raise explained(refused) from None


def served_at(at: str) -> str | None:
    """Where the broker answers that is meant; None if it is a directory that no broker has open."""
    holder = None if "://" in at else read_holder(Path(at))
    if holder is not None and holder.get("socket"):
        path = Path(at, holder["socket"])
        if os.access(path, os.R_OK | os.W_OK):
            return unix_socket.url_of(path)
    return http_address(at)


def http_address(at: str) -> str | None:
    """As `served_at`, for programs that may run on other machines: never the local socket."""
    if "://" in at:
        Target(at)  # refuses what is no address
        return at
    holder = read_holder(Path(at))
    addresses = [] if holder is None else holder.get("addresses") or []
    for address in addresses:
        if address.startswith(("http://", "https://")):
            return str(address)
    if addresses:
        raise RefusedError(
            f"the broker that has {at!r} open has no HTTP listener: start it with --http"
        )
    return None


def read_key(options: argparse.Namespace, url: str) -> str:
    """The key to log in with; none if the address says who we are, or it is a local socket."""
    if options.key_file:
        with naming(f"--key-file {options.key_file!r} cannot be read"):
            return Path(options.key_file).read_text().strip()
    is_known = url.startswith(unix_socket.SCHEME) or urlsplit(url).username
    return "" if is_known else default_key()


def job_place(options: argparse.Namespace) -> dict[str, str]:
    """Where topics are, in the words of a job's function.

    Files are read even while a broker has them open; the key is for that broker. Topics in Kafka or
    PostgreSQL have no files: the broker that has the directory open reads them.
    """
    named = {"tenant": options.of_tenant}
    if "://" not in options.at:
        path = existing_path(options)
        if not has_topic_files(path):
            url = _served_to(options.master, options.at)
            return {"url": url, "token": read_key(options, url)} | named
        key = read_key(options, options.at)
        return {"path": str(path), "token": key} | named
    Target(options.at)  # refuses what is no address, before Spark is started
    key = read_key(options, options.at)
    parts = urlsplit(options.at)
    url = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    if key:
        return {"url": url, "token": key} | named
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    return {"url": url, "user": user, "password": password} | named


def _served_to(master: str, at: str) -> str:
    """Where Spark reaches the broker of a directory: over its socket only on this machine."""
    url = served_at(at) if master.startswith("local") else http_address(at)
    if url is None:
        raise UnavailableError(
            f"the topics of {at!r} are not in files, and no broker has it open: start `penstock "
            "serve`, or give --at URL"
        )
    return url


def explained(refused: NotAuthorized) -> NotAuthorized:
    return NotAuthorized(
        f"{refused}; give the login with --at http://USER:PASSWORD@HOST:PORT, or a key "
        "(`penstock user key`) with --key-file or PENSTOCK_KEY"
    )
