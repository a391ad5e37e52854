"""What a broker stores is for its user alone: files 0600, directories 0700.

Whatever makes a file or a directory gives it this mode. Here those are changed that an earlier
version made, or that somebody opened to others. Only what a broker makes is touched: other files in
the directory stay as they are, and so does the directory itself while it holds any.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from penstock.catalog.outside import CATALOG_NAME
from penstock.catalog.reports import REPORTS
from penstock.catalog.schema.upgrade import COPY_PATTERN
from penstock.log.files.directory import LOCK_NAME, RESERVE_NAME, STORAGE_NAME
from penstock.log.files.disk import RealDisk
from penstock.log.files.layout import AREA, find_logs, log_directory
from penstock.log.files.upkeep.moment import SNAPSHOTS

OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
FILES: Final = (
    *(LOCK_NAME, RESERVE_NAME, STORAGE_NAME),
    *(CATALOG_NAME, f"{CATALOG_NAME}-wal", f"{CATALOG_NAME}-shm"),
)
TREES: Final = (AREA, REPORTS, SNAPSHOTS)


def keep_private(root: Path) -> None:
    """Close a data directory, which is locked, to everybody but its owner, if that is us."""
    ours = {root / name for name in FILES} | set(root.glob(COPY_PATTERN))
    if root.stat().st_mode & OTHERS:  # else nobody gets at what is below
        for log in find_logs(RealDisk(), root):
            directory = log_directory(root, log)
            ours |= {directory.parent, *_tree(directory)}
        for name in TREES:
            ours.update(_tree(root / name))
    for path in ours:
        _close(path)
    if all(path in ours or _is_nobodys(path) for path in root.iterdir()):
        _close(root)


def _tree(root: Path) -> Iterator[Path]:
    yield root
    for directory, names, files in os.walk(root):
        for name in (*names, *files):
            yield Path(directory, name)


def _is_nobodys(path: Path) -> bool:
    """An empty directory, such as a tenant's without topics, or the socket of a bus."""
    mode = path.lstat().st_mode
    return stat.S_ISSOCK(mode) or (stat.S_ISDIR(mode) and not any(path.iterdir()))


def _close(path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    is_ours = found.st_uid == os.geteuid() and not found.st_mode & stat.S_ISVTX
    if is_ours and found.st_mode & OTHERS and not stat.S_ISLNK(found.st_mode):
        path.chmod(stat.S_IMODE(found.st_mode) & ~OTHERS)
