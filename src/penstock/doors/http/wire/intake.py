"""Bytes of one client into requests, with every bound checked while they come.

`feed` gives the requests that became complete, in order. What breaks a rule or a bound raises
HttpError with the status that says so; after that nothing more is read from the client. The parser
is llhttp, strict: no folded headers, no two lengths, no bare line feeds in chunks.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import httptools

from penstock.doors.budget import Share
from penstock.doors.http.limits import HEAD_BYTES_MAX, HEADERS_MAX, TARGET_BYTES_MAX, HttpLimits
from penstock.doors.http.wire.messages import Asker, HttpError, Request
from penstock.model.limits import KIB

READ_BYTES_MAX: Final = 64 * KIB  # of one read: a head is counted whole only when it is complete
HEAD_FREE_BYTES: Final = 4 * KIB  # of each head: an ordinary one; what is beyond is counted
PART_BYTES_MAX: Final = 4 * KIB  # smaller parts of a body are joined: each costs some 50 bytes


class Stage(Enum):
    """What of a request has come."""

    IDLE = 0
    HEAD = 1
    BODY = 2


class Intake:
    """One client's parser and the request that is being read."""

    __slots__ = (
        "_asker",
        "_body_bytes",
        "_complete",
        "_fed_bytes",
        "_head_bytes",
        "_header_count",
        "_headers",
        "_held_bytes",
        "_limits",
        "_parser",
        "_parts",
        "_share",
        "_target",
        "body_bytes_max",
        "pending",
        "rest",
        "stage",
        "wants_continue",
    )

    def __init__(self, asker: Asker, limits: HttpLimits, share: Share) -> None:
        self._asker = asker
        self._limits = limits
        self._share = share
        self._complete: list[Request] = []
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._head_bytes = 0
        self._header_count = 0
        self._fed_bytes = 0  # of a head, or of what is neither head nor body, while it comes
        self._held_bytes = 0  # of them, those that are counted in the share
        self._parts: list[bytes] = []
        self._body_bytes = 0
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self.stage = Stage.IDLE
        self.body_bytes_max = limits.body_bytes_max
        self.pending: Request | None = None  # its head is here, its body is not here whole
        self.wants_continue = False
        self.rest: bytes | None = None  # what came behind a request to upgrade

    def feed(self, data: bytes) -> list[Request]:
        """The requests that these bytes completed; `take` has them also when this raises."""
        parser = self._parser
        assert parser is not None
        body_bytes = self._body_bytes
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self.rest = data[upgrade.args[0] :]
        except httptools.HttpParserCallbackError as broken:
            wrong = broken.__context__
            raise wrong if isinstance(wrong, HttpError) else broken from None
        except httptools.HttpParserError as broken:
            raise HttpError(400, f"this is not HTTP/1.1: {broken}") from None
        if self.stage is not Stage.IDLE and self._body_bytes == body_bytes:
            # A head, or the trailer or a chunk extension, which the parser gives when it is whole.
            self._fed_bytes += len(data)
            if self._fed_bytes > HEAD_BYTES_MAX + READ_BYTES_MAX:
                raise _too_much_head()
            self._hold(self._fed_bytes)
        return self.take()

    def take(self) -> list[Request]:
        complete, self._complete = self._complete, []
        return complete

    def close(self) -> None:
        """Let go of what was read of an unfinished request."""
        self._parts, self._headers = [], {}
        self.pending = None
        self._parser = None  # it holds us, and we hold it

    # Called by the parser; an exception here comes out of feed_data as HttpParserCallbackError

    def on_message_begin(self) -> None:
        self.stage = Stage.HEAD
        self._target = b""
        self._headers = {}
        self._head_bytes = self._fed_bytes = self._header_count = 0
        self.body_bytes_max = self._limits.body_bytes_max

    def on_url(self, part: bytes) -> None:
        self._target += part
        self._head_bytes += len(part)
        if len(self._target) > TARGET_BYTES_MAX:
            raise HttpError(414, f"path and query have at most {TARGET_BYTES_MAX} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value) + 4
        self._header_count += 1
        if self._head_bytes > HEAD_BYTES_MAX or self._header_count > HEADERS_MAX:
            raise _too_much_head()
        if self.stage is not Stage.HEAD:
            return  # a trailer: nobody asked for one
        headers = self._headers
        name = name.lower()
        known = headers.get(name)
        if known is None:
            headers[name] = value
        elif name == b"host":
            raise HttpError(400, "there are two Host headers")
        else:
            headers[name] = known + b", " + value

    def on_headers_complete(self) -> None:
        parser = self._parser
        assert parser is not None
        headers = self._headers
        request = Request(self._asker, parser.get_method().decode(), *_split(self._target))
        request.headers = headers
        request.is_kept = parser.should_keep_alive()
        if not request.is_kept or b"connection" in headers:
            version = parser.get_http_version()
            request.is_old = version == "1.0"
            if version not in ("1.0", "1.1"):
                raise HttpError(505, f"HTTP/{version} is not supported: use HTTP/1.1")
        if b"host" not in headers and not request.is_old:
            raise HttpError(400, "the Host header is missing")
        coding = headers.get(b"transfer-encoding")
        if coding is not None and (coding.lower() != b"chunked" or request.is_old):
            # Whoever stands before us may see another end of this request (RFC 9112 §6.1).
            raise HttpError(
                400,
                f"Transfer-Encoding: {coding[:60].decode('latin-1')} is not supported: only "
                "'chunked' is, with HTTP/1.1",
            )
        length = headers.get(b"content-length")
        if length is not None and int(length.lstrip(b"0")[:18] or 0) > self.body_bytes_max:
            raise self._too_large()
        if parser.should_upgrade():
            request.is_upgrade = True
            if (length is not None and length != b"0") or b"transfer-encoding" in headers:
                raise HttpError(400, "a request to upgrade has no body")
        expects = headers.get(b"expect")
        if expects is not None:
            if expects.lower() != b"100-continue":
                raise HttpError(
                    417,
                    f"Expect: {expects.decode('latin-1')} is not supported: omit it",
                )
            self.wants_continue = not request.is_old
        if self._head_bytes > HEAD_FREE_BYTES:
            self._hold(self._head_bytes)
        self.pending = request
        self._parts = []
        self._body_bytes = self._fed_bytes = 0
        self.stage = Stage.BODY

    def on_body(self, part: bytes) -> None:
        size = len(part)
        parts = self._parts
        if parts and len(parts[-1]) + size <= PART_BYTES_MAX:
            parts[-1] += part
        else:
            parts.append(part)
        self._body_bytes += size
        if self._body_bytes > self.body_bytes_max:
            raise self._too_large()
        if not self._share.take(size):
            raise _too_many()

    def on_message_complete(self) -> None:
        request = self.pending
        assert request is not None
        parts = self._parts
        if parts:
            request.body = parts[0] if len(parts) == 1 else b"".join(parts)
            self._parts = []
        request.held_bytes = len(request.body) + self._held_bytes
        self._body_bytes = self._held_bytes = 0  # the request's own from now on
        self.pending = None
        self.wants_continue = False
        self.stage = Stage.IDLE
        self._complete.append(request)

    def _hold(self, size: int) -> None:
        """Count so much of a head, besides what everybody may hold."""
        more = size - HEAD_FREE_BYTES - self._held_bytes
        if more > 0:
            if not self._share.take(more):
                raise _too_many()
            self._held_bytes += more

    def _too_large(self) -> HttpError:
        if self.body_bytes_max < self._limits.body_bytes_max:
            return HttpError(413, f"a body here has at most {self.body_bytes_max} bytes: omit it")
        return HttpError(
            413,
            f"the body is larger than {self.body_bytes_max} bytes: send less at once, "
            "or increase [http] body_bytes_max",
        )


def _too_many() -> HttpError:
    return HttpError(
        503,
        "the server is handling too many large requests: try again",
        (("Retry-After", "1"),),
    )


def _too_much_head() -> HttpError:
    return HttpError(
        431, f"at most {HEADERS_MAX} headers with {HEAD_BYTES_MAX} bytes in total are allowed"
    )


def _split(target: bytes) -> tuple[str, str]:
    """Path and query of a request target."""
    try:
        text = target.decode("ascii")
    except UnicodeDecodeError:
        raise HttpError(400, "the path is not ASCII: write other characters as %XX") from None
    if not text.startswith("/") and text != "*":
        _, separator, rest = text.partition("://")
        authority, slash, path = rest.partition("/")
        if not separator or not authority:
            raise HttpError(400, f"the path {text[:200]!r} does not begin with '/'")
        text = slash + path or "/"
    path, _, query = text.partition("?")
    return path, query
