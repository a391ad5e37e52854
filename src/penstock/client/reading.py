"""Reading in pages: a stream that goes on, and a consumer's batch.

A stream asks for the next offset, so no record is left out and none comes twice, whatever happens
to its connections. A batch has a key, so an answer that was lost is asked for again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final, Protocol
from urllib.parse import urlencode

import msgspec

from penstock.client.answer import ANSWER_S_MAX
from penstock.client.repeating import ask_again, keyed
from penstock.client.transport import Transport
from penstock.client.wire import RecordsIn, check_gap, encode_position, topic_path
from penstock.model.errors import Gap, OutcomeUnknown, UnavailableError
from penstock.model.limits import SILENCE_HEARTBEATS_MAX
from penstock.model.record import Offsets, PositionLike, Record, has_reached, offset_in

READ_MAX: Final = 10_000  # records of one request
STREAM_READ_MAX: Final = 1_000
STREAM_RETRY_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)  # between attempts; the last one repeats


class Ask(Protocol):
    """A request of a client that is not closed."""

    async def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        silence_s_max: float = ...,
        way_out: str = ...,
    ) -> bytes: ...


async def read_page(
    ask: Ask,
    topic: str,
    position: str | int,
    limit: int,
    where: str | None,
    names: str | None,
    wait_s: float = 0.0,
    silence_s_max: float = ANSWER_S_MAX,
    *,
    partition: int | None = None,
) -> RecordsIn:
    """The records of one request."""
    asked = {"from": position, "limit": limit, "where": where, "names": names}
    asked["partition"] = partition
    if wait_s:
        asked["wait"] = f"{wait_s:g}"
    query = urlencode({key: value for key, value in asked.items() if value is not None})
    path = f"{topic_path(topic)}/records?{query}"
    data = await ask("GET", path, silence_s_max=silence_s_max)
    return msgspec.json.decode(data, type=RecordsIn)


async def read_all(
    ask: Ask,
    topic: str,
    start: PositionLike,
    limit: int | None,
    where: str | None,
    names: str | None,
    *,
    partition: int | None = None,
) -> list[Record]:
    """Records from `start` up to the end at the first request."""
    found: list[Record] = []
    position = encode_position(start)
    end: Offsets | None = None
    while True:
        asked = READ_MAX if limit is None else min(limit - len(found), READ_MAX)
        page = await read_page(
            ask, topic, position, limit=asked, where=where, names=names, partition=partition
        )
        end = page.end_offset if end is None else end
        found += [one for one in page.all() if one.offset < offset_in(end, one.partition)]
        if has_reached(page.next_offset, end) or (limit is not None and len(found) >= limit):
            return found
        position = encode_position(page.next_offset)


class StreamPages:
    """The pages of one stream, each asked for until the broker is there to answer.

    The broker answers within a heartbeat, also when there is no record. Longer silence means that
    the connection is dead, even if nothing says so.
    """

    def __init__(
        self,
        ask: Ask,
        transport: Transport,
        topic: str,
        where: str | None,
        names: str | None,
        on_gap: str,
        heartbeat_s: float,
    ) -> None:
        self._ask = ask
        self._transport = transport
        self._topic = topic
        self._where = where
        self._names = names
        self._on_gap = on_gap
        self._heartbeat_s = heartbeat_s

    async def first(self, start: PositionLike) -> RecordsIn:
        return await self._page(encode_position(start), 0.0)

    async def _page(self, position: str | int, wait_s: float) -> RecordsIn:
        failures = 0
        while True:
            try:
                page = await read_page(
                    self._ask,
                    self._topic,
                    position,
                    limit=STREAM_READ_MAX,
                    where=self._where,
                    names=self._names,
                    wait_s=wait_s,
                    silence_s_max=self._heartbeat_s * SILENCE_HEARTBEATS_MAX,
                )
                if self._on_gap == "error":
                    check_gap(self._topic, position, page)
                return page
            except UnavailableError:
                if self._transport.is_closed:
                    raise
                await asyncio.sleep(STREAM_RETRY_S[min(failures, len(STREAM_RETRY_S) - 1)])
                failures += 1

    async def records(self, first: RecordsIn | asyncio.Task[RecordsIn]) -> AsyncIterator[Record]:
        page = await first if isinstance(first, asyncio.Task) else first
        while True:
            for record in page.all():
                yield record
            page = await self._page(encode_position(page.next_offset), self._heartbeat_s)


async def fetch_batch(
    ask: Ask,
    path: str,
    asked: dict[str, Any],
    limit: int | None,
    end: Offsets,
    key: str,
    patience_s: float,
) -> list[Record]:
    """A consumer's next records: `limit` of them, or all up to `end`.

    Several pages are one batch, which has a key: nothing of it counts as handled before the
    caller has it all.
    """
    found: list[Record] = []
    offset: Offsets | None = None
    while True:
        wanted = READ_MAX if limit is None else min(limit - len(found), READ_MAX)
        body = asked | {"limit": wanted, "key": key, "offset": offset}
        try:
            page = await _fetch(ask, path, body, patience_s)
        except OutcomeUnknown as lost:
            raise keyed(lost, key) from lost
        except UnavailableError as away:
            if offset is None:
                raise
            text = f"{away}; {len(found)} records were received before that"
            raise keyed(OutcomeUnknown(text), key) from away
        except Gap:
            if found:
                return found  # the next call raises it
            raise
        found += [
            one
            for one in page.all()
            if offset is None or one.offset >= offset_in(offset, one.partition)
        ]
        is_done = has_reached(page.next_offset, end) if limit is None else len(found) >= limit
        if is_done or has_reached(page.next_offset, page.end_offset):
            return found
        offset = page.next_offset


async def _fetch(ask: Ask, path: str, body: dict[str, Any], patience_s: float) -> RecordsIn:
    async def attempt() -> RecordsIn:
        return msgspec.json.decode(await ask("POST", path, body, way_out=""), type=RecordsIn)

    return await ask_again(attempt, patience_s, waits_for_broker=False)
