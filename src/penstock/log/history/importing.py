"""An archive becomes the history of a topic: its rows are checked, and written as history files.

An archive keeps no kind, QoS and retain flag, and of headers with the same key only the first; such
records become bytes of QoS 1. The archive itself stays as it is.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from penstock.core.naming.names import quoted
from penstock.log.files.disk import Disk, write_file
from penstock.log.files.endfile import read_end
from penstock.log.files.layout import read_facts
from penstock.log.files.reader import FileReader
from penstock.log.format.batch import Batch
from penstock.log.history.files import encode_file
from penstock.log.history.manifest import (
    Manifest,
    check_life,
    create_manifest,
    file_facts,
    open_manifest,
)
from penstock.log.history.orders import TableFacts
from penstock.log.history.place import TablePlace
from penstock.log.history.reading.rows import to_batches
from penstock.log.history.schema import SCHEMA
from penstock.log.history.storage import storage_of
from penstock.log.history.tier import LIFE_NAME, Known, read_known
from penstock.model.errors import RefusedError

FILE_ROWS: Final = 1_000_000  # of one file: about what 64 MiB of sealed segments hold
GROUP_ROWS: Final = 16_384  # that become batches at once
_WANTED: Final = {"topic", "topic_id", "epoch", "offset", "timestamp", "name", "payload"}


@dataclass(frozen=True, slots=True)
class Importable:
    """The records [first, end) of a topic in an archive, which its log goes on from."""

    topic: str
    topic_id: int
    first: int
    end: int
    epoch: int
    rows: Any  # the dataset of the archive, only rows of the topic


def look_at(disk: Disk, log: Path, topic_id: int, archive: Path) -> Importable:
    """What of an archive can become the history of a log; RefusedError says why it cannot."""
    known = read_known(disk, log)
    if known is not None and not known.import_end:
        raise RefusedError(f"{log.name} has a history already: drop that first")
    topic = read_facts(disk, log).topic
    rows = _rows_of(archive, topic, topic_id)
    found = rows.to_table(columns=["offset", "epoch"])
    offsets = np.sort(found["offset"].to_numpy())
    steps = np.diff(offsets)
    if (steps != 1).any():
        at = int(offsets[int(np.argmax(steps != 1))])
        raise RefusedError(
            f"the archive {quoted(str(archive))} has a gap: offset {at} is followed by "
            f"{int(offsets[np.searchsorted(offsets, at) + 1])}; only archives that hold every "
            "record once can be imported"
        )
    epoch = int(pc.max(found["epoch"]).as_py())
    made = Importable(
        topic=topic,
        topic_id=topic_id,
        first=int(offsets[0]),
        end=int(offsets[-1]) + 1,
        epoch=epoch,
        rows=rows,
    )
    _check_border(disk, log, made)
    if known is not None and known.import_end != made.end:
        raise RefusedError(
            f"an import up to offset {known.import_end} was interrupted, and this archive ends at "
            f"{made.end}: import the same archive again, or drop the history first"
        )
    return made


def _rows_of(archive: Path, topic: str, topic_id: int) -> Any:
    try:
        table = DeltaTable(str(archive))
    except TableNotFoundError:
        raise RefusedError(f"{quoted(str(archive))} is not a Delta table") from None
    missing = _WANTED.difference(table.to_pyarrow_dataset().schema.names)
    if missing:
        raise RefusedError(
            f"{quoted(str(archive))} is not an archive that can be imported: it has no column "
            f"{', '.join(sorted(missing))}, which `penstock pipeline run archive` writes"
        )
    # The files themselves: the library's own dataset leaves out files by their statistics.
    files = ds.dataset(table.file_uris(), schema=_file_schema(table), format="parquet")
    rows = files.filter(ds.field("topic") == topic)
    ids = pc.unique(rows.to_table(columns=["topic_id"])["topic_id"]).to_pylist()
    if topic_id not in ids:
        held = f"of other lives of it (topic id {', '.join(map(str, ids))})" if ids else "none"
        raise RefusedError(
            f"the archive {quoted(str(archive))} has no records of topic {quoted(topic)} with id "
            f"{topic_id}, but {held}"
        )
    return rows.filter(ds.field("topic_id") == topic_id)


def _file_schema(table: DeltaTable) -> pa.Schema:
    """The columns of the files, which do not store what they are partitioned by."""
    parts = table.metadata().partition_columns
    return pa.schema([one for one in table.to_pyarrow_dataset().schema if one.name not in parts])


def _check_border(disk: Disk, log: Path, made: Importable) -> None:
    """The archive reaches the log, does not go beyond it, and both have the same records."""
    reader = FileReader(disk, log)
    first, end = reader.bounds()
    if not first <= made.end <= end:
        raise RefusedError(
            f"the archive has the offsets {made.first} to {made.end - 1} and the log begins at "
            f"{first} and ends before {end}: an archive must reach the first record of the log, "
            "and not go beyond its last one"
        )
    written = read_end(disk, log)
    if written is not None and made.epoch > written.epoch:
        raise RefusedError(f"the archive is of epoch {made.epoch}, the log of {written.epoch}")
    for offset in {max(first, made.first), made.end - 1}:
        if first <= offset < made.end:
            (batch, *_) = reader.read(offset)
            (ours,) = batch.records("", offset, offset + 1)
            row = made.rows.filter(ds.field("offset") == offset).to_table().to_pylist()[0]
            stamp = pa.scalar(row["timestamp"], pa.timestamp("us", tz="UTC")).value
            if (stamp, row["name"], row["payload"]) != (ours.timestamp, ours.name, ours.payload):
                raise RefusedError(
                    f"the archive and the log have different records at offset {offset}: it is "
                    "not the archive of this topic"
                )


def write_history(disk: Disk, log: Path, made: Importable, place: TablePlace) -> None:
    """Make the table, and tell the log that it is its history.

    The log knows of the table before there is one. So an import that was killed is repeated by the
    same command, and goes on behind the last file that the table names.
    """
    known = read_known(disk, log)
    if known is None:
        if open_manifest(storage_of(place)) is not None:
            raise RefusedError(f"there is a table at {place.uri!r} already: drop it first")
        known = Known(uuid.uuid4().hex, import_end=made.end)
        _store_known(disk, log, known)
    manifest = _begun_table(place, TableFacts(made.topic, made.topic_id, known.life))
    for base in range(manifest.end or made.first, made.end, FILE_ROWS):
        end = min(base + FILE_ROWS, made.end)
        facts = file_facts(manifest, made.epoch)
        manifest.add(encode_file(_batches(made, base, end), base, end, facts), made.epoch)
    _store_known(disk, log, Known(known.life, made.end))


def _begun_table(place: TablePlace, facts: TableFacts) -> Manifest:
    """The table of this import, made if it is missing; RefusedError if it is another one."""
    storage = storage_of(place)
    storage.repair_log()
    manifest = open_manifest(storage)
    if manifest is None:
        return create_manifest(storage, facts)
    check_life(manifest, facts.life)
    manifest.remove_orphans()
    return manifest


def _store_known(disk: Disk, log: Path, known: Known) -> None:
    write_file(disk, log / LIFE_NAME, msgspec.json.encode(known) + b"\n")


def _batches(made: Importable, base: int, end: int) -> Iterator[Batch]:
    wanted = (ds.field("offset") >= base) & (ds.field("offset") < end)
    found = made.rows.filter(wanted).to_table().sort_by("offset")
    count = len(found)
    filled = {
        "publisher": pc.fill_null(found["publisher"].cast(pa.string()), ""),
        "header_pairs": pa.nulls(count, SCHEMA.field("header_pairs").type),
        "kind": pa.array(["bytes"]).take(pa.array(np.zeros(count, np.int64))),
        "qos": pa.array(np.ones(count, np.int64)),
        "retain": pa.array(np.zeros(count, bool)),
    }
    columns = {name: found[name] for name in SCHEMA.names if name in found.schema.names} | filled
    rows = pa.table([columns[one.name].cast(one.type) for one in SCHEMA], schema=SCHEMA)
    for at in range(0, count, GROUP_ROWS):
        yield from to_batches(rows.slice(at, GROUP_ROWS), made.epoch)
