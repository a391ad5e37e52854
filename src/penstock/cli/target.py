"""Which directory a command opens: `--at DIR`, `$PENSTOCK_AT`, a context, else ./penstock_data."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.cli.output import UsageError, warn
from penstock.client.target import Target
from penstock.config import storage_settings
from penstock.config.defaults import DEFAULT_DATA, chosen_target
from penstock.core.masking import without_login
from penstock.model.errors import RefusedError
from penstock.model.record import DEFAULT_TENANT

if TYPE_CHECKING:
    from penstock.app.sync import Broker
    from penstock.config.contexts import Context

# Of a URL, also of one that lacks its slashes; a directory that begins so is written ./http:x.
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|https?:")


def add_tenant(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tenant",
        dest="of_tenant",
        metavar="NAME",
        default="",
        help="work on this tenant; for operators (default: the tenant of the login, else default)",
    )


def add_target(parser: argparse.ArgumentParser, *, has_tenant: bool = True) -> None:
    """`has_tenant`: what the command works on belongs to a tenant."""
    if has_tenant:
        add_tenant(parser)
    parser.add_argument(
        "--at",
        "--data",
        metavar="DIR",
        help="data directory (default: $PENSTOCK_AT, else the context, else ./penstock_data)",
    )
    add_context_option(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_context_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--context",
        metavar="NAME",
        help="use this context (default: $PENSTOCK_CONTEXT, else that of `penstock context use`)",
    )


def choose_target(options: argparse.Namespace) -> None:
    """Decide which broker or directory a command means; UsageError if it is no valid URL."""
    if options.at is not None and options.context is not None:
        raise UsageError("give --at or --context, not both")
    told_by = "--at"
    if options.at is None and options.context is None:
        options.at, told_by = chosen_target(), "$PENSTOCK_AT"
    if options.at is None:
        told_by = "the context's URL"
        _take_context(options)
    takes_url = "key_file" in options  # others say themselves that they need a directory
    if takes_url and _SCHEME.match(options.at):
        check_url(told_by, options.at)


def check_url(option: str, url: str) -> None:
    """UsageError, which names the option, if this is no URL of a broker."""
    try:
        Target(url)
    except RefusedError as refused:
        raise UsageError(f"{option} {refused}") from None


def _take_context(options: argparse.Namespace) -> None:
    context = find_context(options)
    if context is None:
        options.at = DEFAULT_DATA
        return
    options.at = context.at
    if context.key_file and "key_file" in options and not options.key_file:
        options.key_file = context.key_file
    if context.tenant and "of_tenant" in options and not options.of_tenant:
        options.of_tenant = context.tenant


def find_context(options: argparse.Namespace) -> Context | None:
    """The context that was named, or is in use."""
    from penstock.config.contexts import chosen_context, load_contexts

    contexts = load_contexts()
    name = options.context or chosen_context() or contexts.current
    return contexts.get(name) if name else None


def allow_negative_positions(parser: argparse.ArgumentParser) -> None:
    """Take `-24h` as a value; argparse would take it for an option that does not exist."""
    parser._negative_number_matcher = re.compile(r"-\d")


def target_path(options: argparse.Namespace) -> Path:
    """The data directory; a URL is refused, since the command works on files."""
    if "://" in options.at:
        raise UsageError(
            f"--at {without_login(options.at)!r} is a URL, but this command reads files: "
            "give the data directory instead"
        )
    return Path(options.at)


def existing_path(options: argparse.Namespace) -> Path:
    path = target_path(options)
    if not path.is_dir():
        raise RefusedError(
            f"data directory {str(path)!r} does not exist: give another with --at, or create it "
            "with `penstock topic create`"
        )
    return path


def filled_path(options: argparse.Namespace) -> Path:
    """A directory with something in it; opening an empty one would make a broker's files there."""
    path = existing_path(options)
    if not any(path.iterdir()) and not storage_settings()["catalog_url"]:
        raise RefusedError(
            f"directory {str(path)!r} is empty: give a data directory with --at, "
            "or create a topic in it with `penstock topic create`"
        )
    return path


def open_broker(options: argparse.Namespace, *, create: bool = False) -> Broker:
    """Open the directory and tell what recovery found; only commands that create may make it."""
    path = target_path(options) if create else filled_path(options)
    from penstock.app.sync import Broker

    tenant = options.of_tenant or DEFAULT_TENANT
    broker = Broker(path, tenant=tenant, **storage_settings())
    for note in broker.notes:
        warn(note)
    return broker
