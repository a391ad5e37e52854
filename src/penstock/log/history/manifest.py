"""The manifest of a history: a Delta table whose log names every file with its bounds.

Each commit that adds a file also says, as application transactions, how far the history goes and of
which life of which topic it is. So whatever happens to the writer, what the table says it holds it
holds exactly once. Invariant: files are contiguous and disjoint; rows = end − base.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from penstock.log.history.files import (
    EncodedFile,
    FileFacts,
    FileName,
    HistoryFile,
    check_stored,
    parse_name,
)
from penstock.log.history.orders import TableFacts
from penstock.log.history.schema import SCHEMA
from penstock.log.history.storage import TableStorage, said
from penstock.model.errors import CorruptError, RefusedError, UnavailableError
from penstock.model.record import shown_time

END: Final = "penstock end"  # the names of the transactions
TOPIC_ID: Final = "penstock topic id"
EPOCH: Final = "penstock epoch"
# Nothing happens behind a commit: what is written there would not be synced.
_NO_HOOKS: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file of the table as its log knows it."""

    name: FileName
    bytes: int
    first_timestamp: int  # µs
    last_timestamp: int


class Manifest:
    """One table, as of the last `refresh` or commit. Blocking.

    UnavailableError: the store is away, or somebody else writes the table. RefusedError: the table
    is not as this writer leaves it.
    """

    def __init__(self, storage: TableStorage, table: DeltaTable) -> None:
        self.storage = storage
        self._table = table
        self.files: list[ListedFile] = []  # oldest first
        self._look()

    def _look(self) -> None:
        self.facts = _facts_of(self._table, self.storage.uri)
        self.files = _listed(self._table, self.storage.uri)
        versions = [self._table.transaction_version(name) for name in (END, TOPIC_ID, EPOCH)]
        self.end, topic_id, self.epoch = [version or 0 for version in versions]
        uri = repr(self.storage.uri)
        if self.files and self.files[-1].name.end != self.end:
            raise RefusedError(
                f"the files of history {uri} end at offset {self.files[-1].name.end}, but its "
                f"newest commit says {self.end}: "
                "somebody else changed the table; restore it to its last good version"
            )
        if self.end and topic_id != self.facts.topic_id:
            raise RefusedError(
                f"history {uri} belongs to the topic with id {self.facts.topic_id}, but its "
                f"commits to the one with id {topic_id}: restore it to its last good version"
            )

    @property
    def first(self) -> int:
        """The first offset that it holds; the end if it holds none."""
        return self.files[0].name.base if self.files else self.end

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    def refresh(self) -> None:
        """Take note of commits since."""
        try:
            self._table.update_incremental()
        except (DeltaError, OSError) as failed:
            raise _away(self.storage, failed) from failed
        self._look()

    def add(self, file: EncodedFile, epoch: int) -> None:
        """Store a file and name it; it is part of the history, durably, when this returns.

        A file that does not go on at the end is refused. One that is named already is fine: the
        answer to an earlier commit may have been lost.
        """
        self.refresh()
        if any(listed.name == file.name for listed in self.files):
            self.storage.sync_log()
            return
        if file.name.base != self.end and (self.files or self.end):
            raise RefusedError(
                f"history {self.storage.uri!r} ends at offset {self.end}: a file that begins "
                f"at {file.name.base} cannot follow"
            )
        self._store(file)
        marks = {END: file.name.end, TOPIC_ID: self.facts.topic_id, EPOCH: epoch}
        self._commit([_add_action(file)], marks)

    def _store(self, file: EncodedFile) -> None:
        """Put a file in its place and read it back."""
        try:
            self.storage.put(str(file.name), file.data)
            check_stored(file, self.storage.open(str(file.name)))
        except OSError as failed:
            raise _away(self.storage, failed) from failed

    def replace(self, old: ListedFile, new: EncodedFile) -> None:
        """Another file with the same range of offsets takes the place of one, in one commit."""
        assert (old.name.base, old.name.end) == (new.name.base, new.name.end)
        assert old.name != new.name
        self._store(new)
        self._commit([_remove_action(old), _add_action(new)], {})

    def remove_unnamed(self) -> None:
        """Remove every file of ours that the table does not name, however young, for good."""
        named = {str(file.name) for file in self.files}
        try:
            for text in self.storage.names():
                if parse_name(text.removesuffix(".tmp")) is not None and text not in named:
                    self.storage.remove(text)
        except OSError as failed:
            raise _away(self.storage, failed) from failed

    def remove(self, files: Sequence[ListedFile]) -> None:
        """Take the oldest files out of the table; `vacuum` removes them from the store later."""
        assert list(files) == self.files[: len(files)], "only the oldest files may go"
        self._commit([_remove_action(file) for file in files], {})

    def _commit(self, actions: Sequence[AddAction | RemoveAction], marks: dict[str, int]) -> None:
        transactions = [Transaction(name, version) for name, version in marks.items()]
        try:
            self._table.create_write_transaction(
                [*actions],
                "append",
                SCHEMA,
                commit_properties=CommitProperties(
                    max_commit_retries=0, app_transactions=transactions
                ),
                post_commithook_properties=_NO_HOOKS,
            )
        except CommitFailedError as failed:
            raise UnavailableError(
                f"somebody else writes the history {self.storage.uri!r}: {said(failed)}"
            ) from failed
        except (DeltaError, OSError) as failed:
            raise _away(self.storage, failed) from failed
        self.storage.sync_log()
        self.refresh()

    def remove_orphans(self) -> list[str]:
        """Remove files that a writer left which ended before its commit; their names."""
        known = {str(file.name) for file in self.files}
        gone = []
        for text in self.storage.names():
            name = parse_name(text.removesuffix(".tmp"))
            if name is not None and text not in known and name.base >= self.end:
                self.storage.remove(text)
                gone.append(text)
        return gone

    def vacuum(self) -> list[str]:
        """Remove files from the store that left the table a week ago; their names."""
        try:
            return self._table.vacuum(
                dry_run=False, post_commithook_properties=_NO_HOOKS, full=False
            )
        except (DeltaError, OSError) as failed:
            raise _away(self.storage, failed) from failed
        finally:
            self.storage.sync_log()

    def open_file(self, file: ListedFile, *, is_coded: bool = False) -> HistoryFile:
        """A file of the table, open for reading; CorruptError if it is damaged."""
        try:
            source = self.storage.open(str(file.name))
            return HistoryFile(file.name, source, is_coded=is_coded)
        except FileNotFoundError as gone:
            raise CorruptError(f"{self.storage.uri}/{file.name} is missing") from gone
        except pa.ArrowException as broken:
            raise CorruptError(f"{self.storage.uri}/{file.name}: {broken}") from broken


def open_manifest(storage: TableStorage) -> Manifest | None:
    """The table in a place; None if there is none."""
    try:
        return Manifest(storage, DeltaTable(storage.uri, storage_options=storage.options))
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as failed:
        raise _away(storage, failed) from failed


def create_manifest(storage: TableStorage, facts: TableFacts) -> Manifest:
    """A new table without files; RefusedError if there is one."""
    try:
        table = DeltaTable.create(
            storage.uri,
            SCHEMA,
            "error",
            name=facts.topic,
            description=msgspec.json.encode(facts).decode(),
            storage_options=storage.options,
            post_commithook_properties=_NO_HOOKS,
        )
    except (DeltaError, OSError) as failed:
        raise _away(storage, failed) from failed
    storage.sync_log()
    return Manifest(storage, table)


def check_life(manifest: Manifest, life: str) -> None:
    """RefusedError if the table is the history of another topic."""
    if manifest.facts.life != life:
        raise RefusedError(
            f"table {manifest.storage.uri!r} is the history of another topic of this name "
            "and id: give another [history] url, or remove it with `penstock history drop`"
        )


def file_facts(manifest: Manifest, epoch: int) -> FileFacts:
    """What the next file says of itself."""
    return FileFacts(manifest.facts.topic, manifest.facts.topic_id, epoch)


def _facts_of(table: DeltaTable, uri: str) -> TableFacts:
    try:
        return msgspec.json.decode(table.metadata().description or "", type=TableFacts)
    except msgspec.DecodeError:
        raise RefusedError(
            f"table {uri!r} is not the history of a topic: choose another [history] url, or "
            "use `penstock history import`"
        ) from None


def _listed(table: DeltaTable, uri: str) -> list[ListedFile]:
    """The files in order; RefusedError names one that this writer did not add."""
    actions: list[dict[str, Any]] = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    files = []
    for action in actions:
        name = parse_name(action["path"])
        if name is None or action["num_records"] != name.end - name.base:
            raise RefusedError(
                f"history {uri!r} has the file {action['path']!r}, which Penstock did "
                "not write: only its broker may append; restore the table to its last good version"
            )
        stamps = [_stamp(action[f"{bound}.timestamp"]) for bound in ("min", "max")]
        files.append(ListedFile(name, action["size_bytes"], stamps[0], stamps[1]))
    files.sort(key=lambda file: file.name.base)
    for before, after in pairwise(files):
        if before.name.end != after.name.base:
            raise RefusedError(
                f"history {uri!r} goes from offset {before.name.end} to {after.name.base}: "
                "somebody else changed the table; restore it to its last good version"
            )
    return files


def _stamp(moment: Any) -> int:
    """µs since 1970 of a moment as the table's log gives it back."""
    whole = pa.scalar(moment, pa.timestamp("us", tz="UTC"))
    return int(whole.value)


def _remove_action(file: ListedFile) -> RemoveAction:
    now_ms = time.time_ns() // 1_000_000
    return RemoveAction(str(file.name), True, now_ms, file.bytes, {})


def _add_action(file: EncodedFile) -> AddAction:
    name = file.name
    stats = {
        "numRecords": name.end - name.base,
        "minValues": {"offset": name.base, "timestamp": shown_time(file.first_timestamp)},
        "maxValues": {"offset": name.end - 1, "timestamp": shown_time(file.last_timestamp)},
        "nullCount": {"offset": 0, "timestamp": 0},
    }
    now_ms = time.time_ns() // 1_000_000
    return AddAction(
        path=str(name),
        size=file.data.size,
        partition_values={},
        modification_time=now_ms,
        data_change=True,
        stats=json.dumps(stats),
    )


def _away(storage: TableStorage, failed: Exception) -> UnavailableError:
    return UnavailableError(f"history {storage.uri!r} cannot be reached: {said(failed)}")
