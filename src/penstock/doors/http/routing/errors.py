"""One table: error class to status. Errors themselves know nothing of HTTP."""

from __future__ import annotations

import math
from typing import Final

from penstock.doors.http.wire.messages import HttpError, Pairs, Response, problem
from penstock.model.errors import (
    AlreadySubscribed,
    CorruptError,
    DiskFull,
    Gap,
    NotAuthorized,
    NotSubscribed,
    OffsetBeyondEnd,
    OutcomeUnknown,
    PenstockError,
    QuotaExceeded,
    RefusedError,
    TooLarge,
    TopicExists,
    TopicNotFound,
    UnavailableError,
)

# The first class that fits decides.
STATUSES: Final[tuple[tuple[type[PenstockError], int], ...]] = (
    (TopicNotFound, 404),
    (NotSubscribed, 404),
    (TopicExists, 409),
    (AlreadySubscribed, 409),
    (OffsetBeyondEnd, 409),
    (Gap, 410),
    (TooLarge, 413),
    (NotAuthorized, 403),
    (QuotaExceeded, 429),
    (DiskFull, 507),
    (UnavailableError, 503),
    (OutcomeUnknown, 502),
    (CorruptError, 500),
    (RefusedError, 400),
)


def status_of(error: Exception) -> int:
    if isinstance(error, HttpError):
        return error.status
    for kind, status in STATUSES:
        if isinstance(error, kind):
            return status
    return 500


def with_status(refused: RefusedError, status: int) -> PenstockError:
    """A refusal whose status depends on the request, unless its own class says one."""
    if type(refused) is not RefusedError:
        return refused
    return HttpError(status, str(refused), error=RefusedError.__name__)


def problem_of(error: Exception) -> Response:
    """What a client is told of an error; of our own mistakes only that there was one."""
    status = status_of(error)
    if not isinstance(error, PenstockError):
        return problem(500, "internal server error; see the server log")
    if isinstance(error, HttpError):
        if error.error:
            return problem(status, str(error), error.headers, error=error.error)
        return problem(status, str(error), error.headers)
    headers: Pairs = ()
    if isinstance(error, UnavailableError):
        headers = (("Retry-After", str(math.ceil(error.retry_after_s))),)
    return problem(status, str(error), headers, error=type(error).__name__)
