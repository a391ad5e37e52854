"""WebSockets on an HTTP connection: frames in and out (RFC 6455), without extensions.

The rules of frames are those of `websockets`' protocol without IO; what we send is framed here,
which is a few bytes in front of the data. A peer that floods us with pings while it takes nothing
is not read on. A peer that is silent is pinged and then cut, unless what the WebSocket carries
has a keep alive of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol, cast

from penstock.doors.http.limits import OUT_BYTES_ROOM, HttpLimits
from penstock.doors.http.wire.messages import HttpError, Request, Upgrade
from penstock.model.limits import KIB

if TYPE_CHECKING:
    from websockets.frames import Frame
    from websockets.server import ServerProtocol

FRAMES_MAX: Final = 128  # in one tick: some 5 ms
FRAMES_BYTES_MIN: Final = 512  # looked at in one go: the smallest frames have 6 bytes
FRAMES_BYTES_MAX: Final = 16 * KIB
EARLY_FRAME_BYTES_MAX: Final = 512 * KIB  # before a login: the largest CONNECT fits

# Opcodes of RFC 6455 §5.2; TEXT and BINARY are those of messages in one frame.
_CONT: Final = 0x0
_TEXT: Final = 0x1
_BINARY: Final = 0x2
TEXT: Final = 0x81
BINARY: Final = 0x82

_FIN: Final = 0x80

# Codes of RFC 6455 §7.4.1
TOO_BIG: Final = 1009
TRY_LATER: Final = 1013


class Carrier(Protocol):
    """The HTTP connection below."""

    source: str
    is_closed: bool
    out_bytes: int

    def put(self, data: bytes) -> None: ...

    def want_read(self, wanted: bool) -> None: ...

    def hold(self, size: int) -> bool:
        """Count bytes of a peer that has not logged in; False if there is no room for them."""
        ...

    def let_go(self) -> None:
        """None of them are held any more."""
        ...

    def go_on_soon(self) -> None:
        """Call `WebSocket.receive` again in the next tick."""
        ...

    def end(self) -> None:
        """Close once all that waits has been sent."""
        ...

    def close(self) -> None: ...

    def now_s(self) -> int: ...

    @property
    def peer(self) -> str: ...

    def violated(self, problem: str) -> None:
        """The peer broke a rule of the WebSocket protocol."""
        ...


class Receiver(Protocol):
    """Who the frames are for."""

    @property
    def is_known(self) -> bool:
        """Has the peer logged in?"""
        ...

    def on_frame(self, data: bytes, *, is_text: bool, is_end: bool) -> None:
        """A data frame; `is_end` if it is its message's last."""
        ...

    def on_room(self) -> None:
        """All that was sent has been handed over."""
        ...

    def on_gone(self) -> None:
        """The connection is closed."""
        ...


def accept(request: Request, upgrade: Upgrade) -> ServerProtocol | HttpError:
    """The handshake: a protocol whose answer waits to be sent, or the error."""
    if request.method != "GET":  # RFC 6455 §4.1
        return HttpError(400, f"a WebSocket is opened with GET, not with {request.method}")
    # Here, since it takes as long to import as a tenth of a start, and many brokers never need it.
    from websockets.datastructures import Headers
    from websockets.http11 import Request as Handshake
    from websockets.protocol import OPEN
    from websockets.server import ServerProtocol
    from websockets.typing import Subprotocol

    protocol = ServerProtocol(
        state=OPEN,
        subprotocols=[Subprotocol(one) for one in upgrade.subprotocols] or None,
        max_size=upgrade.message_bytes_max,
    )
    headers = Headers()
    for name, value in request.headers.items():
        headers[name.decode("latin-1")] = value.decode("latin-1")
    answer = protocol.accept(Handshake(request.path, headers, method=request.method))
    if answer.status_code != 101:
        text = (answer.body or b"").decode().splitlines()[0]
        more = (("Upgrade", "websocket"),) if answer.status_code == 426 else ()
        if answer.status_code == 400:
            more = (("Sec-WebSocket-Version", "13"),)
        return HttpError(answer.status_code, text, more)
    protocol.writes.append(answer.serialize())
    return protocol


class WebSocket:
    """An open WebSocket; everything on the event loop."""

    __slots__ = (
        "_carrier",
        "_closing_since",
        "_discarded",
        "_early_bytes",
        "_is_held",
        "_is_text",
        "_is_wanted",
        "_limits",
        "_ping_s",
        "_protocol",
        "_receiver",
        "_seen",
        "_unread",
        "subprotocol",
    )

    def __init__(
        self, carrier: Carrier, protocol: ServerProtocol, limits: HttpLimits, *, is_pinged: bool
    ) -> None:
        self._carrier = carrier
        self._protocol = protocol
        self._limits = limits
        self._ping_s = limits.ping_s if is_pinged else 0  # 0: the peer may be silent
        self._receiver: Receiver | None = None
        self._is_text = False  # the message that is being read
        self._is_held = False  # not read, because the peer takes nothing
        self._is_wanted = True  # the receiver takes more
        self._early_bytes = 0  # of a frame that is not whole, before its peer has logged in
        self._unread = b""  # came, and is handled in the next tick
        self._closing_since = -1
        self._discarded = 0  # bytes that came after we closed
        self._seen = carrier.now_s()
        self.subprotocol = protocol.subprotocol

    def begin(self, make: Callable[[WebSocket], Receiver]) -> None:
        self._flush()
        self._receiver = make(self)

    @property
    def source(self) -> str:
        return self._carrier.source

    @property
    def peer(self) -> str:
        return self._carrier.peer

    @property
    def out_bytes(self) -> int:
        """What the peer has still to take."""
        return self._carrier.out_bytes

    @property
    def is_open(self) -> bool:
        return self._closing_since < 0 and not self._carrier.is_closed

    @property
    def closing_s(self) -> int:
        """How long ago we closed and said why; 0 while it is open."""
        return self._carrier.now_s() - self._closing_since if self._closing_since >= 0 else 0

    def send(self, data: bytes, kind: int = BINARY) -> None:
        """One message in one frame; nothing once it is being closed."""
        if self.is_open:
            self._carrier.put(_frame_head(kind, len(data)) + data)

    def send_part(self, data: bytes, kind: int, *, is_first: bool) -> None:
        """A message in several frames, of which `end_message` sends the last one, without data."""
        if self.is_open:
            kind = kind & ~_FIN if is_first else _CONT
            self._carrier.put(_frame_head(kind, len(data)) + data)

    def end_message(self) -> None:
        if self.is_open:
            self._carrier.put(_frame_head(_FIN | _CONT, 0))

    def close_with(self, code: int, reason: str) -> None:
        """Say why, and close when the peer has answered, or soon."""
        if self.is_open:
            self._closing_since = self._carrier.now_s()
            self._protocol.send_close(code, reason.encode()[:120].decode(errors="ignore"))
            self._flush()

    def want_read(self, wanted: bool) -> None:
        """Go on reading, or stop until the receiver wants more."""
        self._is_wanted = wanted
        if wanted and self._unread:
            self._carrier.go_on_soon()
        self._carrier.want_read(self._wants_read)

    @property
    def _wants_read(self) -> bool:
        return self._is_wanted and not self._is_held and not self._unread

    def receive(self, data: bytes) -> None:
        """Handle as many frames as may be handled while others wait, the rest in the next tick."""
        was_behind = bool(self._unread)
        data, self._unread = self._unread + data, b""
        at = frames = 0
        size = FRAMES_BYTES_MIN
        while at < len(data) and frames < FRAMES_MAX and self._takes_more:
            count = self._handle(data[at : at + size])
            at += size
            frames += count
            if count < FRAMES_MAX // 16:  # they are large: there is not much to do for them
                size = min(2 * size, FRAMES_BYTES_MAX)
        if self._carrier.is_closed:
            return
        self._unread = data[at:]
        if self._unread and self._is_wanted:
            self._carrier.go_on_soon()
        if was_behind or self._unread:
            self._carrier.want_read(self._wants_read)

    @property
    def _takes_more(self) -> bool:
        return (self._is_wanted or not self.is_open) and not self._carrier.is_closed

    def _count_early(self, data: bytes, events: int) -> None:
        """Before the login, what is held of a frame that has not come whole is bounded."""
        receiver = self._receiver
        if events or receiver is None or receiver.is_known:
            if self._early_bytes:
                self._carrier.let_go()
                self._early_bytes = 0
            return
        self._early_bytes += len(data)
        if self._early_bytes > EARLY_FRAME_BYTES_MAX:
            why = f"log in before you send frames of more than {EARLY_FRAME_BYTES_MAX} bytes"
            self.close_with(TOO_BIG, why)
        elif not self._carrier.hold(len(data)):
            self.close_with(TRY_LATER, "too many clients log in: try again")

    def _handle(self, data: bytes) -> int:
        """How many frames these bytes completed."""
        self._seen = self._carrier.now_s()
        protocol = self._protocol
        if self._closing_since >= 0:
            self._discarded += len(data)
            if self._discarded > self._limits.linger_bytes_max:
                self._carrier.close()
                return 0
        was_broken = protocol.parser_exc is not None
        protocol.receive_data(data)
        if protocol.parser_exc is not None and not was_broken:
            self._carrier.violated(str(protocol.parser_exc))
        events = protocol.events_received()
        if self.is_open:
            self._count_early(data, len(events))
        for event in events:
            if not self.is_open or self._receiver is None:
                break
            frame = cast("Frame", event)
            if frame.opcode in (_TEXT, _BINARY):
                self._is_text = frame.opcode == _TEXT
            elif frame.opcode != _CONT:
                continue
            payload = frame.data if isinstance(frame.data, bytes) else bytes(frame.data)
            self._receiver.on_frame(payload, is_text=self._is_text, is_end=frame.fin)
        self._flush()
        if self._carrier.out_bytes > OUT_BYTES_ROOM and not self._is_held:
            self._is_held = True
            self._carrier.want_read(False)
        return len(events)

    def _flush(self) -> None:
        """Send what the protocol has to say of its own."""
        for data in self._protocol.data_to_send():
            if data:
                self._carrier.put(data)
            else:
                self._carrier.end()

    def on_room(self) -> None:
        if self._is_held:
            self._is_held = False
            self._carrier.want_read(self._wants_read)
        if self._receiver is not None and self.is_open:
            self._receiver.on_room()

    def look_at_time(self) -> None:
        if not self._ping_s or not self.is_open:
            return
        silent_s = self._carrier.now_s() - self._seen
        if silent_s > 2 * self._ping_s:
            self._carrier.close()
        elif silent_s >= self._ping_s and silent_s % self._ping_s == 0:
            self._protocol.send_ping(b"")
            self._flush()

    def on_gone(self) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.on_gone()


def _frame_head(kind: int, size: int) -> bytes:
    if size < 126:
        return bytes((kind, size))
    if size < 65_536:
        return bytes((kind, 126, size >> 8, size & 255))
    return bytes((kind, 127)) + size.to_bytes(8, "big")
