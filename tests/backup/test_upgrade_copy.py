"""Does an upgrade of the catalog leave a copy from before, and does it say where?"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from penstock import Broker
from penstock.catalog.outside import CATALOG_NAME
from penstock.catalog.schema.migrations import MIGRATIONS


def test_an_upgrade_copies_the_catalog_first_and_says_where(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Broker(data) as broker:
        broker.create_topic("t")
        assert not broker.notes
    golden = Path(__file__).parents[1] / "catalog" / "golden" / "v1.sql"
    (data / CATALOG_NAME).unlink()
    old = sqlite3.connect(data / CATALOG_NAME)
    old.executescript(golden.read_text())
    old.close()
    newest = MIGRATIONS[-1].number
    with Broker(data) as broker:
        (note,) = [one for one in broker.notes if "upgraded" in one]
    copy = data / "catalog-version-1.db"
    assert f"from version 1 to {newest}" in note and str(copy) in note
    assert copy.stat().st_mode & 0o777 == 0o600
    connection = sqlite3.connect(copy)
    assert connection.execute("select max(version) from schema_version").fetchone() == (1,)
    connection.close()
    with Broker(data) as broker:
        assert not [one for one in broker.notes if "upgraded" in one]
