"""Tables of history as their readers see them: which files count, and what each holds.

Tables and files stay open for the next reader: a store far away takes longer to open a file than to
give a part of it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from contextlib import suppress
from typing import Final

import pyarrow as pa

from penstock.log.format.batch import Batch
from penstock.log.history.files import FileName, HistoryFile, parse_name
from penstock.log.history.manifest import ListedFile, Manifest, open_manifest
from penstock.log.history.place import HistoryRoot
from penstock.log.history.reading.constants import GroupReader
from penstock.log.history.reading.orders import ColdFacts
from penstock.log.history.reading.rows import to_batches
from penstock.log.history.schema import SCHEMA
from penstock.log.history.storage import TableStorage, storage_of
from penstock.log.interface import LogIdentity
from penstock.model.errors import CorruptError

FILES_MAX: Final = 32  # open at once
TABLES_MAX: Final = 256
ATTEMPTS: Final = 3  # with the same outcome, until pages count as damaged
_LIGHT: Final = [name for name in SCHEMA.names if name != "payload"]


class GroupedFile:
    """One file, read a group of rows at a time."""

    def __init__(self, name: FileName, source: pa.NativeFile) -> None:
        self._source = source
        self._file = HistoryFile(name, source, is_coded=True)
        self._groups = GroupReader(self._file.parquet)
        self._turn = threading.Lock()  # a Parquet file serves one thread at a time

    def index(self) -> tuple[list[int], list[int]]:
        """The first offset and the first time (µs) of each group of rows."""
        with self._turn:
            facts = self._file.parquet.metadata
            names = [facts.schema.column(at).path for at in range(facts.num_columns)]
            columns = names.index("offset"), names.index("timestamp")
            groups = [facts.row_group(number) for number in range(facts.num_row_groups)]
            lowest = [[group.column(at).statistics.min_raw for at in columns] for group in groups]
            return [offset for offset, _ in lowest], [timestamp for _, timestamp in lowest]

    def read(self, group: int, first: int = 0, count: int = 0) -> list[Batch]:
        """The records of a group of rows, or `count` of them from row `first` on."""
        failures = []
        for _ in range(ATTEMPTS):
            try:
                with self._turn:
                    rows = self._part(group, first, count) if count else self._groups.read([group])
                return to_batches(rows, self._file.facts.epoch)
            except (OSError, pa.ArrowException) as failed:
                failures.append(failed)
        # Arrow has the same error for damaged pages and for a store that is away.
        if len({str(one) for one in failures}) == 1 and self._has_answer():
            raise CorruptError(str(failures[0])) from failures[0]
        raise failures[-1]

    def _part(self, group: int, first: int, count: int) -> pa.Table:
        """Some rows: payloads are most of a group, and only pages with such rows are decoded."""
        rows = self._groups.read([group], _LIGHT).slice(first, count)
        payloads = self._file.payloads(group, range(first, first + rows.num_rows))
        return rows.add_column(SCHEMA.get_field_index("payload"), "payload", payloads)

    def _has_answer(self) -> bool:
        """Does the store give us the file?"""
        with self._turn, suppress(OSError, pa.ArrowException):
            self._source.seek(0)
            return bool(self._source.read(1))
        return False


class _Table:
    def __init__(self, storage: TableStorage) -> None:
        self.storage = storage
        self.manifest: Manifest | None = None
        self.turn = threading.Lock()


class Tables:
    """All tables below one place. May be used by several threads."""

    def __init__(self, root: HistoryRoot) -> None:
        self._root = root
        self._turn = threading.Lock()
        self._tables: OrderedDict[LogIdentity, _Table] = OrderedDict()
        self._files: OrderedDict[tuple[LogIdentity, str], GroupedFile] = OrderedDict()

    def list_files(self, log: LogIdentity, life: str = "") -> list[ColdFacts]:
        """The files that count now, in the order of their offsets; empty without a table.

        A table of another life is that of another log: it counts as none.
        """
        table = self._table(log)
        with table.turn:
            if table.manifest is None:
                table.manifest = open_manifest(table.storage)
            else:
                table.manifest.refresh()
            found: list[ListedFile] = []
            if table.manifest is not None and life in ("", table.manifest.facts.life):
                found = table.manifest.files
            self._let_go(log, {str(one.name) for one in found})
            return [
                ColdFacts(str(one.name), one.name.base, one.name.end, one.last_timestamp)
                for one in found
            ]

    def open(self, log: LogIdentity, name: str) -> GroupedFile:
        """The file; FileNotFoundError, CorruptError."""
        key = (log, name)
        with self._turn:
            known = self._files.get(key)
            if known is not None:
                self._files.move_to_end(key)
                return known
        parsed = parse_name(name)
        if parsed is None:
            raise CorruptError(f"{name} is not the name of a history file")
        opened = GroupedFile(parsed, self._table(log).storage.open(name))
        with self._turn:
            self._files[key] = opened
            while len(self._files) > FILES_MAX:
                self._files.popitem(last=False)
        return opened

    def _let_go(self, log: LogIdentity, named: set[str]) -> None:
        """Close files that the table no longer names: a store that removed them has their room."""
        with self._turn:
            for key in [key for key in self._files if key[0] == log and key[1] not in named]:
                del self._files[key]

    def _table(self, log: LogIdentity) -> _Table:
        with self._turn:
            known = self._tables.get(log)
            if known is None:
                known = self._tables[log] = _Table(storage_of(self._root.place(log)))
            self._tables.move_to_end(log)
            while len(self._tables) > TABLES_MAX:
                self._tables.popitem(last=False)
            return known
