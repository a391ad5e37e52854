"""The catalog as it was at one moment, to be copied while the broker goes on changing it.

A second connection holds a read transaction: SQLite's write-ahead log shows it the moment at which
it began, whatever is committed later.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Final

from penstock.catalog.outside import BUSY_S_MAX, CATALOG_NAME
from penstock.model.errors import UnavailableError
from penstock.model.limits import FILE_MODE

_TOPICS: Final = "select tenant, topic_id from topics order by topic_id"


class CatalogView:
    """Made on any thread and used by one at a time; hold it briefly: the WAL grows meanwhile."""

    def __init__(self, data: Path) -> None:
        file = data / CATALOG_NAME
        self._connection = sqlite3.connect(
            file, BUSY_S_MAX, isolation_level=None, check_same_thread=False
        )
        try:
            self._connection.execute("pragma query_only = on")
            self._connection.execute("begin")
            self.topics: list[tuple[str, int]] = self._connection.execute(_TOPICS).fetchall()
        except sqlite3.Error as failed:
            self._connection.close()
            raise UnavailableError(f"catalog {file} cannot be read: {failed}") from failed

    def copy_to(self, path: Path) -> None:
        """Write the whole catalog as one file that needs no other. Blocking."""
        path.touch(FILE_MODE)
        copy = sqlite3.connect(path, isolation_level=None)
        try:
            self._connection.backup(copy)
            copy.execute("pragma journal_mode = delete")
        except sqlite3.Error as failed:
            raise UnavailableError(f"the catalog cannot be copied to {path}: {failed}") from failed
        finally:
            copy.close()
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def close(self) -> None:
        self._connection.close()
