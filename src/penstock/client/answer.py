"""What a broker answers, and the error that an answer stands for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import httptools
import msgspec

from penstock.model import errors
from penstock.model.errors import (
    NotAuthorized,
    OutcomeUnknown,
    PeerError,
    PenstockError,
    RefusedError,
    UnavailableError,
)
from penstock.model.limits import MIB
from penstock.model.record import TopicInfo

CONNECT_S_MAX: Final = 10.0
ANSWER_S_MAX: Final = 60.0  # without a byte, in addition to what the request asks to wait
ANSWER_BYTES_MAX: Final = 256 * MIB
READ_BYTES: Final = 1 << 18


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


class AnswerReader:
    """Puts an answer together from what a connection brings."""

    def __init__(self) -> None:
        self.answer = Answer()
        self._parser = httptools.HttpResponseParser(self.answer)

    def feed(self, data: bytes) -> bool:
        """True once the answer is whole; ConnectionResetError if it ends before, with no data."""
        if not data:
            raise ConnectionResetError("closed by the broker")
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as broken:
            raise PeerError(f"the answer is not HTTP: {broken}") from broken
        if self.answer.is_complete:
            self.answer.status = self._parser.get_status_code()
        return self.answer.is_complete

    @property
    def keeps_alive(self) -> bool:
        """Whether the connection can carry another request."""
        return bool(self._parser.should_keep_alive())


def check(answer: Answer, wanted: Sequence[int] = (200, 201, 204)) -> bytes:
    """The body of an answer that is as wished for; else the error it stands for."""
    if answer.status in wanted:
        return bytes(answer.body)
    raise error_of(answer)


class _Topics(msgspec.Struct):
    topics: list[TopicInfo]


def decode_topics(body: bytes) -> list[TopicInfo]:
    """The answer to `GET /v1/topics`."""
    return msgspec.json.decode(body, type=_Topics).topics


class _Problem(msgspec.Struct):
    detail: str = ""
    message: str = ""
    error: str = ""


_BY_STATUS: Final[dict[int, type[PenstockError]]] = {
    401: NotAuthorized,
    403: NotAuthorized,
    404: errors.TopicNotFound,
    410: errors.Gap,
    413: errors.TooLarge,
    503: UnavailableError,
    507: errors.DiskFull,
}


def error_of(answer: Answer) -> PenstockError:
    """The error class that a Broker in this process would have raised, if it is known."""
    try:
        problem = msgspec.json.decode(bytes(answer.body), type=_Problem)
    except msgspec.DecodeError:
        problem = _Problem()
    text = problem.detail or problem.message or f"the broker answered {answer.status}"
    named = getattr(errors, problem.error, None) if problem.error else None
    if isinstance(named, type) and issubclass(named, PenstockError):
        return named(text)
    kind = _BY_STATUS.get(answer.status)
    if kind is None and answer.status >= 500:  # of a broken broker, or of a proxy in front of it
        kind = UnavailableError if answer.is_reading else OutcomeUnknown
    return (kind or RefusedError)(text)
