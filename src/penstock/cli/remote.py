"""Commands that ask a running broker over HTTP: `--at URL`, or who holds a data directory."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

import msgspec

from penstock.client.transport import Target, Transport
from penstock.client.wire import check
from penstock.config import default_key, default_target
from penstock.log.directory import read_holder
from penstock.model.errors import RefusedError, UnavailableError


def add_remote(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--at",
        metavar="DIR|URL",
        default=default_target(),
        help="the broker at http://[USER:PASSWORD@]HOST:PORT, or the one that holds a data "
        "directory (default: $PENSTOCK_AT, else ./penstock_data)",
    )
    parser.add_argument(
        "--key-file", metavar="FILE", help="log in with the key in it; else $PENSTOCK_KEY"
    )
    parser.add_argument("--json", action="store_true", help="answer in JSON")


def ask(options: argparse.Namespace, method: str, path: str, body: Any = None) -> Any:
    """The broker's answer; RefusedError and UnavailableError as it says."""
    target = Target(broker_url(options.at), token=_key(options))
    data = b"" if body is None else msgspec.json.encode(body)

    async def run() -> bytes:
        transport = Transport(target)
        try:
            return check(await transport.ask(method, path, data))
        finally:
            await transport.close()

    return msgspec.json.decode(asyncio.run(run()))


def broker_url(at: str) -> str:
    """Where the broker answers that is meant."""
    if "://" in at:
        return at
    holder = read_holder(Path(at))
    if holder is None:
        raise UnavailableError(
            f"no broker has {at!r} open: start `penstock serve`, or name one with --at URL"
        )
    for address in holder.get("addresses") or []:
        if address.startswith(("http://", "https://")):
            return str(address)
    raise RefusedError(
        f"the broker that has {at!r} open listens on no HTTP address: start it with --http"
    )


def _key(options: argparse.Namespace) -> str:
    if options.key_file:
        return Path(options.key_file).read_text().strip()
    return default_key()
