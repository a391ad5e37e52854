"""Small programs that store something, erase it, and say so.

Usage: erasing_child.py table|catalog DIRECTORY. Each line of standard output is a JSON array:
["stored", end], ["erased"].
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from penstock.catalog.database.sqlite import SqliteDatabase
from penstock.core.erasure import Erasure
from penstock.log.history.child import WriterLock
from penstock.log.history.files import encode_file
from penstock.log.history.manifest import create_manifest, file_facts
from penstock.log.history.orders import Erase, TableFacts
from penstock.log.history.place import TablePlace
from penstock.log.history.storage import DirectoryStorage
from penstock.log.history.work import Tables
from tests.log.files.segments import plain_run
from tests.log.format.batch_model import TOPIC, ModelLog

SECRET = random.Random("alice").randbytes(24)  # in what is erased; no compression changes it
FACTS = TableFacts(TOPIC, 7, "life")
FILES = 2
FILE_RECORDS = 20
RECORDS = FILES * FILE_RECORDS


class NoLock(WriterLock):
    """Nobody else writes."""

    def take(self, path: str) -> None: ...


def is_alice(number: int) -> bool:
    return number % 5 == 3


def payload(number: int) -> bytes:
    body = b"%d " % number + random.Random(f"record {number}").randbytes(200)
    return SECRET + body if is_alice(number) else body


def order(root: Path) -> Erase:
    place = TablePlace(str(root / "table"))
    erasure = Erasure("n/alice", RECORDS)
    return Erase(place, FACTS.life, erasure, str(root / "lock"), dry_run=False)


def erase_from_table(root: Path) -> None:
    model = ModelLog()
    batches = [
        model.batch([plain_run("n/alice" if is_alice(at) else "n/bob", [payload(at)])])
        for at in range(RECORDS)
    ]
    manifest = create_manifest(DirectoryStorage(root / "table"), FACTS)
    for base in range(0, RECORDS, FILE_RECORDS):
        end = base + FILE_RECORDS
        manifest.add(encode_file(batches, base, end, file_facts(manifest, 1)), 1)
        tell("stored", end)
    Tables(NoLock()).perform(order(root))
    tell("erased")


def erase_from_catalog(root: Path) -> None:
    database = SqliteDatabase(root / "catalog.db")
    with database.transaction():
        database.execute("create table kept (number bigint primary key, payload blob)")
    for number in range(RECORDS):
        insert(database, number)
    with database.transaction():
        gone = [(number,) for number in range(RECORDS) if is_alice(number)]
        database.execute_many("delete from kept where number = $1", gone)
        database.scrub()
    tell("erased")
    for number in range(RECORDS, 2 * RECORDS):
        if not is_alice(number):
            insert(database, number)
    database.close()


def insert(database: SqliteDatabase, number: int) -> None:
    with database.transaction():
        database.execute("insert into kept values ($1, $2)", number, payload(number))
    tell("stored", number + 1)


def tell(*words: object) -> None:
    os.write(1, json.dumps(words).encode() + b"\n")


PROGRAMS = {"table": erase_from_table, "catalog": erase_from_catalog}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](Path(sys.argv[2]))
