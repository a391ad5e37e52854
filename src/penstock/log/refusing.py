"""Why a log whose records are on a server accepts no messages, and telling that it has stopped."""

from __future__ import annotations

import logging
from typing import Final

from penstock.model.errors import UnavailableError

LOG: Final = logging.getLogger("penstock.log")


def find_refusal(fence: str, is_closed: bool, trouble: str) -> UnavailableError | None:
    """The first of the reasons that holds; `trouble` is that the server does not answer."""
    if fence:
        return UnavailableError(
            f"{fence}; the stored records can still be read; restart the broker to continue after "
            "them"
        )
    if is_closed:
        return UnavailableError("the log is closed")
    return UnavailableError(trouble) if trouble else None


def tell_fenced(fence: str) -> UnavailableError:
    """Log that a topic is fenced from now on; the error for those who wait."""
    error = find_refusal(fence, False, "")
    assert error is not None
    values = {"event": "log fenced", "problem": str(error)}
    LOG.error("a topic rejects publishes from now on: %(problem)s", values)
    return error
