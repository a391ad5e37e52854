"""`penstock log verify|dump|export|import`. verify and dump need no lock and change nothing."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from penstock.cli.arguments import whole_number
from penstock.cli.data.histories import add_place, root_of, verify_history_of
from penstock.cli.data.lines import LAYOUT, export_lines, import_lines
from penstock.cli.data.tables import NDJSON, PARQUET, TIME_HEADER, export_tables, import_tables
from penstock.cli.output import (
    Progress,
    counted,
    human_bytes,
    offset_range,
    record_json,
    record_line,
    show_json,
    warn,
)
from penstock.cli.remote import add_remote
from penstock.cli.target import add_target, existing_path
from penstock.log.files.directory import check_has_files
from penstock.log.files.disk import RealDisk
from penstock.log.files.layout import find_logs, log_directory, read_facts
from penstock.log.files.reader import FileReader
from penstock.log.files.upkeep.verify import LogReport, verify_log
from penstock.log.format.batch import Batch
from penstock.log.format.marks import NO_RECORD
from penstock.model.errors import CorruptError, TopicNotFound
from penstock.model.record import DEFAULT_TENANT

FILES = (
    "With ndjson or parquet every topic is one file with names, headers, times and payloads. "
    f"With lines: {LAYOUT[0].lower()}{LAYOUT[1:]}"
)


def add_commands(commands: Any) -> None:
    parser = commands.add_parser("log")
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    for action in (_add_verify(actions), _add_dump(actions)):
        add_target(action)
    for action in (_add_export(actions), _add_import(actions)):
        _add_format(action)
        add_remote(action)


def _add_verify(actions: Any) -> argparse.ArgumentParser:
    verify: argparse.ArgumentParser = actions.add_parser(
        "verify",
        help="check every byte; the exit code is 1 if a log is damaged",
        description="Read every byte of every log, of all tenants unless --tenant names one, and "
        "report damage with its location. Works also while a broker has the directory open.",
    )
    verify.add_argument("topics", nargs="*", metavar="TOPIC", help="topics (default: all)")
    verify.add_argument(
        "--history", action="store_true", help="verify the histories of the topics, too"
    )
    add_place(verify)
    verify.set_defaults(run=verify_logs)
    return verify


def _add_dump(actions: Any) -> argparse.ArgumentParser:
    dump: argparse.ArgumentParser = actions.add_parser(
        "dump", help="show batches and records as they are stored"
    )
    dump.add_argument("topic", help="name of the topic (not case-sensitive)")
    dump.add_argument(
        "--from",
        dest="start",
        type=_offset,
        metavar="OFFSET",
        help="first offset (default: the first stored)",
    )
    dump.add_argument("--limit", type=whole_number, metavar="N", help="at most N records")
    dump.add_argument("--batches", action="store_true", help="show only the headers of batches")
    dump.set_defaults(run=dump_log)
    return dump


def _add_export(actions: Any) -> argparse.ArgumentParser:
    export: argparse.ArgumentParser = actions.add_parser(
        "export", help="write topics as files", description=f"Write topics as files. {FILES}"
    )
    export.add_argument(
        "target", metavar="DIR", help="directory to write to; it must not contain these topics"
    )
    export.add_argument("topics", nargs="*", metavar="TOPIC", help="topics (default: all)")
    export.set_defaults(run=lambda options: _by_format(options, export_lines, export_tables))
    return export


def _add_import(actions: Any) -> argparse.ArgumentParser:
    import_: argparse.ArgumentParser = actions.add_parser(
        "import", help="read topics from files", description=f"Read topics from files. {FILES}"
    )
    import_.add_argument("source", metavar="DIR", help="directory that export wrote")
    import_.add_argument(
        "--keep-times",
        action="store_true",
        help=f"with ndjson and parquet: add the time of each record as header {TIME_HEADER}",
    )
    import_.set_defaults(run=lambda options: _by_format(options, import_lines, import_tables))
    return import_


def _add_format(action: argparse.ArgumentParser) -> None:
    kind = action.add_mutually_exclusive_group(required=True)
    kind.add_argument(
        "--format",
        choices=[NDJSON, PARQUET, "lines"],
        help="ndjson or parquet: with names, headers and times; lines: payloads only",
    )
    kind.add_argument(
        "--lines",
        dest="format",
        action="store_const",
        const="lines",
        help="the same as --format lines: one message per line",
    )
    action.add_argument(
        "--escape",
        action="store_true",
        help="with lines: write newlines, backslashes and bytes that are not UTF-8 as "
        "\\n, \\\\ and \\xNN",
    )


def _by_format(
    options: argparse.Namespace,
    lines: Callable[[argparse.Namespace], None],
    tables: Callable[[argparse.Namespace], None],
) -> None:
    (lines if options.format == "lines" else tables)(options)


def _offset(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not an offset: 0, 1, 2, …")
    return int(text)


class Found(NamedTuple):
    """A log in a data directory."""

    tenant: str
    topic: str  # as declared
    directory: Path

    @property
    def shown(self) -> str:
        of = "" if self.tenant == DEFAULT_TENANT else f" of tenant {self.tenant}"
        return self.topic + of


def _find(options: argparse.Namespace, topics: list[str]) -> list[Found]:
    """The logs asked for, from the files alone; without topics and a tenant, those of all."""
    root = existing_path(options)
    check_has_files(root)
    disk = RealDisk()
    tenant = options.of_tenant or (DEFAULT_TENANT if topics else "")
    found = []
    for identity in find_logs(disk, root):
        if tenant not in ("", identity.tenant):
            continue
        directory = log_directory(root, identity)
        try:
            found.append(Found(identity.tenant, read_facts(disk, directory).topic, directory))
        except CorruptError as broken:
            warn(broken)
            found.append(Found(identity.tenant, identity.slug, directory))
    if options.of_tenant and not found:
        raise TopicNotFound(
            f"{root} has no topics of tenant {tenant!r}: see `penstock tenant list --at {root}`"
        )
    if not topics:
        return found
    wanted = {topic.casefold() for topic in topics}
    missing = wanted - {one.topic.casefold() for one in found}
    if missing:
        raise TopicNotFound(
            f"{root} has no topic {sorted(missing)[0]!r}: see `penstock topic list --at {root}`"
        )
    return [one for one in found if one.topic.casefold() in wanted]


def verify_logs(options: argparse.Namespace) -> int:
    root = root_of(options) if options.history else None
    tables = []
    progress = Progress("verifying")
    reports: list[tuple[Found, LogReport]] = []
    for one in _find(options, options.topics):
        done = sum(report.bytes for _, report in reports)

        def tell(path: Path, size: int, name: str = one.shown, done: int = done) -> None:
            progress.tell(f"{name} {path.name} ({human_bytes(done)} so far)")

        # Before the history: what retention takes meanwhile is in it then.
        reports.append((one, verify_log(RealDisk(), one.directory, tell)))
        if root is not None:
            tables.append(verify_history_of(root, one.directory, reports[-1][1].first_offset))
    progress.done()
    histories = [one for one in tables if one is not None]
    is_clean = not any(report.problems for _, report in reports)
    is_clean = is_clean and not any(one.problems for one in histories)
    if options.json:
        show_json(
            {
                "clean": is_clean,
                "logs": [
                    {
                        "tenant": one.tenant,
                        "topic": one.topic,
                        "first_offset": report.first_offset,
                        "end_offset": report.end_offset,
                        "segments": report.segments,
                        "bytes": report.bytes,
                        "problems": [str(problem) for problem in report.problems],
                        "set_aside": [str(path) for path in report.set_aside],
                    }
                    for one, report in reports
                ],
                **({"histories": [one.as_json() for one in histories]} if options.history else {}),
            }
        )
        return 0 if is_clean else 1
    for one, report in reports:
        print(
            f"{one.shown}: {offset_range(report.first_offset, report.end_offset)}, "
            f"{counted(report.segments, 'segment')}, {human_bytes(report.bytes)}: "
            f"{'DAMAGED' if report.problems else 'ok'}"
        )
        for problem in report.problems:
            print(f"  {problem}")
        for path in report.set_aside:
            print(f"  {path}: set aside by an earlier recovery; its content is not in the log")
    for table in histories:
        table.show()
    if not reports:
        print("no topics yet")
    else:
        print("no damage found" if is_clean else "damage found: see above")
    return 0 if is_clean else 1


def dump_log(options: argparse.Namespace) -> None:
    ((_, name, directory),) = _find(options, [options.topic])
    reader = FileReader(RealDisk(), directory)
    first, end = reader.bounds()
    start = first if options.start is None else options.start
    left = options.limit
    for batch in _told(reader.batches(start, end)):
        h = batch.header
        if options.json and options.batches:
            show_json(
                {
                    "base_offset": h.base_offset,
                    "end_offset": h.end_offset,
                    "epoch": h.epoch,
                    "bytes": h.stored_length,
                    "checksum": f"{h.checksum:08x}",
                    "is_compressed": bool(h.compression),
                    "marks": len(batch.marks()),
                }
            )
        elif not options.json:
            print(
                f"batch {offset_range(h.base_offset, h.end_offset)}  epoch {h.epoch}  "
                f"{h.stored_length} bytes  checksum {h.checksum:08x}"
                f"{'  lz4' if h.compression else ''}"
            )
            for mark in batch.marks():
                of = "" if mark.index == NO_RECORD else f" of record {h.base_offset + mark.index}"
                print(f"  mark kind {mark.kind}{of}: {mark.key!r}")
        if options.batches:
            continue
        for record in batch.records(name, start, end):
            if options.json:
                show_json(record_json(record))
            else:
                print(f"  {record_line(record, verbose=True)}")
            if left is not None:
                left -= 1
                if left == 0:
                    return


def _told(batches: Iterable[Batch]) -> Iterator[Batch]:
    """The same batches; how far they are is shown on a terminal that does not get the output."""
    progress = Progress("dumping")
    try:
        for batch in batches:
            if not sys.stdout.isatty():
                progress.tell(f"offset {batch.base_offset:,}")
            yield batch
    finally:
        progress.done()
