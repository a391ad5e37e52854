"""One HTTP client: requests in, answers out in the order of the requests.

Requests of a client are dealt with one after another, as RFC 9112 §9.3.2 asks of all that are not
safe; those that come early wait, bounded in number and bytes. A client that takes its answers
slowly is neither read nor sent anything new meanwhile, and is closed if it reads nothing at all.
A body that does not come with its head is not read on before it is known who sends it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from penstock.core.access import NOBODY
from penstock.doors.budget import STRANGER_BYTES_MAX, Share
from penstock.doors.http.host import Host
from penstock.doors.http.limits import OUT_BYTES_ROOM, WAITING_BYTES_MAX, WAITING_MAX, HttpLimits
from penstock.doors.http.routing.errors import problem_of
from penstock.doors.http.wire.bodies import BodyStream
from penstock.doors.http.wire.encode import CONTINUE, UNSIZED, encode_head, encode_response
from penstock.doors.http.wire.intake import Intake, Stage
from penstock.doors.http.wire.messages import (
    Answer,
    HttpError,
    Request,
    Streamed,
    Upgrade,
    release,
)
from penstock.doors.http.wire.websocket import WebSocket, accept
from penstock.doors.lingering import STOP_LINGER_S_MAX
from penstock.doors.link import Link
from penstock.model.limits import KIB

if TYPE_CHECKING:
    from penstock.doors.http.admitted import Admitted

EARLY_BYTES_MAX: Final = 64 * KIB  # behind a request to upgrade, before it is answered
TAKE_BYTES_MAX: Final = 16 * KIB  # looked at in one go: the smallest requests are 25 bytes

_HEAD: Final = "HEAD"


class HttpConnection:
    """Implements Served and the requests' Asker."""

    __slots__ = (
        "_drains",
        "_host",
        "_intake",
        "_is_admitting",
        "_is_advancing",
        "_is_held",
        "_is_known",
        "_is_last",
        "_link",
        "_out",
        "_rest",
        "_serving",
        "_share",
        "_since",
        "_socket",
        "_stream",
        "_unknown",
        "_unread",
        "_waiting",
        "_waiting_bytes",
        "_wrong",
        "admitted",
        "certificate",
        "current",
        "is_closed",
        "is_dirty",
        "out_bytes",
        "source",
    )

    def __init__(self, host: Host, link: Link) -> None:
        self._host = host
        self._serving = host.serving
        self._link = link
        self._share = Share(host.strangers)
        self._intake = Intake(self, host.limits, self._share)
        self._unknown: Request | None = None  # its body is not read on: nobody knows who sends it
        self._is_admitting = False  # and that is being found out
        self._unread = b""  # came, and is looked at when there is room for what it asks
        self._waiting: deque[Request] = deque()
        self._waiting_bytes = 0
        self._wrong: HttpError | None = None  # said when all before it are answered
        self._out: list[bytes] = []
        self._rest: memoryview | None = None  # of a write the socket did not take whole
        self._stream: BodyStream | None = None
        self._socket: WebSocket | None = None
        self._since = host.serving.tick  # the stage it is in, or the last byte it took
        self._is_advancing = False
        self._is_held = False  # not read from
        self._is_known = False  # its client has logged in
        self._is_last = False  # closed after what is being sent
        # The peer may still send: closing with unread bytes would take the answer back (RST).
        self._drains = False
        self.current: Request | None = None
        self.source = link.source
        self.certificate = link.certificate
        self.admitted: Admitted | None = None
        self.out_bytes = 0
        self.is_closed = False
        self.is_dirty = False

    @property
    def has_room(self) -> bool:
        return self.out_bytes < OUT_BYTES_ROOM

    # Bytes in

    def receive(self, data: bytes) -> None:
        """Bytes from the client; reading stops while there is no room for answers."""
        if self._unread:
            data, self._unread = self._unread + data, b""
        if self._is_held:
            self._is_held = False
            self._link.want_read(True)
        if self._socket is not None:
            self._socket.receive(data)
            return
        at = 0
        while at < len(data) and not self._has_much and not self.is_closed:
            end = at + TAKE_BYTES_MAX
            self._take(data[at:end])
            at = end
        if self._has_much and not self.is_closed:
            self._unread = data[at:]
            self._is_held = True
            self._link.want_read(False)

    @property
    def _has_much(self) -> bool:
        """Is it unknown, does it send faster than it is answered, or take no answers?"""
        if self._unknown is not None:
            return True
        waiting = self._waiting
        if not waiting:
            return False
        is_ahead = len(waiting) > WAITING_MAX or self._waiting_bytes > WAITING_BYTES_MAX
        return is_ahead or not (self._is_known and self.has_room)

    def _take(self, data: bytes) -> None:
        """What breaks a rule ends the connection with the reason."""
        if self._socket is not None:
            self._socket.receive(data)
            return
        if self._wrong is not None or self._is_last:
            return  # the client gets the reason, and is not read again
        if self._intake.rest is not None:
            self._keep_early(data)
            return
        stage = self._intake.stage
        try:
            requests = self._intake.feed(data)
        except HttpError as wrong:
            requests = self._intake.take()
            self._wrong = wrong.with_traceback(None)  # which would keep us and what came
        for request in requests:
            self._waiting.append(request)
            self._waiting_bytes += request.held_bytes
        if (self._intake.stage is not stage or requests) and not self.out_bytes:
            self._since = self._serving.tick
        pending = self._intake.pending
        if pending is not None and not pending.is_admitted and self._wrong is None:
            self._unknown = pending
        self._advance()

    def _keep_early(self, data: bytes) -> None:
        """It upgrades, and has been told nothing yet: what it sends belongs to what comes."""
        assert self._intake.rest is not None
        self._intake.rest += data
        if len(self._intake.rest) > EARLY_BYTES_MAX:
            self.close()

    def _advance(self) -> None:
        """Begin the next request, as long as they are answered at once."""
        if self._is_advancing:
            return
        self._is_advancing = True
        waiting = self._waiting
        while self.current is None and not self.is_closed and not self._is_last:
            if not HttpLimits.has_room(self.out_bytes, is_known=self._is_known):
                break
            if waiting:
                request = waiting.popleft()
                self._waiting_bytes -= request.held_bytes
                self.current = request
                self._host.dispatch(request)
            elif self._wrong is not None:
                self._refuse(self._wrong)
            elif self._unknown is not None:
                self.current = self._unknown
                self._is_admitting = True
                self._host.admit(self._unknown)
            else:
                break
        self._is_advancing = False
        if self._is_held and not self._has_much and not self.is_closed:
            self.receive(b"")

    def admit(self, request: Request) -> None:
        """It is known who sends this body, or that anybody may send a small one."""
        if self.is_closed or self.current is not request:
            return
        self.current = self._unknown = None
        self._is_admitting = False
        intake = self._intake
        if request.principal is NOBODY:
            intake.body_bytes_max = min(intake.body_bytes_max, STRANGER_BYTES_MAX)
        else:
            self._share.move(self._host.budget)
        if intake.wants_continue:
            intake.wants_continue = False
            self.put(CONTINUE)
        self._advance()

    def _refuse(self, wrong: HttpError) -> None:
        self._host.note_violation("http", self._link.peer, str(wrong))
        response = problem_of(wrong)
        self._is_last = self._drains = True
        date, headers = self._host.date, response.headers
        self.put(encode_response(response, headers, date, is_kept=False, is_silent=False))

    # Answers out

    def answer(self, request: Request, answer: Answer) -> None:
        if self.is_closed or self.current is not request or self._stream is not None:
            release(answer)  # who asked is gone
            return
        headers = self._host.shared_headers(request) if b"origin" in request.headers else ()
        if isinstance(answer, Upgrade):
            self._upgrade(request, answer)
            return
        is_kept = request.is_kept and not self._host.is_stopping and not request.is_upgrade
        if self._is_admitting:  # the rest of its body is not wanted
            is_kept = False
            self._drains = True
        is_silent = request.method == _HEAD
        if isinstance(answer, Streamed):
            self._begin_stream(request, answer, answer.headers + headers, is_kept, is_silent)
            return
        if request.is_old and is_kept:
            headers += (("Connection", "keep-alive"),)
        if headers or answer.headers:
            headers = answer.headers + headers
        self._is_last = not is_kept
        date = self._host.date
        self.put(encode_response(answer, headers, date, is_kept=is_kept, is_silent=is_silent))
        self._finish(request)

    def _finish(self, request: Request) -> None:
        """The request is answered; its client may have more."""
        if request.held_bytes:
            self._share.give_back(request.held_bytes)
        if not self._is_known and request.principal is not NOBODY:
            self._is_known = True
            self._share.move(self._host.budget)
        self.current = None
        if not self.out_bytes:
            self._since = self._serving.tick
        if not self._is_advancing:
            self._advance()

    def _begin_stream(
        self,
        request: Request,
        answer: Streamed,
        headers: tuple[tuple[str, str], ...],
        is_kept: bool,
        is_silent: bool,
    ) -> None:
        is_chunked = not request.is_old
        is_kept = is_kept and is_chunked
        if is_chunked:
            headers += (("Transfer-Encoding", "chunked"),)
        head = encode_head(
            answer.status, answer.content_type, UNSIZED, self._host.date, headers, is_kept=is_kept
        )
        self.put(head)
        if is_silent:
            release(answer)
            self._is_last = not is_kept
            self._finish(request)
            return
        request.is_kept = is_kept
        self._stream = BodyStream(self, answer, is_chunked=is_chunked)
        self._stream.task = self._host.produce(self._stream)
        self._stream.task.add_done_callback(lambda task: release(answer))

    def finish_stream(self, stream: BodyStream, *, is_whole: bool) -> None:
        request = self.current
        if self.is_closed or self._stream is not stream or request is None:
            return
        self._stream = None
        if not is_whole:
            self.close()
            return
        self._is_last = not request.is_kept or self._host.is_stopping
        self._finish(request)
        if not self.is_dirty:
            self.flush()

    def _upgrade(self, request: Request, upgrade: Upgrade) -> None:
        """Go on as a WebSocket, or say why not."""
        protocol = accept(request, upgrade)
        if isinstance(protocol, HttpError):
            release(upgrade)
            self.answer(request, problem_of(protocol))
            return
        rest, self._intake.rest = self._intake.rest or b"", b""
        self._share.give_back(request.held_bytes)
        self.current = None
        self._socket = WebSocket(self, protocol, self._host.limits, is_pinged=upgrade.is_pinged)
        self._socket.begin(upgrade.begin)
        if rest and not self.is_closed:
            self._socket.receive(rest)

    def put(self, data: bytes) -> None:
        """Send this at the end of the tick."""
        if not self.out_bytes:
            self._since = self._serving.tick
        self._out.append(data)
        self.out_bytes += len(data)
        unsent = self._host.unsent
        unsent.bytes += len(data)
        if unsent.bytes > unsent.bytes_max:
            self._host.relieve()
        if not self.is_dirty:
            self.is_dirty = True
            self._serving.mark_dirty(self)

    def flush(self) -> None:
        """One write for all that this tick brought."""
        self.is_dirty = False
        if self.is_closed or self._rest is not None:
            return
        out = self._out
        if out:
            data = out[0] if len(out) == 1 else b"".join(out)
            self._out = []
            if not self._send(data):
                return
        self._sent()

    def _send(self, data: bytes | memoryview) -> bool:
        """Hand over what the socket takes; False if something is left, or the peer is gone."""
        try:
            sent = self._link.send(data)
        except OSError:
            self.close()
            return False
        self.out_bytes -= sent
        self._host.unsent.bytes -= sent
        if sent < len(data):
            if self._rest is None:
                self._link.want_write(True)
            self._rest = memoryview(data)[sent:]
            return False
        if self._rest is not None:
            self._rest = None
            self._link.want_write(False)
        return True

    def on_writable(self) -> None:
        """The socket takes more."""
        if self.is_closed:
            return
        self._since = self._serving.tick
        rest = self._rest
        if rest is None or self._send(rest):
            self.flush()
        elif self.has_room:
            self._tell_room()

    def _sent(self) -> None:
        """All that waited has been handed over."""
        if self._is_last:
            if self._drains:
                self._link.close_after(b"")
                self._forget()
            else:
                self.close()
            return
        self._tell_room()
        self._advance()

    def _tell_room(self) -> None:
        if self._stream is not None:
            self._stream.on_room()
        elif self._socket is not None:
            self._socket.on_room()

    def want_read(self, wanted: bool) -> None:
        """For a WebSocket: go on reading, or stop for a while."""
        if not self.is_closed:
            self._link.want_read(wanted)

    def hold(self, size: int) -> bool:
        """For a WebSocket: count bytes of a stranger."""
        return self._share.take(size)

    def let_go(self) -> None:
        self._share.close()

    def go_on_soon(self) -> None:
        """For a WebSocket: have it receive nothing new in the next tick."""
        self._serving.call_soon(self)

    def violated(self, problem: str) -> None:
        """The peer of the WebSocket broke a rule."""
        self._host.note_violation("websocket", self._link.peer, problem)

    @property
    def peer(self) -> str:
        return self._link.peer

    def now_s(self) -> int:
        return self._serving.tick

    def end(self) -> None:
        """Close once all that waits has been sent."""
        self._is_last = self._drains = True
        if not self.is_dirty:
            self.is_dirty = True
            self._serving.mark_dirty(self)

    # Time, and the end

    def look_at_time(self) -> None:
        """Called each second."""
        limits = self._host.limits
        if self._socket is not None:
            linger_s_max = STOP_LINGER_S_MAX if self._host.is_stopping else limits.linger_s_max
            if self._socket.closing_s > linger_s_max:
                self.close()
                return
        waited_s = self._serving.tick - self._since
        if self.out_bytes:
            if waited_s > self._host.send_s_max:
                self.close()
        elif self._socket is not None:
            self._socket.look_at_time()
        elif self.current is None:
            self._look_at_stage(limits, waited_s)

    def _look_at_stage(self, limits: HttpLimits, waited_s: float) -> None:
        stage = self._intake.stage
        if stage is Stage.IDLE:
            if waited_s > limits.idle_s_max:
                self.close()
            return
        wait_s_max = limits.head_s_max if stage is Stage.HEAD else limits.body_s_max
        if waited_s > wait_s_max:
            what = "headers" if stage is Stage.HEAD else "body"
            self._wrong = HttpError(408, f"the {what} did not arrive within {wait_s_max:g} s")
            self._advance()

    def stop(self, code: int = 1001, why: str = "the server stops") -> None:
        """End a stream or a WebSocket, close what is idle, let other requests finish."""
        if self._socket is not None:
            self._socket.close_with(code, why)
        elif self._stream is not None and self._stream.task is not None:
            if not self._stream.answer.is_finite:
                self._stream.task.cancel()
        elif self.current is None and not self.out_bytes and not self._waiting:
            self.close()

    def close(self) -> None:
        """Close at once and discard what waits to be sent."""
        if not self.is_closed:
            self._link.close()
            self._forget()

    def break_off(self) -> None:
        self.close()

    def _forget(self) -> None:
        self.is_closed = True
        if self.current is not None and self.current.task is not None:
            self.current.task.cancel()
        self._intake.close()
        self._share.close()
        self._unread = b""
        self._waiting.clear()
        self._out = []
        self._rest = None
        self._host.unsent.bytes -= self.out_bytes
        self.out_bytes = 0
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.on_room()
            if stream.task is not None:
                stream.task.cancel()
        if self._socket is not None:
            self._socket.on_gone()
        self._host.forget(self)
