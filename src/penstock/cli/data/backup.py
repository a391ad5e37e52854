"""`penstock backup` and `penstock restore`: all of a broker at one moment, and back."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from penstock.app.backup.copying import (
    RATE_BYTES_S,
    Copied,
    Pace,
    check_target,
    copy_snapshot,
    open_source,
    snapshot_here,
)
from penstock.app.backup.layout import Manifest, Source, read_manifest
from penstock.app.backup.restoring import check, choose_moment, restore
from penstock.cli.arguments import whole_number
from penstock.cli.output import (
    EXIT_DONE,
    EXIT_REFUSED,
    Progress,
    UsageError,
    counted,
    human_bytes,
    show_json,
    show_table,
    shown_time,
    warn,
)
from penstock.cli.remote import ask_at, served_at
from penstock.cli.target import add_target, filled_path
from penstock.config import storage_settings
from penstock.core.masking import without_login
from penstock.log.files.directory import check_has_files, read_holder
from penstock.log.files.disk import RealDisk
from penstock.log.files.upkeep.moment import SNAPSHOTS
from penstock.log.files.upkeep.verify import verify_log
from penstock.model import unix_socket
from penstock.model.errors import PenstockError, UnavailableError
from penstock.model.limits import MIB

KEEP_MOMENTS = 7


def add_commands(commands: Any) -> None:
    backup = commands.add_parser(
        "backup",
        description="Copy the catalog and all topics, as they are at one moment, while the broker "
        "goes on working or while nobody has the directory open. A directory receives only what "
        "is new since the last backup, and has the newest moments; an archive "
        "FILE.tar.zst holds one. A backup that was interrupted does not count.",
    )
    backup.add_argument(
        "target", metavar="DIR|FILE.tar.zst", help="directory or new archive to write to"
    )
    backup.add_argument(
        "--keep",
        type=whole_number,
        default=KEEP_MOMENTS,
        metavar="N",
        help=f"in a directory: keep the N newest moments ({KEEP_MOMENTS})",
    )
    backup.add_argument(
        "--rate",
        type=whole_number,
        default=RATE_BYTES_S // MIB,
        metavar="MIB",
        help=f"copy at most this many MiB per second ({RATE_BYTES_S // MIB})",
    )
    add_target(backup, has_tenant=False)
    backup.set_defaults(run=make_backup)
    back = commands.add_parser(
        "restore",
        description="Make a data directory from a backup. Checksums are verified, and so is every "
        "log. Positions that readers took after the moment of the backup are moved back when they "
        "come again, because every topic begins a new epoch.",
    )
    back.add_argument("source", metavar="BACKUP", help="directory or archive of `penstock backup`")
    back.add_argument(
        "target", metavar="DIR", nargs="?", help="new or empty directory to restore to"
    )
    back.add_argument(
        "--moment", metavar="TIME", default="", help="restore this moment (default: the newest)"
    )
    back.add_argument("--list", action="store_true", help="list the moments, and restore nothing")
    back.add_argument(
        "--check", action="store_true", help="verify all checksums, and restore nothing"
    )
    back.add_argument("--json", action="store_true", help="print JSON")
    back.set_defaults(run=restore_backup)


def make_backup(options: argparse.Namespace) -> int:
    if "://" in options.at:
        raise UsageError(
            f"--at {without_login(options.at)!r} is a URL, but a backup copies files: run "
            "`penstock backup` on the broker's machine, as its user, with --at DATA_DIRECTORY"
        )
    data, target = filled_path(options), Path(options.target)
    check_has_files(data)
    check_target(target)
    progress = Progress("copying")
    pace = Pace(options.rate * MIB, lambda done: progress.tell(human_bytes(done)))
    with _snapshot(options, data) as snapshot:
        copied = copy_snapshot(snapshot, target, pace, options.keep)
    progress.done()
    _show(copied, as_json=options.json)
    return EXIT_REFUSED if copied.manifest.left_out else EXIT_DONE


@contextmanager
def _snapshot(options: argparse.Namespace, data: Path) -> Iterator[Path]:
    """A snapshot that the broker of the directory takes: a running one, or one opened here."""
    url = served_at(options.at)
    if url is None and read_holder(data) is None:
        with snapshot_here(data, storage_settings()) as (snapshot, notes):
            for note in notes:
                warn(note)
            yield snapshot
        return
    if url is None or not url.startswith(unix_socket.SCHEME):
        raise UnavailableError(
            f"the program that has {str(data)!r} open takes no commands from this user: run "
            "`penstock backup` as the user of `penstock serve`, or end the program"
        )
    name = ask_at(url, "", "POST", "/v1/snapshots")["snapshot"]
    try:
        yield data / SNAPSHOTS / name
    finally:
        with suppress(PenstockError):  # the broker removes it by itself, a little later
            ask_at(url, "", "DELETE", f"/v1/snapshots/{name}")


def _show(copied: Copied, *, as_json: bool) -> None:
    manifest = copied.manifest
    for problem in manifest.left_out:
        warn(f"not in the backup: {problem}")
    if as_json:
        facts = _facts(manifest)
        facts |= {"path": str(copied.path), "new_files": copied.new_files}
        show_json(facts | {"new_bytes": copied.new_bytes, "pruned": copied.pruned})
        return
    old = copied.new_bytes != manifest.bytes
    print(
        f"{copied.path}: moment {manifest.name}, {counted(len(manifest.logs), 'topic')}, "
        f"{counted(manifest.records, 'record')}, {human_bytes(manifest.bytes)}"
        + (f" ({human_bytes(copied.new_bytes)} new)" if old else "")
    )


def _facts(manifest: Manifest) -> dict[str, Any]:
    return {
        "moment": manifest.name,
        "taken_at": manifest.taken_at,
        "version": manifest.version,
        "topics": len(manifest.logs),
        "records": manifest.records,
        "bytes": manifest.bytes,
        "left_out": manifest.left_out,
    }


def restore_backup(options: argparse.Namespace) -> int:
    if options.target is None and not (options.list or options.check):
        raise UsageError("name the directory to restore to, or use --list or --check")
    source = open_source(Path(options.source))
    try:
        if options.list:
            return _list(source, as_json=options.json)
        manifest = choose_moment(source, options.moment)
        progress = Progress("checking" if options.check else "restoring")
        done = 0

        def tell(count: int) -> None:
            nonlocal done
            done += count
            progress.tell(f"{human_bytes(done)} of {human_bytes(manifest.bytes)}")

        if options.check:
            check(source, manifest, tell)
            progress.done()
            return _say("checked", manifest, options)
        restore(source, manifest, Path(options.target), tell)
    finally:
        source.close()
    problems = _verify(Path(options.target), manifest, progress)
    progress.done()
    for problem in problems:
        warn(problem)
    return _say("restored", manifest, options, problems)


def _verify(target: Path, manifest: Manifest, progress: Progress) -> list[str]:
    """What was wrong with the logs before they were copied."""
    problems = []
    for log in manifest.logs:
        directory = target / log.moment.tenant / log.moment.directory
        progress.tell(f"verifying {log.moment.directory}")
        problems += [str(one) for one in verify_log(RealDisk(), directory).problems]
    return problems


def _say(
    what: str, manifest: Manifest, options: argparse.Namespace, problems: list[str] | None = None
) -> int:
    if options.json:
        show_json(_facts(manifest) | {"problems": problems or []})
    else:
        where = f" to {options.target}" if what == "restored" else ""
        print(
            f"{what} moment {manifest.name}{where}: {counted(len(manifest.logs), 'topic')}, "
            f"{counted(manifest.records, 'record')}, {human_bytes(manifest.bytes)}"
        )
    return EXIT_REFUSED if problems else EXIT_DONE


def _list(source: Source, *, as_json: bool) -> int:
    manifests = [read_manifest(source, moment) for moment in source.moments()]
    if as_json:
        show_json([_facts(one) for one in manifests])
        return EXIT_DONE
    show_table(
        ("moment", "taken at", "topics", "records", "size"),
        [
            (
                one.name,
                shown_time(one.taken_at),
                len(one.logs),
                one.records,
                human_bytes(one.bytes),
            )
            for one in manifests
        ],
    )
    return EXIT_DONE
