"""A copy of the catalog before its tables change, so that an upgrade has a way back."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Final

from penstock.catalog.outside import CATALOG_NAME
from penstock.catalog.schema.migrations import MIGRATIONS
from penstock.catalog.view import CatalogView

COPY_PATTERN: Final = "catalog-version-*.db"


def copy_before_upgrade(data: Path, newest: int = MIGRATIONS[-1].number) -> list[str]:
    """What to tell people: where the copy is; empty if the catalog is new or not to be changed.

    Blocking. An earlier copy of the same version is replaced: the upgrade after it failed.
    """
    version = _version(data / CATALOG_NAME)
    if not 0 < version < newest:
        return []
    copy = data / COPY_PATTERN.replace("*", str(version))
    temporary = copy.with_name(copy.name + ".tmp")
    temporary.unlink(missing_ok=True)
    view = CatalogView(data)
    try:
        view.copy_to(temporary)
    finally:
        view.close()
    os.rename(temporary, copy)
    return [
        f"the catalog was upgraded from version {version} to {newest}; the copy from before is "
        f"{copy}: to go back, stop the broker, put the copy in the place of {CATALOG_NAME}, and "
        "start the earlier Penstock"
    ]


def _version(file: Path) -> int:
    """The version of the tables; 0 if there are none yet."""
    connection = sqlite3.connect(file, isolation_level=None)
    try:
        tables = "select count(*) from sqlite_master where name = 'schema_version'"
        if connection.execute(tables).fetchone() == (0,):
            return 0
        sql = "select coalesce(max(version), 0) from schema_version"
        return int(connection.execute(sql).fetchone()[0])
    finally:
        connection.close()
