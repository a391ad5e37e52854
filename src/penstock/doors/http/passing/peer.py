"""A connection to the HTTP of another node, on which one request after another is passed on."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from penstock.doors.http.passing.seal import ELSEWHERE
from penstock.doors.http.wire.messages import Pairs
from penstock.model.errors import InvalidSetting
from penstock.model.limits import KIB

CONNECT_S_MAX: Final = 2.0
READ_S_MAX: Final = 30.0  # between two parts of a body
PART_BYTES_MAX: Final = 64 * KIB
HEAD_BYTES_MAX: Final = 64 * KIB
# About the connection between two nodes, or written by each node itself.
_OWN: Final = ("connection", "content-length", "content-type", "date", "transfer-encoding")


class BadAnswer(Exception):
    """The other node does not speak HTTP as it should."""


class Head(NamedTuple):
    """The first part of an answer."""

    status: int
    content_type: str
    headers: Pairs
    length: int | None  # of the body; None: it comes in chunks
    is_kept: bool
    is_elsewhere: bool


class Peer:
    """One connection. What breaks it raises OSError, EOFError, TimeoutError or BadAnswer."""

    def __init__(
        self, inc: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.inc = inc
        self.idle_s = 0.0  # since when nobody uses it
        self.is_kept = True  # it may be used again
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, inc: int, url: str, tls: ssl.SSLContext) -> Peer:
        parts = urlsplit(url)
        is_tls = parts.scheme == "https"
        work = asyncio.open_connection(
            parts.hostname,
            parts.port or (443 if is_tls else 80),
            ssl=tls if is_tls else None,
            limit=HEAD_BYTES_MAX,
        )
        return cls(inc, *await asyncio.wait_for(work, CONNECT_S_MAX))

    @property
    def is_usable(self) -> bool:
        return self.is_kept and not self._reader.at_eof() and not self._writer.is_closing()

    def close(self) -> None:
        self.is_kept = False
        with suppress(OSError, RuntimeError):
            self._writer.transport.abort()

    async def ask(self, head: bytes, body: bytes) -> Head:
        """Send a request, and wait for the head of its answer."""
        self._writer.write(head)
        if body:
            self._writer.write(body)
        await self._writer.drain()
        try:
            data = await self._reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            raise BadAnswer("the head of its answer is too long") from None
        found = _read_head(data)
        self.is_kept = found.is_kept
        return found

    async def read_whole(self, length: int) -> bytes:
        return await asyncio.wait_for(self._reader.readexactly(length), READ_S_MAX)

    async def read_part(self, left: int) -> bytes:
        """At most `left` bytes of a body whose length is known."""
        part = await asyncio.wait_for(self._reader.read(min(left, PART_BYTES_MAX)), READ_S_MAX)
        if not part:
            raise EOFError("the answer ended early")
        return part

    async def chunk_length(self) -> int:
        """Of the next chunk; 0 behind the last one."""
        line = await asyncio.wait_for(self._reader.readuntil(b"\r\n"), READ_S_MAX)
        try:
            return int(line.strip(), 16)
        except ValueError:
            raise BadAnswer(f"{line[:20]!r} is not the length of a chunk") from None

    async def end_chunk(self) -> None:
        await self.read_whole(2)


def make_context(ca_file: str) -> ssl.SSLContext:
    """How nodes that advertise https:// are known; InvalidSetting if the file cannot be used."""
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except OSError as failed:
        raise InvalidSetting(
            f"[node] http_ca_file {ca_file!r} cannot be used: {failed}; it has to be a PEM file "
            "with certificates of authorities"
        ) from None


def _read_head(data: bytes) -> Head:
    first, *lines = data.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    version, _, rest = first.partition(" ")
    if version != "HTTP/1.1" or not rest[:3].isdigit():
        raise BadAnswer(f"{first[:60]!r} does not begin an answer")
    pairs = [(name.strip(), value.strip()) for name, _, value in (x.partition(":") for x in lines)]
    values = {name.lower(): value for name, value in pairs}
    length = values.get("content-length")
    is_chunked = values.get("transfer-encoding", "").lower() == "chunked"
    if not is_chunked and not (length or "0").isdigit():
        raise BadAnswer(f"Content-Length {length!r} is not a number")
    elsewhere = ELSEWHERE.lower()
    own = (*_OWN, elsewhere)
    return Head(
        status=int(rest[:3]),
        content_type=values.get("content-type", ""),
        headers=tuple([pair for pair in pairs if pair[0].lower() not in own]),
        length=None if is_chunked else int(length or 0),
        is_kept=values.get("connection", "").lower() != "close",
        is_elsewhere=elsewhere in values,
    )
