"""Implements `Origin` on a running broker: Arrow or stored batches over HTTP.

The broker filters by `names` and `where`, and sends only the columns that are wanted. Where nothing
is filtered and payloads are wanted it sends batches as they are stored, and tasks decode them.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from penstock.client.answer import Answer, decode_topics
from penstock.core.naming.names import quoted, topic_key
from penstock.model.errors import InvalidPosition, NotAuthorized, OffsetBeyondEnd, TopicNotFound
from penstock.model.record import TopicInfo
from penstock.pipeline.link import BrokerLink, topic_path
from penstock.pipeline.source.origin import (
    DELETED,
    SHRUNK,
    TRIMMED,
    Range,
    TopicState,
    Wanted,
    lost,
    nearest,
    piece_count,
)

ARROW: Final = "application/vnd.apache.arrow.stream"
BATCHES: Final = "application/vnd.penstock.batches"
# What one answer holds at most; the broker also bounds its bytes.
FETCH_RECORDS: Final = {ARROW: 50_000, BATCHES: 1_000_000}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST_US: Final = (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


class _Place(msgspec.Struct):
    offset: int


class _Stamp(msgspec.Struct):
    offset: int
    timestamp: int


class _Stamps(msgspec.Struct):
    records: list[_Stamp]


class RemoteOrigin:
    """The topics of the broker at an address."""

    def __init__(self, link: BrokerLink) -> None:
        self._link = link

    def states(self, topics: tuple[str, ...], *, missing_ok: bool = False) -> list[TopicState]:
        found = {topic_key(one.topic): one for one in self._all()}
        wanted = list(found.values())
        if topics:
            wanted = []
            for topic in topics:
                one = found.get(topic_key(topic))
                if one is not None:
                    wanted.append(one)
                elif not missing_ok:
                    known = [known.topic for known in found.values()]
                    near = nearest(topic, known)
                    raise TopicNotFound(
                        f"topic {quoted(topic)} is not declared by the broker{near}"
                    )
        return [state for info in wanted for state in _states(info)]

    def offset_at(self, topic: TopicState, timestamp_us: int) -> int:
        if timestamp_us > _LATEST_US:
            return topic.end  # no record is as young
        time = _EPOCH + timedelta(microseconds=timestamp_us)
        return self._place(topic, {"from": time.isoformat(timespec="microseconds")})

    def stamp_at(self, topic: TopicState, offset: int) -> int | None:
        asked = {"from": str(offset), "limit": "1", "until": str(offset + 1)}
        asked |= _which(topic.partition, topic.partitions)
        try:
            answer = self._link.ask("GET", topic_path(topic.topic, "records"), asked)
        except (TopicNotFound, InvalidPosition):
            return None
        found = msgspec.json.decode(bytes(answer.body), type=_Stamps).records
        return found[0].timestamp if found and found[0].offset == offset else None

    def clamp(self, topic: TopicState, epoch: int, offset: int) -> int:
        return self._place(topic, {"epoch": str(epoch), "offset": str(offset)})

    def cut(self, wanted: Range, pieces_min: int) -> list[Range]:
        records = wanted.end - wanted.start
        stored = 0
        for info in self._all():
            if (
                info.id == wanted.topic_id - wanted.partition
                and info.end_offset > info.first_offset
            ):
                stored = info.bytes * records // (info.end_offset - info.first_offset)
        count = piece_count(records, stored, pieces_min)
        edges = [wanted.start + records * number // count for number in range(count + 1)]
        return [
            replace(wanted, start=edges[number], end=edges[number + 1]) for number in range(count)
        ]

    def scan(self, piece: Range, wanted: Wanted) -> Iterator[Any]:
        """The wanted records of the piece; Gap when some of them are gone and that matters."""
        found = self._find(piece)
        if found is None:
            if wanted.fails_on_loss:
                raise lost(piece.topic, piece.start, piece.end, DELETED)
            return iter(())
        end = self.clamp(found, piece.epoch, piece.end)
        if end < piece.end and wanted.fails_on_loss:
            raise lost(piece.topic, end, piece.end, SHRUNK)
        return self._fetch(piece, end, wanted, found.partitions)

    def _find(self, piece: Range) -> TopicState | None:
        """What the piece is of, as it is now; None if it was deleted, and maybe created again."""
        for info in self._all():
            for state in _states(info):
                if state.topic_id == piece.topic_id:
                    return state
        return None

    def _fetch(self, piece: Range, end: int, wanted: Wanted, partitions: int) -> Iterator[Any]:
        """Answer after answer; the next one is asked for while the last is handed over."""
        form, query = _asked(wanted, end)
        path = topic_path(piece.topic, "records")

        def ask_for(offset: int, form: str, query: dict[str, str]) -> Answer:
            limit = min(FETCH_RECORDS[form], end - offset)
            which = _which(piece.partition, partitions)
            asked = {"from": str(offset), "limit": str(limit), **query, **which}
            return self._link.ask("GET", path, asked, headers={"Accept": form})

        def ask(offset: int) -> tuple[str, Answer]:
            try:
                return form, ask_for(offset, form, query)
            except NotAuthorized:
                if form != BATCHES:
                    raise
                # Some names may not be read, and only the broker can leave them out.
                return ARROW, ask_for(offset, ARROW, _arrow_query(wanted, end))

        offset = piece.start
        topic_id = piece.topic_id - piece.partition
        with ThreadPoolExecutor(1) as ahead:
            coming = ahead.submit(ask, offset) if offset < end else None
            while coming is not None:
                try:
                    came_as, answer = coming.result()
                    is_same = int(answer.headers["penstock-topic-id"]) == topic_id
                except TopicNotFound:
                    is_same = False
                except OffsetBeyondEnd:  # created again, or an older copy: it has fewer records
                    is_same = False
                    if wanted.fails_on_loss and self._find(piece) is not None:
                        raise lost(piece.topic, offset, end, SHRUNK) from None
                if not is_same:
                    if wanted.fails_on_loss:
                        raise lost(piece.topic, offset, end, DELETED)
                    return
                first = int(answer.headers["penstock-first-offset"])
                if first > offset and wanted.fails_on_loss:
                    raise lost(piece.topic, offset, min(first, end), TRIMMED)
                reached = int(answer.headers["penstock-next-offset"])
                if reached <= offset and wanted.fails_on_loss:  # offsets may have gaps, not ends
                    raise lost(piece.topic, offset, end, SHRUNK)
                coming = ahead.submit(ask, reached) if offset < reached < end else None
                yield from _rows(answer, came_as, piece, wanted=wanted, start=offset, end=reached)
                offset = reached

    def _all(self) -> list[TopicInfo]:
        answer = self._link.ask("GET", "/v1/topics")
        return decode_topics(bytes(answer.body))

    def _place(self, topic: TopicState, query: dict[str, str]) -> int:
        query = query | _which(topic.partition, topic.partitions)
        answer = self._link.ask("GET", topic_path(topic.topic, "position"), query)
        return msgspec.json.decode(bytes(answer.body), type=_Place).offset


def _asked(wanted: Wanted, end: int) -> tuple[str, dict[str, str]]:
    """In which form to ask for the records, and what to ask for.

    Stored batches cost the broker least, and are compressed; but payloads come with them.
    """
    if wanted.names is None and wanted.where is None and "payload" in wanted.schema.names:
        return BATCHES, {"until": str(end)}
    return ARROW, _arrow_query(wanted, end)


def _arrow_query(wanted: Wanted, end: int) -> dict[str, str]:
    query = {"until": str(end), "columns": ",".join(wanted.schema.names)}
    query |= {"names": wanted.names} if wanted.names is not None else {}
    query |= {"where": wanted.where} if wanted.where is not None else {}
    return query


def _rows(
    answer: Answer, form: str, piece: Range, wanted: Wanted, start: int, end: int
) -> Iterator[Any]:
    import pyarrow as pa

    from penstock.log.arrow.columns import in_partition
    from penstock.pipeline.source.scan import stored_rows  # only tasks need it

    if form == BATCHES:
        rows = stored_rows(
            answer.body, "what the broker sent", piece, wanted=wanted, start=start, end=end
        )
        yield from (in_partition(one, piece.partition) for one in rows)
        return
    for batch in pa.ipc.open_stream(answer.body):
        if batch.num_rows:
            yield pa.RecordBatch.from_arrays(batch.columns, schema=wanted.schema)


def _states(info: TopicInfo) -> list[TopicState]:
    """One for each partition."""
    if not info.partitions:
        return [TopicState(info.topic, info.id, info.epoch, info.first_offset, info.end_offset)]
    count = len(info.partitions)
    return [
        TopicState(
            topic=info.topic,
            topic_id=info.id + one.partition,
            epoch=one.epoch,
            first=one.first_offset,
            end=one.end_offset,
            partition=one.partition,
            partitions=count,
        )
        for one in info.partitions
    ]


def _which(partition: int, partitions: int) -> dict[str, str]:
    """What a request says of a topic with several partitions."""
    return {"partition": str(partition)} if partitions > 1 else {}
