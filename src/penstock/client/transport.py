"""HTTP/1.1 to one broker: a few kept connections, one request at a time on each.

A request whose connection broke is sent once more only if the caller says that this does no harm.
When the answer of a request that changes something is lost, nobody knows whether it was carried
out: that is OutcomeUnknown. A request that only reads changed nothing: that is UnavailableError.
"""

from __future__ import annotations

import asyncio
import base64
import re
import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import Final
from urllib.parse import unquote, urlsplit

import httptools

from penstock.model.errors import OutcomeUnknown, PeerError, RefusedError, UnavailableError
from penstock.model.limits import MIB

CONNECTIONS_MAX: Final = 16
CONNECT_S_MAX: Final = 10.0
ANSWER_S_MAX: Final = 60.0  # without a byte, in addition to what the request asks to wait
ANSWER_BYTES_MAX: Final = 256 * MIB
READ_BYTES: Final = 1 << 18


class Target:
    """What a URL says: where the broker is, and who we are there."""

    def __init__(self, url: str, user: str = "", password: str = "", token: str = "") -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as wrong:  # a port that is none, or half an IPv6 address
            raise _no_address(url, f" ({wrong})") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise _no_address(url)
        self.url = url
        self.host = parts.hostname
        self.is_tls = parts.scheme == "https"
        self.port = port or (443 if self.is_tls else 80)
        self.authorization = ""
        user = user or unquote(parts.username or "")
        password = password or unquote(parts.password or "")
        if token:
            self.authorization = f"Bearer {token}"
        elif user:
            pair = base64.b64encode(f"{user}:{password}".encode()).decode()
            self.authorization = f"Basic {pair}"

    @property
    def address(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def without_login(url: str) -> str:
    """An address as people may see it: a password is for nobody's eyes."""
    return re.sub(r"://.*@", "://", url)


def _no_address(url: str, why: str = "") -> RefusedError:
    return RefusedError(
        f"{without_login(url)!r} is no address of a broker{why}: use http://HOST:PORT or "
        "https://HOST:PORT, with a port up to 65535"
    )


class Answer:
    """A whole answer; filled by the parser."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.is_complete = False
        self.is_repeated = False  # the connection broke before, so the request was sent twice
        self.is_reading = True  # the request changes nothing

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, data: bytes) -> None:
        self.body += data
        if len(self.body) > ANSWER_BYTES_MAX:
            raise PeerError(f"an answer of more than {ANSWER_BYTES_MAX} bytes")

    def on_message_complete(self) -> None:
        self.is_complete = True


class Link:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ask(self, data: bytes, silence_s_max: float) -> Answer:
        """OSError when it breaks before the whole answer has come, or is silent for too long."""
        self._writer.write(data)
        answer = Answer()
        parser = httptools.HttpResponseParser(answer)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(silence_s_max) as limit:
                while not answer.is_complete:
                    piece = await self._reader.read(READ_BYTES)
                    if not piece:
                        raise ConnectionResetError("closed by the broker")
                    limit.reschedule(loop.time() + silence_s_max)
                    parser.feed_data(piece)
        except httptools.HttpParserError as broken:
            raise PeerError(f"this is no HTTP: {broken}") from broken
        answer.status = parser.get_status_code()
        if not parser.should_keep_alive():
            self.close()
        return answer

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
        data = self._encode(method, path, body, headers or {})
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
        why = self._say_lost(failed)
        if is_reading:
            raise UnavailableError(f"{why}: try again") from failed
        raise OutcomeUnknown(
            f"{why} after the request was sent, so it may or may not have been carried out"
            f"{': ' * bool(way_out)}{way_out}"
        ) from failed

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

    def _say_lost(self, failed: OSError) -> str:
        if isinstance(failed, TimeoutError):
            return f"the broker at {self.target.address} did not answer"
        return f"the connection to {self.target.address} broke ({failed})"

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
                reader, writer = await asyncio.open_connection(
                    target.host, target.port, ssl=self._context, limit=READ_BYTES
                )
        except (OSError, TimeoutError) as failed:
            raise UnavailableError(
                f"there is no broker at {target.address} ({failed or 'no answer'}): "
                "start `penstock serve`, or check the address"
            ) from failed
        return Link(reader, writer)

    def _encode(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self.target.address}"]
        if self.target.authorization:
            lines.append(f"Authorization: {self.target.authorization}")
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body or method in ("POST", "PUT", "PATCH"):
            lines.append(f"Content-Length: {len(body)}")
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + body

    async def close(self) -> None:
        self.is_closed = True
        for link in self._close_idle():
            with suppress(OSError, asyncio.TimeoutError):
                await asyncio.wait_for(link._writer.wait_closed(), 1)
