"""Every error a caller can meet, in one tree.

Five families: the peer broke a rule, the request is rejected, try again later, stored bytes are
damaged, the response was lost.
Errors know nothing of MQTT or HTTP; each door maps them to its own codes. Our own mistakes
are assertions, not errors.
"""

from __future__ import annotations


class PenstockError(Exception):
    """Base of everything Penstock raises on purpose."""


class PeerError(PenstockError):
    """The other side broke a rule of the protocol."""


class RefusedError(PenstockError):
    """The request was understood and is rejected; the message says why and what to change."""


class UnavailableError(PenstockError):
    """Cannot be done right now; nothing was changed. Try again after `retry_after_s`."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class InDoubt(UnavailableError):
    """Stopped before the answer came: it may have been stored, or may still be."""


class DiskFull(UnavailableError):
    """The disk is full; nothing was changed. Try again when there is free space."""


class QuotaExceeded(UnavailableError):
    """A quota is used up; nothing was changed. `kind` is the quota's name in [quotas]."""

    def __init__(self, message: str, kind: str = "", retry_after_s: float = 1.0) -> None:
        super().__init__(message, retry_after_s)
        self.kind = kind


class OutcomeUnknown(PenstockError):
    """The request was sent and the response was lost, so it may have been carried out.

    Not an UnavailableError, which guarantees that nothing was changed: programs repeat a call after
    that error, and would do the work twice. If `key` is set, the same call with `key=error.key` is
    carried out once, however often it is repeated.
    """

    def __init__(self, message: str, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


class CorruptError(PenstockError):
    """Stored bytes are damaged; the log stops there."""


class TopicExists(RefusedError):
    """A topic with this name already exists; topic names are not case-sensitive."""


class TopicNotFound(RefusedError):
    """There is no topic with this name."""


class InvalidTopic(RefusedError):
    """The text is not a valid topic name."""


class InvalidName(RefusedError):
    """The text is not a valid name of a message, user, consumer or group."""


class InvalidFilter(RefusedError):
    """The text is not a valid filter."""


class InvalidPosition(RefusedError):
    """The value is not a valid position in a topic."""


class OffsetBeyondEnd(InvalidPosition):
    """The offset is beyond the end of the topic; it becomes valid when the topic grows."""


class InvalidExpression(RefusedError):
    """A `where` expression is invalid."""


class InvalidSetting(RefusedError):
    """A setting has an unknown key or a value outside its range."""


class InvalidPipeline(RefusedError):
    """A declared pipeline is invalid; the message names the line and what is wrong."""


class AlreadySubscribed(RefusedError):
    """The consumer already reads this topic."""


class NotSubscribed(RefusedError):
    """The consumer does not read this topic."""


class Gap(RefusedError):
    """Retention removed records between the position and the first stored record."""


class TooLarge(RefusedError):
    """The message is larger than the limit."""


class HandlerError(RefusedError):
    """A handler raised an error for a request; `kind` is the name of its class."""

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


class NotAuthorized(RefusedError):
    """The user has no permission for this."""
