"""`penstock status` and `penstock top`: how a running broker is doing, once or again and again."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any, Final

from penstock.cli.arguments import whole_number
from penstock.cli.output import (
    counted,
    human_bytes,
    printable,
    show_facts,
    show_json,
    show_table,
    shown_time,
)
from penstock.cli.remote import add_remote, ask

CLEAR: Final = "\x1b[H\x1b[2J"  # of a terminal: begin at the top again
SLOWEST_MAX: Final = 10
OVERVIEW: Final = "/v1/overview"


def add_commands(commands: Any) -> None:
    status = commands.add_parser("status")
    status.set_defaults(run=show_status)
    top = commands.add_parser("top", description="Show how a running broker is doing until Ctrl-C.")
    top.add_argument("-n", "--count", type=whole_number, metavar="N", help="stop after N updates")
    top.add_argument(
        "-d",
        "--interval",
        type=whole_number,
        default=2,
        metavar="S",
        help="seconds between updates (2)",
    )
    top.set_defaults(run=show_top)
    for parser in (status, top):
        add_remote(parser)


def show_status(options: argparse.Namespace) -> None:
    overview = ask(options, "GET", OVERVIEW)
    if options.json:
        show_json(overview)
    else:
        _show(overview)


def show_top(options: argparse.Namespace) -> None:
    shown = 0
    while True:
        overview = ask(options, "GET", OVERVIEW)
        if options.json:
            show_json(overview)
        else:
            if sys.stdout.isatty():
                print(CLEAR, end="")
            elif shown:
                print()
            _show(overview)
            sys.stdout.flush()
        shown += 1
        if shown == options.count:
            return
        time.sleep(options.interval)


def _show(now: dict[str, Any]) -> None:
    newest = {
        name: values[-1] if values else 0.0 for name, values in now["series"]["values"].items()
    }
    show_facts(
        [
            ("broker", f"penstock {now['version']}, {now['engine']} engine"),
            ("running", f"since {shown_time(now['started_at'])}, {_uptime(now)}"),
            (
                "stored",
                f"{newest['published']:,.1f} records/s, "
                f"{human_bytes(round(newest['published_bytes']))}/s",
            ),
            ("delivered", f"{newest['delivered']:,.1f} records/s"),
            ("mqtt", f"{newest['mqtt_in']:,.1f}/s in, {newest['mqtt_out']:,.1f}/s out"),
            ("http", f"{newest['http_in']:,.1f}/s in, {newest['http_out']:,.1f}/s out"),
            ("ack", _latency(newest, "ack")),
            ("commit", _latency(newest, "commit")),
            ("loop lag", f"{newest['loop_lag_ms']:.2f} ms"),
            ("clients", _clients(now)),
            ("topics", f"{counted(now['topics'], 'topic')}, {counted(now['records'], 'record')}"),
            ("disk", _disk(now["disk"])),
            ("memory", human_bytes(now["memory_bytes"])),
        ]
    )
    for trouble in filter(None, [now["disk"]["refusal"], *now["troubles"]]):
        print(f"problem     {printable(trouble)}")
    _show_reasons("dropped", now["dropped"])
    _show_reasons("refused", now["refused"])
    if now["slowest"]:
        print()
        rows = [
            (one["reader"], one["kind"], one["topic"], f"{one['lag']:,}")
            for one in now["slowest"][:SLOWEST_MAX]
        ]
        show_table(["slowest readers", "kind", "topic", "behind"], rows)


def _uptime(now: dict[str, Any]) -> str:
    """The largest unit that fits, in whole ones."""
    seconds = max(0, now["now"] - now["started_at"]) // 1_000_000
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= length:
            return counted(seconds // length, unit)
    return counted(seconds, "second")


def _latency(newest: dict[str, float], what: str) -> str:
    """A dash if nothing happened that could be measured."""
    mean_ms, bound_ms = newest[f"{what}_ms"], newest[f"{what}_p99_ms"]
    return f"{mean_ms:.2f} ms, 99 % within {bound_ms:g} ms" if mean_ms else "-"


def _clients(now: dict[str, Any]) -> str:
    connected = f"{now['clients']:,} connected, {now['sessions_away']:,} away"
    return f"{connected}, {counted(now['subscriptions'], 'subscription')}"


def _disk(disk: dict[str, Any]) -> str:
    used = f"{human_bytes(disk['used_bytes'])} used"
    if disk["size_bytes"] is None:
        return used
    free, size = human_bytes(disk["free_bytes"]), human_bytes(disk["size_bytes"])
    text = f"{used}, {free} of {size} free"
    if disk["expiring_bytes"] is None:
        return text
    expiring = disk["expiring_bytes"]
    removes = f"about {human_bytes(expiring)}" if expiring else "nothing"
    return f"{text}, retention removes {removes} within a day"


def _show_reasons(what: str, counts: dict[str, int]) -> None:
    if counts:
        reasons = (f"{reason} {count:,}" for reason, count in counts.items())
        show_facts([(what, ", ".join(reasons))])
