"""Topics as plain files, one message per line: the simplest layout there is, in and out.

An export that fails leaves nothing behind, and neither does the topic whose import fails, so the
same command can be given again.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

from penstock.cli.output import Progress, counted, naming, show_json
from penstock.cli.remote import AnyBroker, reach_broker
from penstock.core.naming.names import quoted
from penstock.model.errors import RefusedError, TopicExists
from penstock.model.limits import MIB
from penstock.model.record import ConsumerInfo

LAYOUT: Final = (
    "The layout is plain files: <topic>/messages.log holds one message per line, and "
    "<topic>/subscriptions/<consumer>.offset the number of the line that the consumer reads next, "
    "counted from 0. Names, headers and times are not included."
)
BATCH_LINES: Final = 10_000
BATCH_BYTES: Final = 4 * MIB  # with the escapes of JSON still far below the body of a request
FILE_NAME_BYTES_MAX: Final = 255  # of every common file system


def export_lines(options: argparse.Namespace) -> None:
    target = Path(options.target)
    summary = []
    made: list[Path] = []
    with reach_broker(options) as broker:
        known = {one.topic.casefold(): one.topic for one in broker.topics()}
        wanted = [
            declared_folder(broker, known, topic) for topic in options.topics or known.values()
        ]
        try:
            for declared in wanted:
                folder = target / declared
                if folder.exists():
                    raise RefusedError(f"{folder} already exists: export to another directory")
                made.append(folder)
                with naming(f"{folder} cannot be written"):
                    count = _export_topic(broker, declared, folder, escape=options.escape)
                summary.append({"topic": declared, "messages": count})
        except BaseException:
            for folder in made:
                shutil.rmtree(folder, ignore_errors=True)
            raise
    answer(options, summary, "exported")


def declared_folder(broker: AnyBroker, known: dict[str, str], topic: str) -> str:
    """A topic as it was declared; a broker that is not ours may call it anything."""
    declared = known.get(topic.casefold(), topic)
    is_name = declared == Path(declared).name and declared not in ("", "..")
    if not is_name or "\0" in declared or len(declared.encode()) > FILE_NAME_BYTES_MAX:
        raise RefusedError(
            f"the topic name {quoted(declared)} is not a valid folder name: nothing was exported; "
            "list the topics to export after DIR"
        )
    broker.size(topic)  # refuses an unknown topic
    return declared


def _export_topic(broker: AnyBroker, topic: str, folder: Path, *, escape: bool) -> int:
    consumers: list[tuple[str, int]] = []
    for consumer in broker.consumers(topic):
        if isinstance(consumer.next_offset, dict):
            raise _several_partitions(topic)
        consumers.append((_offset_file(consumer), consumer.next_offset))
    passed = dict.fromkeys([name for name, _ in consumers], 0)  # lines; offsets may have gaps
    (folder / "subscriptions").mkdir(parents=True)
    progress = Progress(f"exporting {topic}")
    count = 0
    with (folder / "messages.log").open("wb") as lines:
        start: str | int = "earliest"
        while records := broker.read(topic, start=start, limit=BATCH_LINES):
            if any(record.partition for record in records):
                raise _several_partitions(topic)
            for name, next_offset in consumers:
                passed[name] += sum(record.offset < next_offset for record in records)
            for record in records:
                lines.write(_line(record.payload, topic, record.offset, escape=escape) + b"\n")
            count += len(records)
            start = records[-1].offset + 1
            progress.tell(f"{count:,} messages")
    progress.done()
    for name, line in passed.items():
        (folder / "subscriptions" / name).write_text(f"{line}\n")
    return count


def _several_partitions(topic: str) -> RefusedError:
    return RefusedError(
        f"topic {quoted(topic)} has several partitions, and a file of lines has one order: it was "
        "not exported; read it with `penstock consume`, or as a table with Spark"
    )


def _offset_file(consumer: ConsumerInfo) -> str:
    """A file name that `_consumer_name` understands; `/` and `%` are written %2F and %25."""
    name = f"{quote(consumer.consumer, safe=_PLAIN)}.offset"
    if len(name.encode()) > FILE_NAME_BYTES_MAX:
        raise RefusedError(
            f"consumer {consumer.consumer[:40]!r}… has too long a name for a file: export without "
            "it after `penstock consumer remove`"
        )
    return name


_PLAIN: Final = "".join(map(chr, [*range(0x20, 0x25), *range(0x26, 0x2F), *range(0x30, 0x7F)]))


def _line(payload: bytes, topic: str, offset: int, *, escape: bool) -> bytes:
    if escape:
        text = payload.decode("utf-8", "surrogateescape").replace("\\", "\\\\")
        text = text.replace("\n", "\\n").replace("\r", "\\r")
        return b"".join(
            b"\\x%02x" % (ord(char) - 0xDC00) if 0xDC80 <= ord(char) <= 0xDCFF else char.encode()
            for char in text
        )
    if b"\n" in payload:
        raise RefusedError(
            f"message {offset} of {topic} contains a newline, but each message must be one line: "
            "use --escape"
        )
    return payload


def import_lines(options: argparse.Namespace) -> None:
    source = Path(options.source)
    folders = sorted(path.parent for path in source.glob("*/messages.log"))
    if not folders:
        raise RefusedError(
            f"{source} contains no <topic>/messages.log: give a directory that "
            "`penstock log export` wrote"
        )
    summary = []
    with reach_broker(options, create=True) as broker:
        for folder in folders:
            with imported_topic(broker, folder.name):
                count = _import_topic(broker, folder, escape=options.escape)
            summary.append({"topic": folder.name, "messages": count})
    answer(options, summary, "imported")


@contextmanager
def imported_topic(broker: AnyBroker, name: str) -> Iterator[None]:
    """A new topic, deleted again if its import fails."""
    try:
        broker.create_topic(name)
    except TopicExists:
        raise RefusedError(
            f"topic {quoted(name)} already exists, and an import creates its topics: delete it "
            "first, or import into another data directory with --at"
        ) from None
    try:
        yield
    except BaseException:
        broker.delete_topic(name)
        raise


def _import_topic(broker: AnyBroker, folder: Path, *, escape: bool) -> int:
    progress = Progress(f"importing {folder.name}")
    count = 0
    for batch in _line_batches(folder / "messages.log"):
        messages = [text_if_possible(_unescape(line) if escape else line) for line in batch]
        count += len(broker.publish_many(messages, folder.name))
        progress.tell(f"{count:,} messages")
    progress.done()
    for path in sorted((folder / "subscriptions").glob("*.offset")):
        digits = path.read_bytes().strip()
        if not digits.isdigit() or int(digits) > count:
            raise RefusedError(
                f"{path} contains {digits!r}, which is not a line number from 0 to {count}"
            )
        broker.subscribe(unquote(path.name.removesuffix(".offset")), folder.name, start=int(digits))
    return count


def _line_batches(path: Path) -> Iterator[list[bytes]]:
    with path.open("rb") as lines:
        batch: list[bytes] = []
        size = 0
        for line in lines:
            batch.append(line.removesuffix(b"\n"))
            size += len(line)
            if len(batch) == BATCH_LINES or size >= BATCH_BYTES:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch


_ESCAPES: Final = {b"n": b"\n", b"r": b"\r", b"\\": b"\\"}


def _unescape(line: bytes) -> bytes:
    out = []
    at = 0
    while (found := line.find(b"\\", at)) >= 0:
        out.append(line[at:found])
        kind = line[found + 1 : found + 2]
        digits = line[found + 2 : found + 4]
        if kind in _ESCAPES:
            out.append(_ESCAPES[kind])
            at = found + 2
        elif kind == b"x" and len(digits) == 2 and all(digit in _HEX_DIGITS for digit in digits):
            out.append(bytes.fromhex(digits.decode()))
            at = found + 4
        else:
            raise RefusedError(
                f"line {line[:80]!r} contains an unknown escape at byte {found}: omit --escape if "
                "the file was exported without it"
            )
    out.append(line[at:])
    return b"".join(out)


_HEX_DIGITS: Final = b"0123456789abcdefABCDEF"


def text_if_possible(data: bytes) -> str | bytes:
    """What a line or a file holds, as a message: text where it is UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def answer(options: argparse.Namespace, summary: list[dict[str, Any]], what: str) -> None:
    if options.json:
        show_json(summary)
    else:
        for entry in summary:
            print(f"{what} {entry['topic']}: {counted(entry['messages'], 'message')}")
