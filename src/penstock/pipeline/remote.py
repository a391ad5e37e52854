"""Implements `Origin` on a running broker: Arrow over HTTP.

The broker filters by `names` and `where`, and sends only the columns that are wanted.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from penstock.core.names import quoted, topic_key
from penstock.model.errors import TopicNotFound
from penstock.model.record import TopicInfo
from penstock.pipeline.link import BrokerLink, topic_path
from penstock.pipeline.origin import (
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
FETCH_RECORDS: Final = 50_000  # what one answer holds at most; the broker also bounds its bytes
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class _Topics(msgspec.Struct):
    topics: list[TopicInfo]


class _Place(msgspec.Struct):
    offset: int


class RemoteOrigin:
    """The topics of the broker at an address."""

    def __init__(self, link: BrokerLink) -> None:
        self._link = link

    def states(self, topics: tuple[str, ...], *, missing_ok: bool = False) -> list[TopicState]:
        found = {topic_key(one.topic): one for one in self._all()}
        if not topics:
            return [_state(one) for one in found.values()]
        states = []
        for topic in topics:
            one = found.get(topic_key(topic))
            if one is not None:
                states.append(_state(one))
            elif not missing_ok:
                known = [known.topic for known in found.values()]
                raise TopicNotFound(
                    f"topic {quoted(topic)} is not declared by the broker{nearest(topic, known)}"
                )
        return states

    def offset_at(self, topic: TopicState, timestamp_us: int) -> int:
        time = _EPOCH + timedelta(microseconds=timestamp_us)
        return self._place(topic.topic, {"from": time.isoformat(timespec="microseconds")})

    def clamp(self, topic: TopicState, epoch: int, offset: int) -> int:
        return self._place(topic.topic, {"epoch": str(epoch), "offset": str(offset)})

    def cut(self, wanted: Range, pieces_min: int) -> list[Range]:
        records = wanted.end - wanted.start
        stored = 0
        for info in self._all():
            if info.id == wanted.topic_id and info.end_offset > info.first_offset:
                stored = info.bytes * records // (info.end_offset - info.first_offset)
        count = piece_count(records, stored, pieces_min)
        edges = [wanted.start + records * number // count for number in range(count + 1)]
        return [
            Range(wanted.topic, wanted.topic_id, wanted.epoch, edges[number], edges[number + 1])
            for number in range(count)
        ]

    def scan(self, piece: Range, wanted: Wanted) -> Iterator[Any]:
        """The wanted records of the piece; Gap when some of them are gone and that matters."""
        found = [one for one in self._all() if one.id == piece.topic_id]
        if not found:
            if wanted.fails_on_loss:
                raise lost(piece.topic, piece.start, piece.end, DELETED)
            return iter(())
        end = self.clamp(_state(found[0]), piece.epoch, piece.end)
        if end < piece.end and wanted.fails_on_loss:
            raise lost(piece.topic, end, piece.end, SHRUNK)
        return self._fetch(piece, end, wanted)

    def _fetch(self, piece: Range, end: int, wanted: Wanted) -> Iterator[Any]:
        import pyarrow as pa

        query = {"until": str(end), "columns": ",".join(wanted.schema.names)}
        query |= {"names": wanted.names} if wanted.names is not None else {}
        query |= {"where": wanted.where} if wanted.where is not None else {}
        path = topic_path(piece.topic, "records")
        offset = piece.start
        while offset < end:
            limit = min(FETCH_RECORDS, end - offset)
            asked = {"from": str(offset), "limit": str(limit), **query}
            try:
                answer = self._link.ask("GET", path, asked, headers={"Accept": ARROW})
                is_same = int(answer.headers["penstock-topic-id"]) == piece.topic_id
            except TopicNotFound:
                is_same = False
            if not is_same:
                if wanted.fails_on_loss:
                    raise lost(piece.topic, offset, end, DELETED)
                return
            first = int(answer.headers["penstock-first-offset"])
            if first > offset and wanted.fails_on_loss:
                raise lost(piece.topic, offset, min(first, end), TRIMMED)
            for batch in pa.ipc.open_stream(answer.body):
                if batch.num_rows:
                    yield pa.RecordBatch.from_arrays(batch.columns, schema=wanted.schema)
            reached = int(answer.headers["penstock-next-offset"])
            if reached <= offset:
                return
            offset = reached

    def _all(self) -> list[TopicInfo]:
        answer = self._link.ask("GET", "/v1/topics")
        return msgspec.json.decode(bytes(answer.body), type=_Topics).topics

    def _place(self, topic: str, query: dict[str, str]) -> int:
        answer = self._link.ask("GET", topic_path(topic, "position"), query)
        return msgspec.json.decode(bytes(answer.body), type=_Place).offset


def _state(info: TopicInfo) -> TopicState:
    return TopicState(info.topic, info.id, info.epoch, info.first_offset, info.end_offset)
