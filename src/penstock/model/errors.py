"""Every error a caller can meet, in one tree.

Five families: the peer broke a rule, we refuse, try again later, stored bytes are wrong, the answer
was lost.
Errors know nothing of MQTT or HTTP; each door maps them to its own codes. Our own mistakes
are assertions, not errors.
"""

from __future__ import annotations


class PenstockError(Exception):
    """Base of everything Penstock raises on purpose."""


class PeerError(PenstockError):
    """The other side broke a rule of the protocol."""


class RefusedError(PenstockError):
    """The request was understood and is not allowed as it stands."""


class UnavailableError(PenstockError):
    """Cannot be done right now; nothing was changed. Try again after `retry_after_s`."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DiskFull(UnavailableError):
    """No space is left where the data lies; nothing was changed, and it works again with space."""


class OutcomeUnknown(PenstockError):
    """The request was sent and its answer was lost: it was carried out, or it was not.

    Not an UnavailableError, which promises that nothing was changed: programs repeat a call after
    that one, and would do the work twice. With a `key`, the same call with `key=error.key` is
    carried out once, however often it is repeated.
    """

    def __init__(self, message: str, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


class CorruptError(PenstockError):
    """Stored bytes are not what was written; the log they belong to stops there."""


class TopicExists(RefusedError):
    """A topic with this name, in whatever letter case, is already declared."""


class TopicNotFound(RefusedError):
    """No topic with this name is declared."""


class InvalidTopic(RefusedError):
    """The text cannot name a topic."""


class InvalidName(RefusedError):
    """The text cannot be published under."""


class InvalidFilter(RefusedError):
    """The text is not a filter over names."""


class InvalidPosition(RefusedError):
    """The value does not say where to start in a topic."""


class OffsetBeyondEnd(InvalidPosition):
    """The offset is past the end of the topic, which may reach it later."""


class InvalidExpression(RefusedError):
    """A `where` expression does not parse, or uses something outside the language."""


class InvalidSetting(RefusedError):
    """A setting has an unknown key or a value outside its range."""


class InvalidPipeline(RefusedError):
    """A declared pipeline cannot run; the text says what is wrong in which line of its file."""


class AlreadySubscribed(RefusedError):
    """The consumer already reads this topic."""


class NotSubscribed(RefusedError):
    """The consumer does not read this topic."""


class Gap(RefusedError):
    """Records between the position and the first retained one are gone."""


class TooLarge(RefusedError):
    """The message is larger than the limit."""


class NotAuthorized(RefusedError):
    """The principal may not do this."""
