"""`penstock publish`, `penstock consume`, `penstock consumer …`."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from typing import Any, Final

from penstock.cli.arguments import whole_number
from penstock.cli.data.lines import text_if_possible
from penstock.cli.output import (
    Progress,
    UsageError,
    offset_range,
    record_json,
    record_line,
    show_json,
    show_table,
    shown_offsets,
    warn,
)
from penstock.cli.remote import AnyBroker, add_remote, reach_broker
from penstock.cli.target import allow_negative_positions
from penstock.model.errors import AlreadySubscribed
from penstock.model.limits import MIB
from penstock.model.record import PositionLike, Record

BATCH_LINES: Final = 1_000  # lines of standard input that share one acknowledgement
BATCH_BYTES: Final = MIB  # as much is read at once, or what is there: a slow pipe holds up nothing
CONSUME_BATCH: Final = 10_000


def add_commands(commands: Any) -> None:
    _add_publish(commands)
    _add_consume(commands)
    _add_consumer(commands)


def _add_publish(commands: Any) -> None:
    publish = commands.add_parser(
        "publish",
        description="Store MESSAGE, or standard input as one message, or with --lines each line of "
        "standard input. When the command returns, the messages are durable. Write '--' before a "
        "message that begins with '-'.",
    )
    publish.add_argument("topic", help="name of the topic (not case-sensitive)")
    publish.add_argument("message", nargs="?", help="text (default: standard input)")
    publish.add_argument("--name", help="name of the message (default: the topic)")
    publish.add_argument(
        "--header",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="add a header; repeatable, order and duplicates are kept",
    )
    publish.add_argument(
        "--retain",
        action="store_true",
        help="retain the message: MQTT clients that subscribe later receive it",
    )
    publish.add_argument(
        "--lines", action="store_true", help="store each line of standard input as a message"
    )
    publish.set_defaults(run=publish_messages)
    add_remote(publish)


def _add_consume(commands: Any) -> None:
    consume = commands.add_parser(
        "consume",
        description="Print the records of a topic. With --consumer the command starts at the "
        "position of that consumer and moves it; without it no position is saved.",
    )
    allow_negative_positions(consume)
    consume.add_argument("topic", help="name of the topic (not case-sensitive)")
    consume.add_argument(
        "--consumer", metavar="NAME", help="consumer to use; created if it does not exist"
    )
    consume.add_argument(
        "--from",
        dest="start",
        metavar="POSITION",
        help="start position: earliest, latest, 123, -24h, or a time (default: the position of the "
        "consumer, else earliest)",
    )
    consume.add_argument("--limit", type=whole_number, metavar="N", help="print at most N records")
    consume.add_argument(
        "--where",
        metavar="EXPRESSION",
        help='print only matching records, such as "payload.celsius > 30"',
    )
    consume.add_argument(
        "--names",
        metavar="FILTER",
        help="print only records with matching names, such as 'sensors/+/temp'",
    )
    consume.add_argument(
        "--follow",
        action="store_true",
        help="print new records until Ctrl-C; starts at latest unless --from is given",
    )
    consume.add_argument(
        "--no-commit", action="store_true", help="do not move the position of the consumer"
    )
    consume.add_argument(
        "-v", "--verbose", action="store_true", help="also print offset, time, name and headers"
    )
    consume.set_defaults(run=consume_records)
    add_remote(consume)


def _add_consumer(commands: Any) -> None:
    consumer = commands.add_parser("consumer")
    actions = consumer.add_subparsers(title="actions", metavar="ACTION")
    listing = actions.add_parser(
        "list", help="list the consumers of a topic and their waiting records"
    )
    listing.add_argument("topic", help="name of the topic (not case-sensitive)")
    listing.set_defaults(run=list_consumers)
    seek = actions.add_parser("seek", help="move a consumer to a position")
    allow_negative_positions(seek)
    seek.add_argument("topic", help="name of the topic (not case-sensitive)")
    seek.add_argument("consumer", help="name of the consumer (case-sensitive)")
    seek.add_argument("position", help="earliest, latest, 123, -24h, or a time")
    seek.set_defaults(run=seek_consumer)
    remove = actions.add_parser("remove", help="remove a consumer and its position")
    remove.add_argument("topic", help="name of the topic (not case-sensitive)")
    remove.add_argument("consumer", help="name of the consumer (case-sensitive)")
    remove.set_defaults(run=remove_consumer)
    for parser in (listing, seek, remove):
        add_remote(parser)


def _headers(pairs: list[str]) -> list[tuple[str, str]]:
    headers = []
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise UsageError(f"header {pair!r} is invalid: write --header KEY=VALUE")
        headers.append((key, value))
    return headers


def publish_messages(options: argparse.Namespace) -> None:
    headers = _headers(options.header)
    if options.lines and options.message is not None:
        raise UsageError("give either a message or --lines, not both")
    with reach_broker(options) as broker:
        first: int | None = None
        partition: int | None = None  # all have one name, so they are in one partition
        count = end = 0
        progress = Progress("publishing")
        for batch in _messages(options):
            stored = broker.publish_many(
                batch, options.topic, name=options.name, headers=headers, retain=options.retain
            )
            if isinstance(stored, list) and stored:
                partition = stored[0][0]
                stored = range(stored[0][1], stored[-1][1] + 1)
            if isinstance(stored, range):
                first = stored.start if first is None else first
                end = stored.stop
            count += len(stored)
            progress.tell(f"{count:,} messages")
        progress.done()
    in_it = "" if partition is None else f" of partition {partition}"
    if options.json:
        shown = {"first_offset": first, "count": count}
        show_json(shown if partition is None else shown | {"partition": partition})
    elif count == 1:
        print(f"stored at offset {first}{in_it}")
    elif count:
        # Others may have published to a running broker meanwhile.
        where = "at" if end - (first or 0) == count else "among"
        print(f"stored {count:,} messages {where} {offset_range(first or 0, end)}{in_it}")
    else:
        print("nothing to store")


def _messages(options: argparse.Namespace) -> Iterator[list[str | bytes]]:
    if options.message is not None:
        yield [options.message]
        return
    if sys.stdin.isatty():
        what = "messages, one per line," if options.lines else "the message"
        warn(f"type {what} and end with Ctrl-D on a line of its own")
    if options.lines:
        for lines in _line_batches():
            yield [text_if_possible(line) for line in lines]
    else:
        yield [text_if_possible(sys.stdin.buffer.read())]


def _line_batches() -> Iterator[list[bytes]]:
    """Lines of standard input as they come; what follows the last newline counts if there is any"""
    source = sys.stdin.buffer
    assert isinstance(source, io.BufferedIOBase)
    rest = b""
    while data := source.read1(BATCH_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        for at in range(0, len(lines), BATCH_LINES):
            yield lines[at : at + BATCH_LINES]
    if rest:
        yield [rest]


def consume_records(options: argparse.Namespace) -> None:
    with reach_broker(options) as broker:
        if options.consumer is None:
            _read(options, broker)
        else:
            _consume(options, broker)


def _consume(options: argparse.Namespace, broker: AnyBroker) -> None:
    """From the consumer's own position to the end, moving it."""
    if options.follow or options.names:
        raise UsageError(
            "--follow and --names cannot be combined with --consumer: a consumer reads all stored "
            "records; use --where to select records"
        )
    try:
        broker.subscribe(options.consumer, options.topic, start=_start(options, "earliest"))
    except AlreadySubscribed:
        if options.start is not None:
            broker.seek(options.consumer, options.topic, options.start)
    if options.no_commit:
        (position,) = [
            one.next_offset
            for one in broker.consumers(options.topic)
            if one.consumer == options.consumer
        ]
        _read_all(options, broker, position)
        return
    left = options.limit
    while left is None or left > 0:
        records = broker.consume(
            options.consumer,
            options.topic,
            limit=CONSUME_BATCH if left is None else min(left, CONSUME_BATCH),
            where=options.where,
        )
        if not records:
            break
        try:
            _show(options, records)
        except BaseException:  # not all of it was seen: it comes again
            broker.seek(options.consumer, options.topic, _back_to(options, broker, records))
            raise
        left = None if left is None else left - len(records)
    broker.commit(options.consumer, options.topic)


def _back_to(
    options: argparse.Namespace, broker: AnyBroker, records: list[Record]
) -> int | dict[str, int]:
    """Where records were taken from, in every partition."""
    (position,) = [
        one.next_offset
        for one in broker.consumers(options.topic)
        if one.consumer == options.consumer
    ]
    if not isinstance(position, dict):
        return records[0].offset
    return position | {str(one.partition): one.offset for one in reversed(records)}


def _start(options: argparse.Namespace, default: str) -> str:
    return default if options.start is None else str(options.start)


def _read(options: argparse.Namespace, broker: AnyBroker) -> None:
    """From a position to the end, or on and on with --follow; nothing is remembered."""
    if options.follow:
        stream = broker.stream(
            options.topic,
            start=_start(options, "latest"),
            where=options.where,
            names=options.names,
        )
        for record in islice(stream, options.limit):
            _show(options, [record])
    else:
        _read_all(options, broker, _start(options, "earliest"))


def _read_all(options: argparse.Namespace, broker: AnyBroker, start: PositionLike) -> None:
    """All partitions one after another, each from the position on."""
    left = options.limit
    parts: list[int | None] = [one.partition for one in broker.topic(options.topic).partitions]
    for partition in parts or [None]:
        position = start
        while left is None or left > 0:
            wanted = CONSUME_BATCH if left is None else min(left, CONSUME_BATCH)
            records = broker.read(
                options.topic,
                start=position,
                limit=wanted,
                where=options.where,
                names=options.names,
                partition=partition,
            )
            if not records:
                break
            _show(options, records)
            position = records[-1].offset + 1
            left = None if left is None else left - len(records)


def _show(options: argparse.Namespace, records: list[Record]) -> None:
    for record in records:
        if options.json:
            show_json(record_json(record))
        else:
            print(record_line(record, verbose=options.verbose))
    sys.stdout.flush()


def list_consumers(options: argparse.Namespace) -> None:
    with reach_broker(options) as broker:
        consumers = broker.consumers(options.topic)
    if options.json:
        show_json([asdict(one) for one in consumers])
    elif not consumers:
        print(f"topic {options.topic} has no consumers")
    else:
        show_table(
            ["consumer", "next", "waiting"],
            [[one.consumer, shown_offsets(one.next_offset), one.waiting] for one in consumers],
        )


def seek_consumer(options: argparse.Namespace) -> None:
    with reach_broker(options) as broker:
        offset = broker.seek(options.consumer, options.topic, options.position)
    if options.json:
        show_json({"consumer": options.consumer, "next_offset": offset})
    else:
        print(f"consumer {options.consumer} continues at offset {shown_offsets(offset)}")


def remove_consumer(options: argparse.Namespace) -> None:
    with reach_broker(options) as broker:
        broker.unsubscribe(options.consumer, options.topic)
    if options.json:
        show_json({"removed": options.consumer})
    else:
        print(f"removed consumer {options.consumer}")
