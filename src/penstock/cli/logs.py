"""`penstock log verify|dump|export|import`: looking at files, and the layout of one line a message.

verify and dump need no lock and change nothing. export and import speak the simplest layout there
is: `<topic>/messages.log` with one message per line, `<topic>/subscriptions/<consumer>.offset` with
the number of the line that the consumer reads next.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

from penstock.app.sync import Broker
from penstock.cli.output import Progress, human_bytes, record_json, record_line, show_json
from penstock.cli.target import add_target, existing_path, open_broker
from penstock.log.files import RealDisk
from penstock.log.marks import NO_RECORD
from penstock.log.reader import FileReader
from penstock.log.store import find_logs, log_directory, read_facts
from penstock.log.verify import LogReport, verify_log
from penstock.model.errors import CorruptError, RefusedError, TopicNotFound

EXPORT_BATCH: Final = 10_000


def add_commands(commands: Any) -> None:
    parser = commands.add_parser("log", help="verify, dump, export and import the stored logs")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    verify = actions.add_parser(
        "verify",
        help="check every byte; exit code 1 if anything is wrong",
        description="Read every byte of every log and say what is wrong where. Needs no lock.",
    )
    verify.add_argument("topics", nargs="*", metavar="TOPIC", help="default: all")
    verify.set_defaults(run=verify_logs)
    dump = actions.add_parser("dump", help="show batches and records as they are stored")
    dump.add_argument("topic")
    dump.add_argument("--from", dest="start", type=int, metavar="OFFSET", help="first offset")
    dump.add_argument("--limit", type=int, metavar="N", help="at most N records")
    dump.add_argument("--batches", action="store_true", help="headers of batches only")
    dump.set_defaults(run=dump_log)
    export = actions.add_parser(
        "export", help="write topics as files with one message per line", description=__doc__
    )
    export.add_argument("target", metavar="DIR", help="where to write; topics there must not exist")
    export.add_argument("topics", nargs="*", metavar="TOPIC", help="default: all")
    export.set_defaults(run=export_lines)
    import_ = actions.add_parser(
        "import", help="read topics from files with one message per line", description=__doc__
    )
    import_.add_argument("source", metavar="DIR", help="a directory with one folder per topic")
    import_.set_defaults(run=import_lines)
    for action in (export, import_):
        action.add_argument(
            "--lines",
            action="store_true",
            required=True,
            help="one message per line (the only layout)",
        )
        action.add_argument(
            "--escape",
            action="store_true",
            help="write newlines, backslashes and bytes that are no text as \\n, \\\\ and \\xNN",
        )
    for action in (verify, dump, export, import_):
        add_target(action)


def _directories(options: argparse.Namespace, topics: list[str]) -> list[tuple[str, Path]]:
    """(declared name, directory) of the logs asked for, from the files alone."""
    root = existing_path(options)
    disk = RealDisk()
    found = []
    for identity in find_logs(disk, root):
        directory = log_directory(root, identity)
        try:
            found.append((read_facts(disk, directory).topic, directory))
        except CorruptError as broken:
            print(f"penstock: {broken}", file=sys.stderr)
            found.append((identity.slug, directory))
    if not topics:
        return found
    wanted = {topic.casefold() for topic in topics}
    missing = wanted - {name.casefold() for name, _ in found}
    if missing:
        raise TopicNotFound(f"no log of topic {sorted(missing)[0]!r} in {root}")
    return [(name, directory) for name, directory in found if name.casefold() in wanted]


def verify_logs(options: argparse.Namespace) -> int:
    progress = Progress("verifying")
    reports: list[tuple[str, LogReport]] = []
    for name, directory in _directories(options, options.topics):
        done = sum(report.bytes for _, report in reports)

        def tell(path: Path, size: int, name: str = name, done: int = done) -> None:
            progress.tell(f"{name} {path.name} ({human_bytes(done)} so far)")

        reports.append((name, verify_log(RealDisk(), directory, tell)))
    progress.done()
    is_clean = not any(report.problems for _, report in reports)
    if options.json:
        show_json(
            {
                "clean": is_clean,
                "logs": [
                    {
                        "topic": name,
                        "first_offset": report.first_offset,
                        "end_offset": report.end_offset,
                        "segments": report.segments,
                        "bytes": report.bytes,
                        "problems": [str(problem) for problem in report.problems],
                    }
                    for name, report in reports
                ],
            }
        )
        return 0 if is_clean else 1
    for name, report in reports:
        print(
            f"{name}: offsets {report.first_offset} up to {report.end_offset}, "
            f"{report.segments} segments, {human_bytes(report.bytes)}: "
            f"{'DAMAGED' if report.problems else 'ok'}"
        )
        for problem in report.problems:
            print(f"  {problem}")
    print("all is well" if is_clean else "damage found: see above")
    return 0 if is_clean else 1


def dump_log(options: argparse.Namespace) -> None:
    ((name, directory),) = _directories(options, [options.topic])
    reader = FileReader(RealDisk(), directory)
    first, end = reader.bounds()
    start = first if options.start is None else options.start
    left = options.limit
    for batch in reader.batches(start, end):
        h = batch.header
        if not options.json:
            print(
                f"batch {h.base_offset} up to {h.end_offset}  epoch {h.epoch}  "
                f"{h.stored_length} bytes  checksum {h.checksum:08x}"
                f"{'  lz4' if h.compression else ''}"
            )
            for mark in batch.marks():
                beside = "" if mark.index == NO_RECORD else f" beside {h.base_offset + mark.index}"
                print(f"  mark kind {mark.kind}{beside}: {mark.key!r}")
        if options.batches:
            continue
        for record in batch.records(name, start, end):
            if left is not None:
                if left == 0:
                    return
                left -= 1
            if options.json:
                show_json(record_json(record))
            else:
                print(f"  {record_line(record, verbose=True)}")


def export_lines(options: argparse.Namespace) -> None:
    target = Path(options.target)
    summary = []
    with open_broker(options) as broker:
        known = {one.topic.casefold(): one.topic for one in broker.topics()}
        for topic in options.topics or known.values():
            broker.size(topic)  # refuses an unknown topic
            declared = known[topic.casefold()]
            count = _export_topic(broker, declared, target / declared, escape=options.escape)
            summary.append({"topic": declared, "messages": count})
    _answer(options, summary, "exported")


def _export_topic(broker: Broker, topic: str, folder: Path, *, escape: bool) -> int:
    if folder.exists():
        raise RefusedError(f"{folder} exists: export to an empty place")
    (folder / "subscriptions").mkdir(parents=True)
    progress = Progress(f"exporting {topic}")
    count = 0
    first: int | None = None
    with (folder / "messages.log").open("wb") as lines:
        start: str | int = "earliest"
        while records := broker.read(topic, start=start, limit=EXPORT_BATCH):
            first = records[0].offset if first is None else first
            for record in records:
                lines.write(_line(record.payload, topic, record.offset, escape=escape) + b"\n")
            count += len(records)
            start = records[-1].offset + 1
            progress.tell(f"{count:,} messages")
    progress.done()
    for consumer in broker.consumers(topic):
        path = folder / "subscriptions" / f"{quote(consumer.consumer, safe=' ')}.offset"
        path.write_text(f"{max(consumer.next_offset - (first or 0), 0)}\n")
    return count


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
            f"message {offset} of {topic} holds a newline, which a line cannot: use --escape"
        )
    return payload


def import_lines(options: argparse.Namespace) -> None:
    source = Path(options.source)
    folders = sorted(path.parent for path in source.glob("*/messages.log"))
    if not folders:
        raise RefusedError(f"{source} holds no <topic>/messages.log")
    summary = []
    with open_broker(options, create=True) as broker:
        for folder in folders:
            broker.create_topic(folder.name)
            count = _import_topic(broker, folder, escape=options.escape)
            summary.append({"topic": folder.name, "messages": count})
    _answer(options, summary, "imported")


def _import_topic(broker: Broker, folder: Path, *, escape: bool) -> int:
    progress = Progress(f"importing {folder.name}")
    count = 0
    for batch in _line_batches(folder / "messages.log"):
        messages = [_unescape(line) if escape else line for line in batch]
        count += len(broker.publish_many([_text_if_possible(one) for one in messages], folder.name))
        progress.tell(f"{count:,} messages")
    progress.done()
    for path in sorted((folder / "subscriptions").glob("*.offset")):
        text = path.read_text().strip()
        if not text.isdigit() or int(text) > count:
            raise RefusedError(f"{path} says {text!r}: a line number up to {count} is expected")
        broker.subscribe(unquote(path.name.removesuffix(".offset")), folder.name, start=int(text))
    return count


def _line_batches(path: Path) -> Iterator[list[bytes]]:
    with path.open("rb") as lines:
        batch = []
        for line in lines:
            batch.append(line.removesuffix(b"\n"))
            if len(batch) == EXPORT_BATCH:
                yield batch
                batch = []
        if batch:
            yield batch


_ESCAPES: Final = {b"n": b"\n", b"r": b"\r", b"\\": b"\\"}


def _unescape(line: bytes) -> bytes:
    out = []
    at = 0
    while (found := line.find(b"\\", at)) >= 0:
        out.append(line[at:found])
        kind = line[found + 1 : found + 2]
        if kind in _ESCAPES:
            out.append(_ESCAPES[kind])
            at = found + 2
        elif kind == b"x":
            try:
                out.append(bytes.fromhex(line[found + 2 : found + 4].decode("ascii", "replace")))
            except ValueError:
                raise RefusedError(f"line {line[:80]!r} holds a broken \\x escape") from None
            at = found + 4
        else:
            raise RefusedError(f"line {line[:80]!r} holds an unknown escape: was it exported so?")
    out.append(line[at:])
    return b"".join(out)


def _text_if_possible(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _answer(options: argparse.Namespace, summary: list[dict[str, Any]], what: str) -> None:
    if options.json:
        show_json(summary)
    else:
        for entry in summary:
            print(f"{what} {entry['topic']}: {entry['messages']:,} messages")
