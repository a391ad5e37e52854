"""Implements `Origin` on the files of a data directory, also while a broker writes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.core.naming.names import topic_key
from penstock.log.files.reader import FileReader
from penstock.log.files.segment import segment_bases, segment_path
from penstock.log.history.place import read_root
from penstock.log.interface import LogIdentity
from penstock.model.errors import CorruptError, Gap, TopicNotFound
from penstock.model.record import DEFAULT_TENANT, TenantId
from penstock.pipeline.source.origin import DELETED, Range, TopicState, Wanted, lost, piece_count
from penstock.pipeline.source.topics import DirectoryTopics

if TYPE_CHECKING:
    from penstock.pipeline.source.history import Histories, History


class DirectoryOrigin:
    """The topics of a tenant below a data directory. Pickles without what it has looked at."""

    def __init__(self, path: Path, tenant: TenantId = DEFAULT_TENANT) -> None:
        self._given = (path, tenant)
        self._topics = DirectoryTopics(path, tenant)
        self._readers: dict[int, FileReader] = {}
        self._histories: Histories | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return DirectoryOrigin, self._given

    def states(self, topics: tuple[str, ...], *, missing_ok: bool = False) -> list[TopicState]:
        found = self._topics.all()
        if topics:
            wanted = {topic_key(topic): topic for topic in topics}
            if not missing_ok:
                for topic in wanted.values():
                    self._topics.find(topic)
            found = {key: found[key] for key in wanted if key in found}
        return [state for state in map(self._state, found.values()) if state is not None]

    def history(self, topic_id: int) -> History | None:
        """What is stored of a topic outside its log, as it is now."""
        if self._histories is None:
            if read_root(self._topics.path) is None:
                return None
            from penstock.pipeline.source.history import Histories  # pyarrow and deltalake

            self._histories = Histories(self._topics.path)
        return self._histories.find(self._identity(topic_id))

    def version(self, topic_id: int) -> tuple[Any, ...]:
        """Which files a log has: it differs after every change, also of records that were there."""
        directory = self._topics.directory_of(self._identity(topic_id))
        found = []
        for base in segment_bases(self._topics.disk, directory):
            with suppress(FileNotFoundError):  # it was trimmed meanwhile
                facts = segment_path(directory, base).stat()
                found.append((base, facts.st_ino, facts.st_mtime_ns))
        return str(directory), *found

    def offset_at(self, topic: TopicState, timestamp_us: int) -> int:
        reader = self._reader(topic.topic_id)
        found = reader.offset_at(timestamp_us)
        if found > topic.first and found == reader.bounds().first:  # or before it
            cold = self.history(topic.topic_id)
            return found if cold is None else min(cold.offset_at(timestamp_us), found)
        return found

    def stamp_at(self, topic: TopicState, offset: int) -> int | None:
        try:
            batches = self._reader(topic.topic_id).read(offset)
        except TopicNotFound:
            return None
        except Gap:
            cold = self.history(topic.topic_id)
            return None if cold is None else cold.stamp_at(offset)
        for batch in batches:
            if batch.base_offset <= offset < batch.end_offset:
                return batch.timestamp(offset - batch.base_offset)
        return None

    def clamp(self, topic: TopicState, epoch: int, offset: int) -> int:
        return self._reader(topic.topic_id).clamp(epoch, offset)

    def cut(self, wanted: Range, pieces_min: int) -> list[Range]:
        records = wanted.end - wanted.start
        reader = self._reader(wanted.topic_id)
        stored = reader.stored_bytes(wanted.start, wanted.end)
        first = reader.bounds().first
        cold = self.history(wanted.topic_id) if wanted.start < first else None
        if cold is not None:
            stored += cold.bytes_between(wanted.start, min(first, wanted.end))
        count = piece_count(records, stored, pieces_min)
        cuts = [wanted.start + records * number // count for number in range(1, count)]
        if cold is None:
            cuts = reader.cuts(wanted.start, wanted.end, count)
        edges = [wanted.start, *cuts, wanted.end]
        return [
            Range(wanted.topic, wanted.topic_id, wanted.epoch, start, end)
            for start, end in pairwise(edges)
        ]

    def scan(self, piece: Range, wanted: Wanted) -> Iterator[Any]:
        from penstock.pipeline.source.scan import scan_files  # pyarrow: only tasks need it

        try:
            reader = self._reader(piece.topic_id)
        except TopicNotFound:
            if wanted.fails_on_loss:
                raise lost(piece.topic, piece.start, piece.end, DELETED) from None
            return iter(())
        return scan_files(reader, piece, wanted, partial(self.history, piece.topic_id))

    def _reader(self, topic_id: int) -> FileReader:
        if topic_id not in self._readers:
            self._open(self._identity(topic_id))
        return self._readers[topic_id]

    def _identity(self, topic_id: int) -> LogIdentity:
        for identity in self._topics.all().values():
            if identity.topic_id == topic_id:
                return identity
        raise TopicNotFound(f"no topic has the id {topic_id}: it was deleted")

    def _open(self, identity: LogIdentity) -> FileReader:
        directory = self._topics.directory_of(identity)
        return self._readers.setdefault(identity.topic_id, FileReader(self._topics.disk, directory))

    def _state(self, identity: LogIdentity) -> TopicState | None:
        """None when the topic is deleted while we look."""
        try:
            reader = self._open(identity)
            first, end = reader.bounds()
            # After the bounds of the log: in the other order, records that go into the history in
            # between would be in neither.
            cold = self.history(identity.topic_id) if first > 0 else None
            if cold is not None and cold.end >= first:
                first = min(first, cold.first)
            topic = self._topics.name_of(identity)
            return TopicState(topic, identity.topic_id, reader.epoch(), first, end)
        except CorruptError:
            if self._topics.directory_of(identity).is_dir():
                raise
            return None
