"""`penstock history list|show|verify|import|drop`: tables of old records (penstock[history])."""

from __future__ import annotations

import argparse
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.broker.settings import make_settings
from penstock.cli.output import (
    Progress,
    UsageError,
    agrees,
    counted,
    human_bytes,
    offset_range,
    show_json,
    show_table,
)
from penstock.cli.target import add_target, target_path
from penstock.config import load
from penstock.log.files.directory import keep_closed
from penstock.log.files.disk import RealDisk
from penstock.log.files.layout import find_logs, log_directory
from penstock.log.history.place import HistoryRoot, history_root, read_root
from penstock.log.history.tier import LIFE_NAME, read_known
from penstock.model.errors import CorruptError, InvalidSetting, RefusedError, UnavailableError
from penstock.model.record import shown_time

if TYPE_CHECKING:
    from penstock.log.history.manifest import Manifest


def add_commands(commands: Any) -> None:
    parser = commands.add_parser("history")
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    listing = actions.add_parser("list", help="list all tables")
    listing.set_defaults(run=list_tables)
    shown = actions.add_parser("show", help="show the files of a table")
    shown.set_defaults(run=show_files)
    verify = actions.add_parser(
        "verify",
        help="read every byte; the exit code is 1 if a table is damaged",
        description="Read every file of the tables and report damage. Works also while a broker "
        "writes them.",
    )
    verify.add_argument("tables", nargs="*", metavar="TABLE", help="tables (default: all)")
    verify.set_defaults(run=verify_tables)
    drop = actions.add_parser(
        "drop",
        help="delete a table with all its records",
        description="Delete a table with all its records. If it belongs to a topic of the data "
        "directory (--at), no broker may have that open; the topic begins a new table.",
    )
    drop.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    drop.set_defaults(run=drop_table)
    imported = actions.add_parser(
        "import",
        help="copy an archive into the history of a topic",
        description="Copy the records of a topic from a table that the job `archive` wrote into "
        "the topic's history. No broker may have the data directory (--at) open, and the archive "
        "must hold every record once, up to the first record of the log at least.",
    )
    imported.add_argument(
        "table", metavar="TABLE", help="tenant, topic and id, such as default/orders-1"
    )
    imported.add_argument("archive", metavar="ARCHIVE", type=Path, help="directory of the archive")
    imported.add_argument("--dry-run", action="store_true", help="check, and change nothing")
    imported.set_defaults(run=import_archive)
    for action in (shown, drop):
        action.add_argument("table", metavar="TABLE", help="as listed, such as default/orders-1")
    for action in (listing, shown, verify, imported, drop):
        add_place(action)
        add_target(action, has_tenant=False)  # the names of tables begin with it


def add_place(parser: argparse.ArgumentParser) -> None:
    """Where the tables are."""
    parser.add_argument(
        "--url",
        metavar="URL",
        help="where the tables are (default: as in --config, or as the broker of --at has it)",
    )
    parser.add_argument(
        "--config", metavar="FILE", type=Path, help="settings file with [history] and its options"
    )


def root_of(options: argparse.Namespace) -> HistoryRoot:
    """RefusedError without the packages that it needs; UsageError without an address."""
    if find_spec("deltalake") is None:
        raise RefusedError(
            "histories need the packages pyarrow and deltalake: pip install 'penstock[history]'"
        )
    effective = load(options.config)
    if options.url:
        _check_url(options.url)
    url = options.url or effective.values["history.url"]
    if not url:
        noted = None if "://" in options.at else read_root(Path(options.at))
        if noted is None:
            raise UsageError("the address of the tables is not known: give --url, or --config")
        url = noted.url
    return history_root(url, effective.history_options)


def _check_url(url: str) -> None:
    try:
        make_settings({"history_url": url})
    except InvalidSetting as wrong:
        raise UsageError(str(wrong).replace("history_url", "--url", 1)) from None


def _open(root: HistoryRoot, table: str) -> Manifest:
    manifest = _found(root, table)
    if manifest is None:
        raise _no_table(root, table)
    return manifest


def _found(root: HistoryRoot, table: str) -> Manifest | None:
    from penstock.log.history.manifest import open_manifest
    from penstock.log.history.storage import storage_of

    return open_manifest(storage_of(root.table(table)))


def _no_table(root: HistoryRoot, table: str) -> RefusedError:
    return RefusedError(f"{root.url!r} has no table {table!r}: see `penstock history list`")


def list_tables(options: argparse.Namespace) -> int:
    from penstock.log.history.storage import find_tables

    root = root_of(options)
    found = [_looked_at(root, table) for table in find_tables(root)]
    problems = [problem for one in found for problem in one.problems]
    if options.json:
        show_json([one.as_json() if one.problems else one.facts() for one in found])
    elif not found:
        print(f"no tables in {root.url}")
    else:
        show_table(
            ["table", "topic", "first", "end", "files", "stored"], [one.row() for one in found]
        )
        for problem in problems:
            print(problem)
    return 1 if problems else 0


def _facts(table: str, manifest: Manifest) -> dict[str, Any]:
    return {
        "table": table,
        "topic": manifest.facts.topic,
        "topic_id": manifest.facts.topic_id,
        "url": manifest.storage.uri,
        "first_offset": manifest.first,
        "end_offset": manifest.end,
        "epoch": manifest.epoch,
        "bytes": manifest.bytes,
        "files": len(manifest.files),
    }


def show_files(options: argparse.Namespace) -> None:
    manifest = _open(root_of(options), options.table)
    if options.json:
        files = [
            {
                "file": str(file.name),
                "first_offset": file.name.base,
                "end_offset": file.name.end,
                "bytes": file.bytes,
                "first_time": shown_time(file.first_timestamp),
                "last_time": shown_time(file.last_timestamp),
            }
            for file in manifest.files
        ]
        show_json(_facts(options.table, manifest) | {"files": files})
        return
    print(f"{manifest.storage.uri}: topic {manifest.facts.topic}, epoch {manifest.epoch}")
    show_table(
        ["offsets", "stored", "first record", "last record"],
        [
            [
                offset_range(file.name.base, file.name.end),
                human_bytes(file.bytes),
                shown_time(file.first_timestamp),
                shown_time(file.last_timestamp),
            ]
            for file in manifest.files
        ],
    )


def verify_tables(options: argparse.Namespace) -> int:
    from penstock.log.history.storage import find_tables

    root = root_of(options)
    reports = [verify_table(root, table) for table in options.tables or find_tables(root)]
    is_clean = not any(one.problems for one in reports)
    if options.json:
        show_json({"clean": is_clean, "tables": [one.as_json() for one in reports]})
        return 0 if is_clean else 1
    for one in reports:
        one.show()
    print("no damage found" if is_clean else "damage found: see above")
    return 0 if is_clean else 1


@dataclass(slots=True)
class TableReport:
    """What `verify` found in a table; `manifest` is None if it cannot be opened."""

    table: str
    manifest: Manifest | None
    problems: list[str]

    def facts(self) -> dict[str, Any]:
        return _facts(self.table, self.manifest) if self.manifest else {"table": self.table}

    def as_json(self) -> dict[str, Any]:
        return self.facts() | {"problems": self.problems}

    def row(self) -> list[Any]:
        """As `list` shows it."""
        held = self.manifest
        if held is None:
            return [self.table, "unreadable", "", "", "", ""]
        stored = human_bytes(held.bytes)
        return [self.table, held.facts.topic, held.first, held.end, len(held.files), stored]

    def show(self) -> None:
        held = "unreadable"
        if self.manifest is not None:
            held = offset_range(self.manifest.first, self.manifest.end)
        print(f"history {self.table}: {held}: {'DAMAGED' if self.problems else 'ok'}")
        for problem in self.problems:
            print(f"  {problem}")


def _looked_at(root: HistoryRoot, table: str) -> TableReport:
    """A table without a look at its files; a torn commit looks like a store that is away."""
    try:
        return TableReport(table, _open(root, table), [])
    except (CorruptError, RefusedError, UnavailableError) as broken:
        return TableReport(table, None, [str(broken)])


def verify_table(root: HistoryRoot, table: str) -> TableReport:
    """Read every byte of a table."""
    found = _looked_at(root, table)
    manifest = found.manifest
    if manifest is None:
        return found
    progress = Progress("verifying")
    problems = []
    for file in manifest.files:
        progress.tell(f"{table} {file.name}")
        try:
            manifest.open_file(file).verify()
        except CorruptError as broken:
            problems.append(str(broken))
    progress.done()
    return TableReport(table, manifest, problems)


def verify_history_of(root: HistoryRoot, directory: Path, log_first: int) -> TableReport | None:
    """Verify the table of a log, and that both together have no hole; None if it has none."""
    known = read_known(RealDisk(), directory)
    if known is None:
        return None
    found = verify_table(root, f"{directory.parent.name}/{directory.name}")
    if found.manifest is not None:
        if found.manifest.facts.life != known.life:
            found.problems.append("the table is the history of another topic")
        elif found.manifest.end < log_first:
            found.problems.append(
                f"the records from offset {found.manifest.end} to {log_first} are missing: the "
                f"history ends before the log begins"
            )
    return found


def drop_table(options: argparse.Namespace) -> None:
    root, data = root_of(options), target_path(options)
    log = data / options.table
    known = None
    with suppress(CorruptError):
        known = read_known(RealDisk(), log)
    manifest = _found(root, options.table)
    if manifest is None and known is None:
        raise _no_table(root, options.table)
    count = 0 if manifest is None else manifest.end - manifest.first
    question = f"delete table {options.table} and its {counted(count, 'record')}? [y/N] "
    if manifest is None:
        question = f"{root.url} has no table {options.table}: forget it? [y/N] "
    if not options.yes and not agrees(question):
        raise RefusedError("not deleted: answer y, or give --yes")
    is_ours = known is not None and (manifest is None or known.life == manifest.facts.life)
    with keep_closed(data) as is_closed:
        if is_ours and not is_closed:
            raise RefusedError(
                f"the table belongs to a topic of {data}, which a broker has open: stop the "
                "broker first"
            )
        if manifest is not None:
            manifest.storage.remove_all()
        if is_ours:
            # Afterwards: a log that remembers a table without one refuses to begin another.
            (log / LIFE_NAME).unlink()
    if options.json:
        show_json({"dropped": options.table})
    else:
        print(f"dropped table {options.table}")


def import_archive(options: argparse.Namespace) -> None:
    from penstock.log.history.importing import look_at, write_history

    root, data, disk = root_of(options), target_path(options), RealDisk()
    with keep_closed(data) as is_closed:
        if not is_closed:
            raise RefusedError(f"a broker has {data} open: stop it first")
        logs = {f"{one.tenant}/{one.slug}-{one.topic_id}": one for one in find_logs(disk, data)}
        identity = logs.get(options.table)
        if identity is None:
            raise RefusedError(
                f"{data} has no topic {options.table!r} in files: it has {', '.join(logs)}"
            )
        log = log_directory(data, identity)
        found = look_at(disk, log, identity.topic_id, options.archive)
        if not options.dry_run:
            write_history(disk, log, found, root.place(identity))
    if options.json:
        show_json({"topic": found.topic, "first_offset": found.first, "end_offset": found.end})
    else:
        verb = "would import" if options.dry_run else "imported"
        print(f"{verb} {offset_range(found.first, found.end)} of topic {found.topic}")
