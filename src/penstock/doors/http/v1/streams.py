"""`/v1/topics/{topic}/stream`: records as they become visible, over SSE or in a WebSocket.

The server says first at which offset it starts. A reader that comes back there, or behind the last
record it saw, misses nothing and sees nothing twice. One that is too slow is served from the log
until it is level again; with `overflow=close` it is closed instead, and reconnects by itself.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from penstock.broker.deliver.streams import Stream
from penstock.broker.topics import Topic
from penstock.core.access import Gate
from penstock.core.position import AtOffset, Position, parse_position
from penstock.doors.http.endpoints import Endpoints
from penstock.doors.http.limits import OUT_BYTES_ROOM
from penstock.doors.http.lines import Lines
from penstock.doors.http.messages import (
    Answer,
    HttpError,
    Request,
    Streamed,
    Upgrade,
    Writer,
)
from penstock.doors.http.needs import Needs
from penstock.doors.http.router import Route
from penstock.doors.http.schemas import FILTER, OFFSET, POSITION, WHERE
from penstock.doors.http.v1.describing import Facts, Field
from penstock.doors.http.v1.reading import check_query, read_filters, record_out
from penstock.doors.http.websocket import TEXT, WebSocket
from penstock.model.errors import PenstockError
from penstock.model.limits import HEARTBEAT_S
from penstock.model.record import Record

STREAM: Final = "/v1/topics/{topic}/stream"
SSE: Final = "text/event-stream"
TAKE_MAX: Final = 500  # records handed over at once; what a slow reader has at hand is bounded
RETRY_MS: Final = 1_000  # after which a browser comes back
RESUME: Final = "resume"
CLOSE: Final = "close"

WS_ENDED: Final = 1001  # the topic or the server is gone
WS_TOO_SLOW: Final = 4008
WS_FAILED: Final = 1011

_encode: Final = msgspec.json.Encoder().encode


def add_routes(door: Endpoints) -> None:
    streams = StreamsDoor(door)
    facts = Facts(
        "stream records as they become visible: text/event-stream, or a WebSocket",
        str,
        gives_as=SSE,
        query=(
            Field("from", "start position (latest)", POSITION),
            Field("where", "a filter expression", WHERE),
            Field("names", "a filter over names, with + and #", FILTER),
            Field(
                "overflow",
                "what happens to a reader that is too slow (resume)",
                {"type": "string", "enum": [RESUME, CLOSE]},
            ),
        ),
        headers=(Field("Last-Event-ID", "continue after this offset", OFFSET),),
        errors=(409, 426),
    )
    door.router.add(
        Route(
            "GET",
            STREAM,
            streams.open,
            ends_with_client=True,
            facts=facts,
            needs=Needs.READ_TOPIC,
        )
    )


class StreamsDoor:
    def __init__(self, door: Endpoints) -> None:
        self._door = door
        self._engine = door.engine
        self._lines = door.lines

    async def open(self, request: Request) -> Answer:
        engine = self._engine
        query = check_query(request, "from", "where", "names", "overflow")
        topic = engine.topics.get(request.params["topic"])
        overflow = query.get("overflow", RESUME)
        if overflow not in (RESUME, CLOSE):
            raise HttpError(400, f"overflow {overflow[:200]!r} is neither 'resume' nor 'close'")
        where, names = read_filters(query)
        position = self._position(request, topic, query.get("from", "latest"))
        user = request.principal.user
        engine.quotas.enter(user)
        try:
            gate = Gate(request.principal, topic.key)
            stream = await engine.stream(topic, position, names=names, where=where, gate=gate)
        except BaseException:
            engine.quotas.leave(user)
            raise

        def end() -> None:
            stream.close()
            engine.quotas.leave(user)

        feeding = Feeding(stream, self._lines, closes=overflow == CLOSE)
        if request.is_upgrade:
            return Upgrade(lambda socket: SocketReader(self._door, socket, feeding), on_end=end)
        return Streamed(feeding.produce, SSE, (("Cache-Control", "no-store"),), on_end=end)

    def _position(self, request: Request, topic: Topic, start: str) -> Position:
        """Where the reader was, if it says so; else where it wants to start."""
        seen = request.header(b"last-event-id").strip()
        if not seen:
            return parse_position(start, self._engine.clock.now_us())
        digits = seen.removeprefix("-")
        if not digits.isascii() or not digits.isdigit() or len(digits) > 18 or int(seen) < -1:
            raise HttpError(400, f"Last-Event-ID {seen[:200]!r} is not an offset")
        return AtOffset(int(seen) + 1)


class Feeding:
    """What a stream brings, on its way to one reader."""

    __slots__ = ("_closes", "_lines", "stream")

    def __init__(self, stream: Stream, lines: Lines, *, closes: bool) -> None:
        self.stream = stream
        self._lines = lines
        self._closes = closes  # when the reader is too slow

    @property
    def is_too_slow(self) -> bool:
        return self._closes and self.stream.overflows > 0

    def encode(self, records: list[Record]) -> list[bytes]:
        """Each as JSON; made once where several read the topic."""
        if self.stream.has_siblings:
            topic_id = self.stream.topic.id
            return [self._lines.get(topic_id, record) for record in records]
        return [_encode(record_out(record)) for record in records]

    def encode_list(self, records: list[Record]) -> bytes:
        """All of them as a JSON list."""
        if self.stream.has_siblings:
            return b"[%b]" % b",".join(self.encode(records))
        return _encode([record_out(record) for record in records])

    async def produce(self, writer: Writer) -> None:
        """Server-sent events; the id of each is its offset."""
        stream = self.stream
        start = {"topic": stream.topic.declared, "next_offset": stream.start_offset}
        writer.write(
            b"retry: %d\nid: %d\nevent: start\ndata: %b\n\n"
            % (RETRY_MS, stream.start_offset - 1, _encode(start))
        )
        while True:
            await writer.wait_room()
            records = await stream.take(TAKE_MAX, HEARTBEAT_S)
            if self.is_too_slow:
                writer.write(b"event: overflow\ndata: {}\n\n")
                return
            if records:
                events = zip(records, self.encode(records), strict=True)
                writer.write(b"".join([b"id: %d\ndata: %b\n\n" % (r.offset, e) for r, e in events]))
            elif stream.is_closed:
                writer.write(b"event: end\ndata: {}\n\n")
                return
            else:  # an event without data moves the reader's place and is not shown to it
                writer.write(b": heartbeat\nid: %d\n\n" % (stream.next_offset - 1))


class SocketReader:
    """Implements Receiver: a stream's reader in a WebSocket."""

    __slots__ = ("_feeding", "_room", "_socket", "_task")

    def __init__(self, door: Endpoints, socket: WebSocket, feeding: Feeding) -> None:
        self._socket = socket
        self._feeding = feeding
        self._room: asyncio.Future[None] | None = None
        self._task = door.serving.tasks.spawn(self._run())
        self._task.add_done_callback(lambda task: feeding.stream.close())

    async def _run(self) -> None:
        try:
            await self._send_all(self._feeding.stream)
        except PenstockError as trouble:
            self._socket.close_with(WS_FAILED, str(trouble))

    async def _send_all(self, stream: Stream) -> None:
        socket = self._socket
        start = {"topic": stream.topic.declared, "next_offset": stream.start_offset}
        socket.send(_encode({"type": "start"} | start), TEXT)
        while socket.is_open:
            await self._wait_room()
            records = await stream.take(TAKE_MAX, HEARTBEAT_S)
            if self._feeding.is_too_slow:
                socket.close_with(WS_TOO_SLOW, "the reader is too slow: reconnect at your offset")
            elif records:
                lines = self._feeding.encode_list(records)
                head = b'{"type":"records","next_offset":%d,"records":' % stream.next_offset
                socket.send(head + lines + b"}", TEXT)
            elif stream.is_closed:
                socket.close_with(WS_ENDED, "the topic was deleted, or the server is stopping")
            else:
                socket.send(b'{"type":"heartbeat","next_offset":%d}' % stream.next_offset, TEXT)

    async def _wait_room(self) -> None:
        while self._socket.out_bytes >= OUT_BYTES_ROOM and self._socket.is_open:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    @property
    def is_known(self) -> bool:
        """The login was that of the request to upgrade."""
        return True

    def on_frame(self, data: bytes, *, is_text: bool, is_end: bool) -> None:
        """Readers have nothing to say."""

    def on_room(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    def on_gone(self) -> None:
        self._task.cancel()
