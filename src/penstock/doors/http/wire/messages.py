"""Requests and answers, as handlers see them. No bytes of the wire here.

A handler takes a Request and returns its Answer; or a coroutine that does; or None, and calls
`Request.reply` later, which is what the endpoints do that wait for a commit.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import parse_qsl

import msgspec

from penstock.core.access import NOBODY, Principal
from penstock.model.certificate import Certificate
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from penstock.doors.http.admitted import Admitted

JSON: Final = "application/json"
PROBLEM: Final = "application/problem+json"
TEXT: Final = "text/plain; charset=utf-8"

Pairs = tuple[tuple[str, str], ...]


class HttpError(PenstockError):
    """A request that is answered with this status; the message says why and the way out."""

    def __init__(self, status: int, message: str, headers: Pairs = (), error: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers
        self.error = error  # the class that clients raise for it, if the status does not say


class Response:
    """An answer whose body is known."""

    __slots__ = ("body", "content_type", "headers", "status")

    def __init__(
        self, status: int, body: bytes = b"", content_type: str = JSON, headers: Pairs = ()
    ) -> None:
        self.status = status
        self.body = body
        self.content_type = content_type
        self.headers = headers


class Writer(Protocol):
    """Where a streamed body goes. Writing never blocks; `wait_room` is what holds a producer."""

    def write(self, data: bytes) -> None: ...

    async def wait_room(self) -> None:
        """Suspends while the client has more to take than it should."""
        ...


Produce = Callable[[Writer], Coroutine[Any, Any, None]]


class Streamed:
    """An answer whose body is made while it is sent; `produce` is cancelled if the client goes."""

    __slots__ = ("content_type", "headers", "is_finite", "on_end", "produce", "status")

    def __init__(
        self,
        produce: Produce,
        content_type: str,
        headers: Pairs = (),
        status: int = 200,
        on_end: Callable[[], None] | None = None,
        *,
        is_finite: bool = False,
    ) -> None:
        self.produce = produce
        self.is_finite = is_finite  # a server that stops finishes it; others end where they are
        self.on_end = on_end  # called once, also if nothing was ever produced
        self.content_type = content_type
        self.headers = headers
        self.status = status


class Upgrade:
    """The connection goes on as a WebSocket, which `begin` is given once it is open."""

    __slots__ = ("begin", "is_pinged", "message_bytes_max", "on_end", "subprotocols")

    def __init__(
        self,
        begin: Callable[[Any], Any],
        subprotocols: tuple[str, ...] = (),
        message_bytes_max: int = 65_536,
        on_end: Callable[[], None] | None = None,
        is_pinged: bool = True,
    ) -> None:
        self.begin = begin
        self.is_pinged = is_pinged  # False where what it carries has a keep alive of its own
        self.on_end = on_end  # called if there is no WebSocket after all
        self.subprotocols = subprotocols
        self.message_bytes_max = message_bytes_max


Answer = Response | Streamed | Upgrade
Handler = Callable[["Request"], Answer | Coroutine[Any, Any, Answer] | None]


def release(answer: Answer) -> None:
    """The request ended or will never begin: let go of what the answer holds."""
    if not isinstance(answer, Response) and answer.on_end is not None:
        answer.on_end()


class Asker(Protocol):
    """The connection a request came on."""

    source: str
    certificate: Certificate | None  # of its client, signed by an authority that is trusted
    admitted: Admitted | None  # what its door remembers of the last request

    def admit(self, request: Request) -> None: ...

    def answer(self, request: Request, answer: Answer) -> None: ...


class Request:
    """One request with its whole body."""

    __slots__ = (
        "_query",
        "asker",
        "body",
        "client",
        "expires_us",
        "headers",
        "held_bytes",
        "is_admitted",
        "is_kept",
        "is_old",
        "is_upgrade",
        "method",
        "params",
        "passed",
        "path",
        "principal",
        "query_text",
        "route",
        "task",
    )

    def __init__(self, asker: Asker, method: str, path: str, query_text: str) -> None:
        self.asker = asker
        self._query: dict[str, str] | None = None
        self.method = method
        self.path = path  # as it was sent, percent signs and all
        self.query_text = query_text
        self.headers: dict[bytes, bytes] = {}  # names in small letters; repeated ones are joined
        self.body: bytes = b""
        self.held_bytes = 0  # of body and head, counted in the share of its connection
        self.client = ""  # its address, if a proxy speaks for it
        self.params: dict[str, str] = {}  # of the path, decoded
        self.passed = ""  # the digest of its body, if another node has passed it on
        self.principal: Principal = NOBODY
        self.expires_us = 0  # when the login of the principal ends; 0: it does not
        self.is_admitted = False  # it is known who asks, before all of its body came
        self.is_kept = True  # the connection stays open
        self.is_old = False  # HTTP/1.0
        self.is_upgrade = False
        self.route: Any = None
        self.task: Any = None  # what is given up when the client goes

    def reply(self, answer: Answer) -> None:
        """Answer a request whose handler returned None; once, from the event loop."""
        self.asker.answer(self, answer)

    @property
    def source(self) -> str:
        """The address the client comes from."""
        return self.client or self.asker.source

    def header(self, name: bytes) -> str:
        """The value of a header, or '' if it is missing; `name` is in lower case."""
        return self.headers.get(name, b"").decode("latin-1")

    @property
    def query(self) -> dict[str, str]:
        """The query string; HttpError 400 if it is not text or says something twice."""
        if self._query is None:
            self._query = parse_query(self.query_text)
        return self._query


def check_coding(request: Request) -> None:
    """HttpError 415 for a body that is compressed: it would be stored as it came."""
    coding = request.header(b"content-encoding").strip().lower()
    if coding not in ("", "identity"):
        raise HttpError(
            415,
            f"Content-Encoding {coding[:60]!r} is not supported: send the body without compression",
            (("Accept-Encoding", "identity"),),
        )


def parse_query(text: str) -> dict[str, str]:
    if not text:
        return {}
    found: dict[str, str] = {}
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=64)
    except ValueError as broken:
        raise HttpError(400, f"the query string cannot be read: {broken}") from None
    for key, value in pairs:
        if key in found:
            raise HttpError(400, f"the query string contains {key!r} twice: give it once")
        found[key] = value
    return found


_encode: Final = msgspec.json.Encoder().encode


def json_response(value: Any, status: int = 200, headers: Pairs = ()) -> Response:
    return Response(status, _encode(value), JSON, headers)


def problem(status: int, detail: str, headers: Pairs = (), **more: Any) -> Response:
    """An answer that says what is wrong (RFC 9457)."""
    body = {"type": "about:blank", "title": TITLES[status], "status": status, "detail": detail}
    return Response(status, _encode(body | more), PROBLEM, headers)


TITLES: Final = {
    100: "Continue",
    101: "Switching Protocols",
    200: "OK",
    201: "Created",
    204: "No Content",
    304: "Not Modified",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    406: "Not Acceptable",
    408: "Request Timeout",
    409: "Conflict",
    410: "Gone",
    413: "Content Too Large",
    414: "URI Too Long",
    415: "Unsupported Media Type",
    417: "Expectation Failed",
    421: "Misdirected Request",
    422: "Unprocessable Content",
    426: "Upgrade Required",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    502: "Bad Gateway",
    503: "Service Unavailable",
    505: "HTTP Version Not Supported",
    507: "Insufficient Storage",
}
