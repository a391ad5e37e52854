"""Topics as files with all that records have, NDJSON or Parquet: one file per topic, in and out.

The broker stamps what it stores, so imported records have the time of the import; `--keep-times`
adds the time that the file has as header `original-time`.
"""

from __future__ import annotations

import argparse
import base64
import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from penstock.cli.data.lines import (
    BATCH_LINES,
    answer,
    declared_folder,
    imported_topic,
    text_if_possible,
)
from penstock.cli.output import Progress, naming, record_json
from penstock.cli.remote import AnyBroker, reach_broker
from penstock.model.errors import RefusedError
from penstock.model.record import KIND_BYTES, KIND_JSON, KIND_NAMES, Record

NDJSON: Final = "ndjson"
PARQUET: Final = "parquet"
TIME_HEADER: Final = "original-time"
_KINDS: Final = {True: KIND_NAMES[KIND_JSON], False: KIND_NAMES[KIND_BYTES]}


class Row(NamedTuple):
    """What is published again: records of one name and with the same headers go together."""

    name: str
    headers: tuple[tuple[str, str], ...]
    message: Any


class _Writer(Protocol):
    def write(self, records: list[Record]) -> None: ...

    def close(self) -> None: ...


class _JsonWriter:
    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")

    def write(self, records: list[Record]) -> None:
        for record in records:
            self._file.write(json.dumps(record_json(record), ensure_ascii=False) + "\n")

    def close(self) -> None:
        self._file.close()


class _ParquetWriter:
    def __init__(self, path: Path) -> None:
        pa, pq = _pyarrow()
        pair = pa.struct([("key", pa.string()), ("value", pa.string())])
        self._schema = pa.schema(
            [
                ("offset", pa.int64()),
                ("timestamp", pa.timestamp("us", "UTC")),
                ("name", pa.string()),
                ("headers", pa.list_(pair)),
                ("publisher", pa.string()),
                ("qos", pa.int8()),
                ("retain", pa.bool_()),
                ("kind", pa.string()),
                ("payload", pa.binary()),
            ]
        )
        self._pa = pa
        self._file = pq.ParquetWriter(path, self._schema)

    def write(self, records: list[Record]) -> None:
        rows = [
            {
                "offset": one.offset,
                "timestamp": one.time,
                "name": one.name,
                "headers": [{"key": key, "value": value} for key, value in one.headers],
                "publisher": one.publisher,
                "qos": one.qos,
                "retain": one.retain,
                "kind": _KINDS[one.kind == KIND_JSON],
                "payload": one.payload,
            }
            for one in records
        ]
        self._file.write_table(self._pa.Table.from_pylist(rows, self._schema))

    def close(self) -> None:
        self._file.close()


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise RefusedError(
            "--format parquet needs the package pyarrow, which is not installed: "
            "pip install 'penstock[arrow]', or use --format ndjson"
        ) from None
    return pyarrow, pyarrow.parquet


def export_tables(options: argparse.Namespace) -> None:
    """Write a file per topic; if one fails, none is left."""
    target = Path(options.target)
    summary, made = [], []
    with reach_broker(options) as broker:
        known = {one.topic.casefold(): one.topic for one in broker.topics()}
        wanted = [declared_folder(broker, known, one) for one in options.topics or known.values()]
        try:
            for topic in wanted:
                file = target / f"{topic}.{options.format}"
                if file.exists():
                    raise RefusedError(f"{file} already exists: export to another directory")
                made.append(file)
                with naming(f"{file} cannot be written"):
                    target.mkdir(parents=True, exist_ok=True)
                    summary.append({"topic": topic, "messages": _export(broker, topic, file)})
        except BaseException:
            for file in made:
                with suppress(OSError):
                    file.unlink()
            raise
    answer(options, summary, "exported")


def _export(broker: AnyBroker, topic: str, file: Path) -> int:
    progress = Progress(f"exporting {topic}")
    writer: _Writer = _JsonWriter(file) if file.suffix == f".{NDJSON}" else _ParquetWriter(file)
    count, start = 0, "earliest"
    try:
        while records := broker.read(topic, start=start, limit=BATCH_LINES):
            writer.write(records)
            count += len(records)
            start = str(records[-1].offset + 1)
            progress.tell(f"{count:,} messages")
    finally:
        writer.close()
    progress.done()
    return count


def import_tables(options: argparse.Namespace) -> None:
    """Create a topic per file and publish its records in order; a topic that fails is deleted."""
    source = Path(options.source)
    files = sorted(source.glob(f"*.{options.format}"))
    if not files:
        raise RefusedError(
            f"{source} contains no <topic>.{options.format}: give a directory that "
            f"`penstock log export --format {options.format}` wrote"
        )
    read = _read_json if options.format == NDJSON else _read_parquet
    summary = []
    with reach_broker(options, create=True) as broker:
        for file in files:
            with imported_topic(broker, file.stem):
                rows = read(file, keep_times=options.keep_times)
                count = _import(broker, file.stem, rows)
            summary.append({"topic": file.stem, "messages": count})
    answer(options, summary, "imported")


def _import(broker: AnyBroker, topic: str, rows: Iterable[Row]) -> int:
    progress = Progress(f"importing {topic}")
    count = 0
    for (name, headers), group in groupby(rows, key=lambda row: row[:2]):
        messages = [row.message for row in group]
        for at in range(0, len(messages), BATCH_LINES):
            part = messages[at : at + BATCH_LINES]
            broker.publish_many(messages=part, topic=topic, name=name, headers=list(headers))
            count += len(part)
        progress.tell(f"{count:,} messages")
    progress.done()
    return count


def _row(name: str, headers: Iterable[Any], message: Any, time: str) -> Row:
    pairs = [(str(key), str(value)) for key, value in headers]
    if time:
        pairs.append((TIME_HEADER, time))
    return Row(name, tuple(pairs), message)


def _read_json(file: Path, *, keep_times: bool) -> Iterator[Row]:
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                one = json.loads(line)
                if "payload_base64" in one:
                    message = base64.b64decode(one["payload_base64"], validate=True)
                else:
                    message = one["payload"]
                time = one["time"] if keep_times else ""
                yield _row(one["name"], one.get("headers", []), message, time)
            except (ValueError, KeyError, TypeError) as wrong:
                raise RefusedError(
                    f"{file}, line {number}, is not a record ({wrong!r}): a line needs name and "
                    "payload, as `penstock log export --format ndjson` writes them"
                ) from wrong


def _read_parquet(file: Path, *, keep_times: bool) -> Iterator[Row]:
    pa, pq = _pyarrow()
    try:
        for batch in pq.ParquetFile(file).iter_batches(BATCH_LINES):
            for one in batch.to_pylist():
                payload = one["payload"]
                is_json = one["kind"] == _KINDS[True]
                message = json.loads(payload) if is_json else text_if_possible(payload)
                headers = [(pair["key"], pair["value"]) for pair in one["headers"] or ()]
                time = one["timestamp"].isoformat().replace("+00:00", "Z") if keep_times else ""
                yield _row(one["name"], headers, message, time)
    except (KeyError, ValueError, pa.ArrowException) as wrong:
        raise RefusedError(
            f"{file} is not a file of records ({wrong!r}): it needs the columns that `penstock log "
            "export --format parquet` writes"
        ) from wrong
