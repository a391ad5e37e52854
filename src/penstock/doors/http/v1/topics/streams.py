"""`/v1/topics/{topic}/stream`: records as they become visible, over SSE or in a WebSocket.

The server says first at which offset it starts. A reader that comes back there, or behind the last
record it saw, misses nothing and sees nothing twice. One that is too slow is served from the log
until it is level again; with `overflow=close` it is closed instead, and reconnects by itself. Large
records have a place in the door's room while they are sent, as large answers do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import msgspec

from penstock.broker.deliver.merged import MergedStream
from penstock.broker.deliver.streams import Stream
from penstock.broker.topic.parts import shown_offsets
from penstock.broker.topic.topics import Topic
from penstock.core.access import Gate
from penstock.core.position import AtOffset, AtOffsets, Position, parse_position, read_offsets
from penstock.core.quotas import CONNECTIONS
from penstock.doors.http.limits import OUT_BYTES_ROOM
from penstock.doors.http.lines import Lines
from penstock.doors.http.routing.endpoints import Endpoints
from penstock.doors.http.routing.needs import Needs
from penstock.doors.http.routing.router import Route
from penstock.doors.http.routing.schemas import FILTER, OFFSET, POSITION, WHERE, text
from penstock.doors.http.v1.describing import Facts, Field
from penstock.doors.http.v1.reading import (
    check_query,
    long_or_short,
    read_filters,
    reader_name,
    record_out,
)
from penstock.doors.http.v1.topics.page import records_size
from penstock.doors.http.wire.messages import (
    Answer,
    HttpError,
    Request,
    Streamed,
    Upgrade,
    Writer,
)
from penstock.doors.http.wire.pieces import LongRecord, page_pieces
from penstock.doors.http.wire.room import Place, Room
from penstock.doors.http.wire.websocket import TEXT, WebSocket
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
TOO_SLOW: Final = "the reader is too slow: reconnect at your offset"

EVENT_ID: Final = text("^[0-9]{1,9}:(-1|[0-9]{1,18})(,[0-9]{1,9}:(-1|[0-9]{1,18}))*$")
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
        headers=(
            Field(
                "Last-Event-ID",
                "continue after this offset; partition:offset,… of a topic with several partitions",
                {"anyOf": [OFFSET, EVENT_ID]},
            ),
        ),
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
        await self._enter(user)
        try:
            gate = Gate(request.principal, topic.key)
            stream = await engine.stream(topic, position, names=names, where=where, gate=gate)
        except BaseException:
            self._leave(user)
            raise

        feeding = Feeding(
            stream,
            self._lines,
            self._door.room,
            note=partial(self._note, reader_name("stream", user), topic.declared),
            closes=overflow == CLOSE,
        )

        def end() -> None:
            feeding.close()
            self._leave(user)

        if request.is_upgrade:
            door = self._door
            return Upgrade(lambda socket: SocketReader(door, socket, feeding, end), on_end=end)
        return Streamed(feeding.produce, SSE, (("Cache-Control", "no-store"),), on_end=end)

    async def _enter(self, user: str) -> None:
        """One connection more; QuotaExceeded if it may not be, here or over all nodes."""
        engine = self._engine
        engine.quotas.enter(user)
        if engine.quotas.cluster is not None:
            try:
                await engine.quotas.cluster.take(CONNECTIONS, user)
            except BaseException:
                engine.quotas.leave(user)
                raise

    def _leave(self, user: str) -> None:
        self._engine.quotas.leave(user)
        if self._engine.quotas.cluster is not None:
            self._engine.quotas.cluster.give(CONNECTIONS, user)

    def _note(self, reader: str, topic: str, records: Sequence[Record]) -> None:
        if self._engine.watch is not None:
            self._engine.watch.read(reader, topic, records)

    def _position(self, request: Request, topic: Topic, start: str) -> Position:
        """Where the reader was, if it says so; else where it wants to start."""
        seen = request.header(b"last-event-id").strip()
        if not seen:
            return parse_position(start, self._engine.clock.now_us())
        if len(topic.parts) > 1 or ":" in seen:
            return AtOffsets(_read_event_id(seen))
        offset = _read_seen(seen)
        if offset is None:
            raise HttpError(400, f"Last-Event-ID {seen[:200]!r} is not an offset")
        return AtOffset(offset + 1)


def _read_seen(text: str) -> int | None:
    """The offset of the last record that was seen, or -1; None if the text is anything else."""
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 18 or int(text) < -1:
        return None
    return int(text)


def _read_event_id(text: str) -> tuple[tuple[int, int], ...]:
    """Where to go on after `partition:offset,…`."""
    found: dict[str, int] = {}
    for place in text.split(","):
        partition, _, offset_text = place.partition(":")
        offset = _read_seen(offset_text)
        if offset is None:
            raise HttpError(
                400,
                f"Last-Event-ID {text[:200]!r} does not say which offsets were seen: it is "
                "PARTITION:OFFSET for each partition, with commas, as in 0:22,1:6",
            )
        found[partition] = offset + 1
    return read_offsets(found)


class Feeding:
    """What a stream brings, on its way to one reader."""

    __slots__ = ("_closes", "_lines", "_note", "_seen", "place", "room", "stream")

    def __init__(
        self,
        stream: Stream | MergedStream,
        lines: Lines,
        room: Room,
        *,
        note: Callable[[Sequence[Record]], None],
        closes: bool,
    ) -> None:
        self.stream = stream
        self._seen = [offset - 1 for offset in stream.start_offsets]  # by partition
        self.room = room
        self.place: Place | None = None  # of the records that are being sent, if they are large
        self._lines = lines
        self._note = note  # told what the reader gets
        self._closes = closes  # when the reader is too slow

    @property
    def start(self) -> dict[str, object]:
        """What a reader is told first."""
        stream = self.stream
        start = shown_offsets(stream.start_offsets)
        return {"topic": stream.topic.declared, "next_offset": start}

    @property
    def is_too_slow(self) -> bool:
        return self._closes and self.stream.overflows > 0

    async def take(self) -> list[Record]:
        """What comes next."""
        records = await self._take()
        if not self.is_too_slow:
            self._note(records)
        return records

    async def _take(self) -> list[Record]:
        """Nothing is held in memory while it waits for a place."""
        stream, room = self.stream, self.room
        self._leave()
        while True:
            records = await stream.take(TAKE_MAX, HEARTBEAT_S)
            size = records_size(records)
            if room.is_small(size):
                self._leave()
                return records
            size += stream.backlog_bytes
            if self.place is None:
                self.place = room.find(size)
            if self.place is not None:
                return records
            stream.go_back(records)
            del records
            self.place = await room.reserve(size)

    def _leave(self) -> None:
        self.room.release(self.place)
        self.place = None

    def encode(self, records: list[Record]) -> list[bytes]:
        """Each as JSON; made once where several read the topic."""
        if self.stream.has_siblings:
            parts = self.stream.topic.parts
            return [self._lines.get(parts[one.partition].id, one) for one in records]
        return [_encode(record_out(record)) for record in records]

    def encode_list(self, records: list[Record]) -> bytes:
        """All of them as a JSON list."""
        if self.stream.has_siblings:
            return b"[%b]" % b",".join(self.encode(records))
        return _encode([record_out(record) for record in records])

    def _events(self, records: list[Record]) -> bytes:
        events = zip(records, self.encode(records), strict=True)
        if len(self._seen) > 1:
            return b"".join([b"id: %b\ndata: %b\n\n" % (self._id_of(r), e) for r, e in events])
        return b"".join([b"id: %d\ndata: %b\n\n" % (r.offset, e) for r, e in events])

    def _id_of(self, record: Record) -> bytes:
        """What the reader has seen once it has this record."""
        if len(self._seen) == 1:
            return b"%d" % record.offset
        self._seen[record.partition] = record.offset
        return self._shown_seen()

    def _shown_seen(self) -> bytes:
        if len(self._seen) == 1:
            return b"%d" % self._seen[0]
        return b",".join([b"%d:%d" % place for place in enumerate(self._seen)])

    def _event_pieces(self, records: list[Record]) -> Iterator[bytes]:
        """The same, of which little is made at a time."""
        for record in records:
            shown = long_or_short(record)
            if isinstance(shown, LongRecord):
                yield b"id: %b\ndata: " % self._id_of(record)
                yield from shown.pieces()
                yield b"\n\n"
            else:
                yield self._events([record])

    async def produce(self, writer: Writer) -> None:
        """Server-sent events; the id of each is its offset, or what was seen of each partition."""
        stream = self.stream
        writer.write(
            b"retry: %d\nid: %b\nevent: start\ndata: %b\n\n"
            % (RETRY_MS, self._shown_seen(), _encode(self.start))
        )
        while True:
            await writer.wait_room()
            records = await self.take()
            if self.is_too_slow:
                writer.write(b"event: overflow\ndata: {}\n\n")
                return
            if self.place is not None:
                await self.room.send(self.place, self._event_pieces(records), writer)
            elif records:
                writer.write(self._events(records))
            elif stream.is_closed:
                writer.write(b"event: end\ndata: {}\n\n")
                return
            else:  # an event without data moves the reader's place and is not shown to it
                self._seen = [offset - 1 for offset in stream.next_offsets]
                writer.write(b": heartbeat\nid: %b\n\n" % self._shown_seen())

    def close(self) -> None:
        self.stream.close()
        self._leave()


class SocketReader:
    """Implements Receiver and Writer: a stream's reader in a WebSocket."""

    __slots__ = ("_feeding", "_is_first", "_room", "_socket", "_task")

    def __init__(
        self, door: Endpoints, socket: WebSocket, feeding: Feeding, end: Callable[[], None]
    ) -> None:
        """`end` is called when the reader has gone."""
        self._socket = socket
        self._feeding = feeding
        self._room: asyncio.Future[None] | None = None
        self._is_first = True  # of the frames of a message
        self._task = door.serving.tasks.spawn(self._run())
        self._task.add_done_callback(lambda task: end())

    async def _run(self) -> None:
        try:
            await self._send_all(self._feeding.stream)
        except PenstockError as trouble:
            self._socket.close_with(WS_FAILED, str(trouble))
        except asyncio.CancelledError:
            self._socket.close_with(WS_TOO_SLOW, TOO_SLOW)  # unless it is closed already
            raise

    async def _send_all(self, stream: Stream | MergedStream) -> None:
        socket, feeding = self._socket, self._feeding
        socket.send(_encode({"type": "start"} | feeding.start), TEXT)
        while socket.is_open:
            await self.wait_room()
            records = await feeding.take()
            next_offset = _encode(shown_offsets(stream.next_offsets))
            head = b'{"type":"records","next_offset":%b,"records":' % next_offset
            if feeding.is_too_slow:
                socket.close_with(WS_TOO_SLOW, TOO_SLOW)
            elif feeding.place is not None:
                pieces = page_pieces(head + b"[", map(long_or_short, records))
                await feeding.room.send(feeding.place, pieces, self)
                socket.end_message()
                self._is_first = True
            elif records:
                socket.send(head + feeding.encode_list(records) + b"}", TEXT)
            elif stream.is_closed:
                socket.close_with(WS_ENDED, "the topic was deleted, or the server is stopping")
            else:
                socket.send(b'{"type":"heartbeat","next_offset":%b}' % next_offset, TEXT)

    def write(self, data: bytes) -> None:
        """A piece of a message."""
        self._socket.send_part(data, TEXT, is_first=self._is_first)
        self._is_first = False

    async def wait_room(self) -> None:
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
