"""Bodies that are made while they are sent: chunks out, and a producer held while they wait."""

from __future__ import annotations

import asyncio
from typing import Protocol

from penstock.doors.http.wire.encode import LAST_CHUNK, encode_chunk
from penstock.doors.http.wire.messages import Streamed


class Carrier(Protocol):
    """The connection a body goes out on."""

    is_closed: bool

    @property
    def has_room(self) -> bool: ...

    def put(self, data: bytes) -> None: ...

    def finish_stream(self, stream: BodyStream, *, is_whole: bool) -> None: ...


class BodyStream:
    """Implements Writer: a streamed body on its way to one client."""

    __slots__ = ("_connection", "_is_chunked", "_room", "answer", "task")

    def __init__(self, connection: Carrier, answer: Streamed, *, is_chunked: bool) -> None:
        self._connection = connection
        self._is_chunked = is_chunked
        self._room: asyncio.Future[None] | None = None
        self.answer = answer
        self.task: asyncio.Task[None] | None = None

    def write(self, data: bytes) -> None:
        if data:
            self._connection.put(encode_chunk(data) if self._is_chunked else data)

    async def wait_room(self) -> None:
        while not self._connection.has_room and not self._connection.is_closed:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    def on_room(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    def end(self, *, is_whole: bool) -> None:
        """The body is complete; or it broke off, which only closing can say."""
        if is_whole and self._is_chunked:
            self._connection.put(LAST_CHUNK)
        self._connection.finish_stream(self, is_whole=is_whole)
