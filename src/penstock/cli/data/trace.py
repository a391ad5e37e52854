"""`penstock trace NAME|CLIENT|TOPIC@OFFSET`: where is my message?

A record of a topic with several partitions is TOPIC/PARTITION@OFFSET.

A name or a client is followed from now on. Of a record that is stored, the log and the catalog know
when it came, from whom, and which readers have passed it.
"""

from __future__ import annotations

import argparse
import re
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from penstock.cli.arguments import whole_number
from penstock.cli.output import (
    EXIT_INTERRUPTED,
    UsageError,
    counted,
    printable,
    show_facts,
    show_json,
    show_table,
    warn,
)
from penstock.cli.remote import add_remote, ask
from penstock.core.naming.names import check_filter, quoted
from penstock.model.errors import InvalidFilter, PenstockError, TopicNotFound

TRACES: Final = "/v1/traces"
SECONDS: Final = 60
SECONDS_MAX: Final = 3_600  # of one trace; --follow begins another
WAIT_S: Final = 10
RECORD: Final = re.compile(
    r"(?P<topic>[^/]+)(?:/(?P<partition>[0-9]{1,9}))?@(?P<offset>[0-9]{1,18})"
)
PUBLISHERS: Final = ("received", "stored", "refused")  # the client of these sent the message


def add_commands(commands: Any) -> None:
    parser = commands.add_parser(
        "trace",
        description="Show what becomes of messages: received, stored, sent, acknowledged, dropped. "
        "A name or a client id is followed from now on; of a record, show which readers have "
        "passed it.",
    )
    parser.add_argument(
        "what",
        metavar="NAME|CLIENT|TOPIC@OFFSET",
        help="name or filter of messages, client id, or a stored record such as orders@42 "
        "(orders/3@42 in partition 3 of several)",
    )
    parser.add_argument("--follow", action="store_true", help="follow until Ctrl-C")
    parser.add_argument(
        "--seconds",
        type=whole_number,
        default=SECONDS,
        metavar="S",
        help=f"stop after S seconds ({SECONDS})",
    )
    parser.set_defaults(run=trace)
    add_remote(parser)


def trace(options: argparse.Namespace) -> None:
    if not options.what:
        raise UsageError("the name is empty: give a name, a filter, a client id or TOPIC@OFFSET")
    found = RECORD.fullmatch(options.what)
    if found is not None:
        path = f"/v1/topics/{quote(found['topic'], safe='')}/records/{found['offset']}/trace"
        if found["partition"] is not None:
            path += f"?partition={found['partition']}"
        try:
            known = ask(options, "GET", path)
        except TopicNotFound:
            topic = quoted(found["topic"])
            warn(f"there is no topic {topic}: {options.what} is taken for a name or a client id")
        else:
            show_json(known) if options.json else _show_record(known, found["partition"])
            if options.follow:
                _follow(options, {"names": known["record"]["name"]})
            return
    _follow(options, _subject(options.what))


def _subject(what: str) -> dict[str, Any]:
    """As a name and as a client id: whichever of them there is, is followed."""
    try:
        check_filter(what)
    except InvalidFilter:
        return {"client": what}
    return {"names": what, "client": what}


def _follow(options: argparse.Namespace, subject: dict[str, Any]) -> None:
    end_s = time.monotonic() + options.seconds
    is_first = True
    while options.follow or time.monotonic() < end_s:
        left_s = SECONDS_MAX if options.follow else max(1, round(end_s - time.monotonic()))
        seconds = min(left_s, SECONDS_MAX)
        begun = ask(options, "POST", TRACES, subject | {"seconds": seconds})
        path = f"{TRACES}/{begun['trace']}"
        if is_first:
            warn(f"tracing {options.what}; stop with Ctrl-C")
        is_first = False
        try:
            _show_events(options, path)
        except KeyboardInterrupt:
            raise SystemExit(0 if options.follow else EXIT_INTERRUPTED) from None
        finally:
            with suppress(PenstockError):  # it ends by itself
                ask(options, "DELETE", path)


def _show_events(options: argparse.Namespace, path: str) -> None:
    """Until the trace is over."""
    after = skipped = 0
    while True:
        now = ask(options, "GET", f"{path}?after={after}&wait={WAIT_S}")
        after = now["last_number"]
        for event in now["events"]:
            show_json(event) if options.json else print(event_line(event), flush=True)
        if now["skipped"] > skipped:
            warn(f"{counted(now['skipped'] - skipped, 'event')} came too fast to be shown")
            skipped = now["skipped"]
        if not now["is_on"]:
            return


def event_line(event: dict[str, Any]) -> str:
    """One event for people, in columns."""
    count, qos = event.get("count", 1), event.get("qos")
    where = event.get("topic", "")
    if event.get("partition"):
        where += f"/{event['partition']}"
    if event.get("offset") is not None:
        where += f"@{event['offset']}"
    client = event.get("client", "")
    side = "from" if event["what"] in PUBLISHERS else "to"
    parts = [
        f"{side} {client}" if client else "",
        "" if qos is None else f"QoS {qos}",
        counted(count, "message") if count > 1 else "",
        event.get("detail", ""),
    ]
    stamp = _time(event["at"])
    text = f"{event['what']:<12}  {where:<16}  {event['name']}  {', '.join(filter(None, parts))}"
    return f"{stamp}  {printable(text)}".rstrip()


def _time(at_us: int, day: str = "") -> str:
    moment = datetime.fromtimestamp(at_us / 1e6, UTC)
    return moment.strftime(f"{day}%H:%M:%S.%f")[:-3] + "Z"


def _show_record(known: dict[str, Any], partition: str | None) -> None:
    record = known["record"]
    place = known["topic"] if partition is None else f"{known['topic']}/{int(partition)}"
    show_facts(
        [
            ("record", f"{place}@{record['offset']}"),
            ("name", record["name"]),
            ("received", _time(record["timestamp"], "%Y-%m-%d ")),
            ("publisher", record.get("publisher") or "-"),
            ("qos", record.get("qos", 1)),
            ("topic", f"offsets {known['first_offset']} to {known['end_offset'] - 1}"),
        ]
    )
    print()
    if not known["readers"]:
        print("no consumer, group or subscription reads this record")
    else:
        rows = [
            (one["reader"], _kind(one), one["state"], one["next_offset"])
            for one in known["readers"]
        ]
        show_table(["reader", "kind", "state", "next offset"], rows)
    for event in known["events"]:
        print(event_line(event))


def _kind(one: dict[str, Any]) -> str:
    if one["is_connected"] is None:
        return str(one["kind"])
    return f"{one['kind']}, {'connected' if one['is_connected'] else 'away'}"
