"""HTTP/1.1 to one broker: a few kept connections, one request at a time on each.

A request whose connection broke is sent once more only if the caller says that this does no harm.
When the answer of a request that changes something is lost, nobody knows whether it was carried
out: that is OutcomeUnknown. A request that only reads changed nothing: that is UnavailableError.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from penstock.client.answer import ANSWER_S_MAX, CONNECT_S_MAX, READ_BYTES, Answer, AnswerReader
from penstock.client.target import Target
from penstock.model import unix_socket
from penstock.model.errors import UnavailableError

CONNECTIONS_MAX: Final = 16


class Link:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ask(self, data: bytes, silence_s_max: float) -> Answer:
        """OSError when it breaks before the whole answer has come, or is silent for too long."""
        self._writer.write(data)
        reading = AnswerReader()
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(silence_s_max) as limit:
            while not reading.feed(await self._reader.read(READ_BYTES)):
                limit.reschedule(loop.time() + silence_s_max)
        if not reading.keeps_alive:
            self.close()
        return reading.answer

    @property
    def is_closed(self) -> bool:
        return self._writer.is_closing() or self._reader.at_eof()

    def close(self) -> None:
        self._writer.close()


class Transport:
    """Requests to one broker. Used on the event loop that made it."""

    def __init__(self, target: Target, context: ssl.SSLContext | None = None) -> None:
        self.target = target
        self._context = (context or ssl.create_default_context()) if target.is_tls else None
        self._idle: list[Link] = []
        self._slots = asyncio.Semaphore(CONNECTIONS_MAX)
        self.is_closed = False

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        silence_s_max: float = ANSWER_S_MAX,
        may_repeat: bool = False,
        way_out: str = "",
    ) -> Answer:
        """The broker's answer, whatever its status.

        UnavailableError: nothing was changed. OutcomeUnknown: the answer is lost; `way_out` tells
        the caller what to do then.
        """
        if self.is_closed:
            raise UnavailableError("the client is closed: connect again")
        data = self.target.encode(method, path, body, headers or {})
        is_reading = method == "GET"
        async with self._slots:
            try:
                answer = await self._exchange(data, silence_s_max)
                answer.is_reading = is_reading
                return answer
            except OSError as lost:
                failed = lost
            if may_repeat and not isinstance(failed, TimeoutError):
                try:
                    answer = await self._exchange(data, silence_s_max, is_new=True)
                    answer.is_reading, answer.is_repeated = is_reading, True
                    return answer
                except OSError as lost:
                    failed = lost
                except UnavailableError:
                    if is_reading:
                        raise
        raise self.target.answer_lost(failed, is_reading=is_reading, way_out=way_out) from failed

    async def _exchange(self, data: bytes, silence_s_max: float, *, is_new: bool = False) -> Answer:
        """Request and answer on one connection; OSError if the answer is lost."""
        link = (None if is_new else self._take_idle()) or await self._connect()
        try:
            answer = await link.ask(data, silence_s_max)
        except BaseException as failed:
            link.close()  # what it would answer next is not ours
            if isinstance(failed, TimeoutError):  # others that went the same way are dead as well
                self._close_idle()
            raise
        if not link.is_closed:
            self._idle.append(link)
        return answer

    def _close_idle(self) -> list[Link]:
        closed, self._idle = self._idle, []
        for link in closed:
            link.close()
        return closed

    def _take_idle(self) -> Link | None:
        while self._idle:
            link = self._idle.pop()
            if not link.is_closed:
                return link
        return None

    async def _connect(self) -> Link:
        target = self.target
        try:
            async with asyncio.timeout(CONNECT_S_MAX):
                if target.socket_path is not None:
                    # Who listens there takes it at once, or the backlog is full and it fails.
                    connected = unix_socket.connect(target.socket_path, CONNECT_S_MAX)
                    reader, writer = await asyncio.open_unix_connection(
                        sock=connected, limit=READ_BYTES
                    )
                else:
                    reader, writer = await asyncio.open_connection(
                        target.host, target.port, ssl=self._context, limit=READ_BYTES
                    )
        except (OSError, TimeoutError) as failed:
            raise target.not_reached(failed) from failed
        return Link(reader, writer)

    async def close(self) -> None:
        self.is_closed = True
        for link in self._close_idle():
            with suppress(OSError, asyncio.TimeoutError):
                await asyncio.wait_for(link._writer.wait_closed(), 1)
