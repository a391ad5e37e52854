"""`penstock reload`: a running broker reads its files again, and no connection ends."""

from __future__ import annotations

import argparse
from typing import Any

from penstock.cli.output import EXIT_DONE, EXIT_REFUSED, show_json, warn
from penstock.cli.remote import add_remote, ask


def add_commands(commands: Any) -> None:
    parser = commands.add_parser(
        "reload",
        description="Let a running broker read its certificates, revocation lists, keys of tokens, "
        "declared roles and rules, quotas, and log level again. No connection ends, except those "
        "of revoked certificates. A file that cannot be used is named, and what was read before "
        "is still in use.",
    )
    add_remote(parser)
    parser.set_defaults(run=reload)


def reload(options: argparse.Namespace) -> int:
    problems: list[str] = ask(options, "POST", "/v1/reload")["problems"]
    if options.json:
        show_json({"problems": problems})
    elif not problems:
        print("reloaded")
    else:
        for problem in problems:
            warn(problem)
    return EXIT_REFUSED if problems else EXIT_DONE
